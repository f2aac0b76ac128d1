"""`make bench`: measures everything and writes docs/benchmarks.md; misses are written, not hidden.

`python -m tests.bench CHAPTER ...` measures only these and prints them.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping

from tests.bench import allocate, churn, footprint, health, rejections, start
from tests.bench.bench_node import BenchNode, bench_node
from tests.bench.machine import say, this_machine
from tests.bench.report import DOCUMENT, write
from tests.bench.rows import Chapter
from tests.isolation import bench as isolation_bench


async def _isolation() -> Chapter:
    return isolation_bench.measure()


_ON_NODE: Mapping[str, Callable[[BenchNode], Awaitable[Chapter]]] = {
    "allocate": allocate.measure,
    "start": start.measure,
    "footprint": footprint.measure,
}
_ALONE: Mapping[str, Callable[[], Awaitable[Chapter]]] = {
    "health": health.measure,
    "churn": churn.measure,
    "rejections": rejections.measure,
    "isolation": _isolation,
}


async def _measured(wanted: Collection[str]) -> list[Chapter]:
    chapters = []
    on_node = [name for name in _ON_NODE if name in wanted]
    if on_node:
        say("==> a node with 109 pods")
        async with bench_node() as node:
            await node.fill()
            for name in on_node:
                say(f"==> {name}")
                chapters.append(_told(await _ON_NODE[name](node)))
    for name in _ALONE:
        if name in wanted:
            say(f"==> {name}")
            chapters.append(_told(await _ALONE[name]()))
    return chapters


def _told(chapter: Chapter) -> Chapter:
    for row in chapter.rows:
        bar = f" ({row.target}) {row.verdict}" if row.target else ""
        say(f"    {row.what}: {row.measured}{bar}")
    return chapter


def main() -> None:
    """Measure and write."""
    everything = (*_ON_NODE, *_ALONE)
    wanted = sys.argv[1:] or everything
    unknown = set(wanted).difference(everything)
    if unknown:
        sys.exit(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    machine = this_machine()
    chapters = asyncio.run(_measured(wanted))
    if not sys.argv[1:]:
        write(machine, chapters)
        say(f"==> {DOCUMENT}")


if __name__ == "__main__":
    main()
