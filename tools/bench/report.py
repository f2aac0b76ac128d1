"""docs/benchmarks.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.bench.machine import Machine
from tools.bench.rows import Chapter

DOCUMENT = Path("docs/benchmarks.md")
_HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Medians unless said otherwise, quantiles by nearest rank;
both figures of a ratio come from one run. What misses its target is marked so. Nothing here needed a GPU,
but for the section of `make gpu` at the end, where there is one: cards are simulated by the NVML
stand-in, kubelet and API server are the small ones of our tests except where a real cluster is named.
The agent is always the real process, over real sockets. A chapter can be measured alone; each says
when, and how busy the machine was just before.
"""
_REAL_CARD = "real card"


def write(machine: Machine, measured: Mapping[str, Sequence[str]], order: Sequence[str]) -> None:
    """Put what was measured here into the document; whatever else it says stays.

    Args:
        machine: This one.
        measured: Name of a chapter -> when it was measured, and its text.
        order: All names, as they stand in the document.
    """
    before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    text = before[max(before.find("<!-- "), 0) :]
    kept = kept_section(text)
    for name in order:
        known = _between_marks(text, name)
        if name in measured and known is not None:
            text = text.replace(_marked(name, known), _marked(name, "\n".join(measured[name])))
        elif known is None:
            missing = f"## {name}\n\nNot measured yet: `python -m tools.bench {name}`.\n"
            section = _marked(name, "\n".join(measured.get(name, [missing])))
            text = text.removesuffix(kept).rstrip("\n") + "\n\n" + section + "\n" + kept
    head = [_HEAD, *machine.lines(), "", text.lstrip("\n")]
    DOCUMENT.write_text("\n".join(head), encoding="utf-8")


def kept_section(text: str) -> str:
    """What `make gpu` wrote, with its marks; empty where there is none."""
    found = _between_marks(text, _REAL_CARD)
    return "" if found is None else _marked(_REAL_CARD, found)


def with_section(text: str, section: str) -> str:
    """The document with what `make gpu` measured as its last section."""
    kept = kept_section(text)
    before = text.replace(kept, "") if kept else text
    return before.rstrip("\n") + "\n\n" + _marked(_REAL_CARD, section)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"


def _marked(name: str, text: str) -> str:
    begin, end = _marks(name)
    return begin + text + end


def _between_marks(text: str, name: str) -> str | None:
    """The part of that name, without its marks; None where there is none."""
    begin, end = _marks(name)
    if begin not in text or end not in text:
        return None
    return text[text.index(begin) + len(begin) : text.index(end)]


def chapter_text(chapter: Chapter, *, level: int = 2) -> str:
    """Heading, method and table."""
    lines = [f"{'#' * level} {chapter.title}", "", chapter.method, ""]
    lines += ["| what | target | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.target} | {row.measured} | {row.verdict} |" for row in chapter.rows
    ]
    return "\n".join(lines) + "\n"
