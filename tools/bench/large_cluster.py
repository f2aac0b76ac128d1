"""The controller's answers in a cluster larger than today's."""

from tools.bench.extender import Size, cluster
from tools.bench.machine import cpu_seconds, resident_mib
from tools.bench.rows import Chapter, at_most, shown

_SIZE = Size(20000, 80000, 500, {1000: 10.0, 10000: 40.0}, 700)
_TITLE = "Larger than today's clusters"
_METHOD = """\
The same in a cluster of {nodes:,} nodes of {cards} V100 with {pods:,} pods with slices: the largest managed clusters have up to 65,000 nodes.
kube-scheduler asks about a sample of them.

As in [the chapter before](#the-scheduler-extender), with {rounds:,} rounds each. Until it leads: from the start of the process until
`/readyz` says that it leads. All nodes and pods come in pages of 500 from the stand-in API server, on the same cores."""


async def measure() -> Chapter:
    """Ask one controller, many times."""
    async with cluster(_SIZE) as asked:
        loaded, used = resident_mib(asked.pid), cpu_seconds(asked.pid)
        rows = await asked.play_all()
        resident = resident_mib(asked.pid)
    rows += [
        at_most("resident", resident, _SIZE.resident_mib, "MiB", 0),
        shown("resident before the first question", f"{loaded:.0f} MiB"),
        shown(
            "from its start until it leads; processor time of it",
            f"{asked.until_ready:.1f} s; {used:.1f} s",
        ),
    ]
    return Chapter(_TITLE, _METHOD.format(**_SIZE.amounts), tuple(rows))
