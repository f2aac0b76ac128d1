"""docs/benchmarks.md."""

from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import Machine
from tests.bench.rows import Chapter

DOCUMENT = Path("docs/benchmarks.md")
_HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Medians unless said otherwise, quantiles by nearest rank;
ratios come from one run. What misses its bar stands here as missed. Nothing here needed a GPU:
cards are simulated by the NVML stand-in, kubelet and API server are the small ones of our tests
except where a real cluster is named. The agent is always the real process, over real sockets.
"""


def write(machine: Machine, chapters: Sequence[Chapter]) -> None:
    """Put everything that was measured into the document."""
    parts = [_HEAD, "\n".join(machine.lines()) + "\n"]
    parts += [_chapter(chapter) for chapter in chapters]
    DOCUMENT.write_text("\n".join(parts), encoding="utf-8")


def _chapter(chapter: Chapter) -> str:
    lines = [f"## {chapter.title}", "", chapter.method, ""]
    lines += ["| what | target | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.target} | {row.measured} | {row.verdict} |" for row in chapter.rows
    ]
    return "\n".join(lines) + "\n"
