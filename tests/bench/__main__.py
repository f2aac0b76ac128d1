"""`make bench`: measures everything and writes docs/benchmarks.md; misses are written, not hidden."""

import asyncio

from tests.bench import allocate, footprint, health, start
from tests.bench.bench_node import bench_node
from tests.bench.machine import say, this_machine
from tests.bench.report import DOCUMENT, write
from tests.bench.rows import Chapter


async def _measured() -> list[Chapter]:
    chapters = []
    async with bench_node() as node:
        say("==> a node with 109 pods")
        await node.fill()
        for title, measure in (
            ("Allocate", allocate.measure),
            ("start", start.measure),
            ("footprint, 70 s", footprint.measure),
        ):
            say(f"==> {title}")
            chapters.append(_told(await measure(node)))
    say("==> health change")
    chapters.append(_told(health.measure()))
    return chapters


def _told(chapter: Chapter) -> Chapter:
    for row in chapter.rows:
        say(f"    {row.what}: {row.measured} {row.target and f'({row.target})'} {row.verdict}")
    return chapter


def main() -> None:
    """Measure and write."""
    machine = this_machine()
    chapters = asyncio.run(_measured())
    write(machine, chapters)
    say(f"==> {DOCUMENT}")


if __name__ == "__main__":
    main()
