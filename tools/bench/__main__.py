"""`make bench`: measures everything and writes docs/benchmarks.md; misses are written, not hidden.

`python -m tools.bench CHAPTER ...` measures only these; the others stay as they stand there.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

from tools.bench import (
    allocate,
    allocation_apis,
    card_choice,
    churn,
    claims,
    extender,
    footprint,
    growing,
    health,
    large_cluster,
    nvidia,
    page,
    placement,
    placement_players,
    refusals,
    rejections,
    resizing,
    slow_server,
    start,
)
from tools.bench import isolation as isolation_bench
from tools.bench.bench_node import BenchNode, bench_node
from tools.bench.machine import moment, say, this_machine
from tools.bench.report import DOCUMENT, chapter_text, write
from tools.bench.rows import Chapter


async def _isolation() -> Chapter:
    return isolation_bench.measure()


_ON_NODE: Mapping[str, Callable[[BenchNode], Awaitable[Chapter]]] = {
    "allocate": allocate.measure,
    "start": start.measure,
    "footprint": footprint.measure,
}
_ALONE: Mapping[str, Callable[[], Awaitable[Chapter]]] = {
    "health": health.measure,
    "nvidia": nvidia.measure,
    "card_choice": card_choice.measure,
    "churn": churn.measure,
    "rejections": rejections.measure,
    "refusals": refusals.measure,
    "claims": claims.measure,
    "allocation_apis": allocation_apis.measure,
    "placement": placement.measure,
    "placement_players": placement_players.measure,
    "growing": growing.measure,
    "extender": extender.measure,
    "large_cluster": large_cluster.measure,
    "slow_server": slow_server.measure,
    "page": page.measure,
    "resizing": resizing.measure,
    "isolation": _isolation,
}


async def _measured(wanted: Collection[str]) -> dict[str, tuple[str, str]]:
    """When each was measured, and its text."""
    found = {}
    on_node = [name for name in _ON_NODE if name in wanted]
    if on_node:
        say("==> a node with 109 pods")
        async with bench_node() as node:
            await node.fill()
            for name in on_node:
                found[name] = await _told(name, partial(_ON_NODE[name], node))
    for name in _ALONE:
        if name in wanted:
            found[name] = await _told(name, _ALONE[name])
    return found


async def _told(name: str, measure: Callable[[], Awaitable[Chapter]]) -> tuple[str, str]:
    say(f"==> {name}")
    before = moment()
    chapter = await measure()
    for row in chapter.rows:
        bar = f" ({row.target}) {row.verdict}" if row.target else ""
        say(f"    {row.what}: {row.measured}{bar}")
    return chapter_text(chapter), before + "\n"


def main() -> None:
    """Measure and write."""
    everything = (*_ON_NODE, *_ALONE)
    wanted = sys.argv[1:] or everything
    unknown = set(wanted).difference(everything)
    if unknown:
        sys.exit(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    write(this_machine(), asyncio.run(_measured(wanted)), everything)
    say(f"==> {DOCUMENT}")


if __name__ == "__main__":
    main()
