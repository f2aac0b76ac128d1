"""docs/benchmarks.md."""

from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import Machine
from tests.bench.rows import Chapter

DOCUMENT = Path("docs/benchmarks.md")
_HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Medians unless said otherwise, quantiles by nearest rank;
ratios come from one run. What misses its bar stands here as missed. Nothing here needed a GPU,
but for the section of `make gpu` at the end, where there is one: cards are simulated by the NVML stand-in, kubelet and API server are the small ones of our tests
except where a real cluster is named. The agent is always the real process, over real sockets.
"""
_BEGIN, _END = "<!-- real card: begin -->\n", "<!-- real card: end -->\n"


def write(machine: Machine, chapters: Sequence[Chapter]) -> None:
    """Put everything that was measured here into the document; what a real card said stays."""
    before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    parts = [_HEAD, "\n".join(machine.lines()) + "\n"]
    parts += [chapter_text(chapter) for chapter in chapters]
    text = "\n".join(parts)
    if kept := kept_section(before):
        text += "\n" + kept
    DOCUMENT.write_text(text, encoding="utf-8")


def kept_section(text: str) -> str:
    """What `make gpu` wrote, with its marks; empty where there is none."""
    if _BEGIN not in text or _END not in text:
        return ""
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)]


def with_section(text: str, section: str) -> str:
    """The document with what `make gpu` measured as its last section."""
    kept = kept_section(text)
    before = text.replace(kept, "") if kept else text
    return before.rstrip("\n") + "\n\n" + _BEGIN + section + _END


def chapter_text(chapter: Chapter, *, level: int = 2) -> str:
    """Heading, method and table."""
    lines = [f"{'#' * level} {chapter.title}", "", chapter.method, ""]
    lines += ["| what | target | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.target} | {row.measured} | {row.verdict} |" for row in chapter.rows
    ]
    return "\n".join(lines) + "\n"
