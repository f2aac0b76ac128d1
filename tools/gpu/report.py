"""The section "On a real card" of docs/benchmarks.md, between marks that `make bench` respects."""

import datetime
import platform
from collections.abc import Sequence
from pathlib import Path

from tools.bench.report import chapter_text, with_section
from tools.bench.rows import Chapter
from tools.gpu.card import Card

MIB = 1024 * 1024


def write(
    document: Path, card: Card, chapters: Sequence[Chapter], left: Sequence[str] = ()
) -> None:
    """Puts the section into the document, in the old one's place or at the end.

    Args:
        document: docs/benchmarks.md.
        card: What was measured.
        chapters: What was measured of it.
        left: Chapters for which there was no time.
    """
    before = document.read_text(encoding="utf-8") if document.exists() else "# Benchmarks\n"
    document.write_text(with_section(before, section(card, chapters, left)), encoding="utf-8")


def section(card: Card, chapters: Sequence[Chapter], left: Sequence[str]) -> str:
    """The machine, then a table a chapter."""
    date = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    head = [
        "## On a real card",
        "",
        "Whether the limits hold on a real card, and what they cost there, without Kubernetes. ",
        f"`make gpu` writes it. One card, {_beside(card)}; its modes and clocks are as they were found.",
        "",
        f"- Card: {card.name}, {card.total_bytes // MIB} MiB",
        f"- Driver {card.driver}, CUDA {card.cuda}; Linux {platform.release()}",
        f"- Date: {date}",
        "",
        *_list("Not measured, for lack of time:", left),
        *_list("Missed:", missed(chapters)),
        *_list("Not run:", not_run(chapters)),
    ]
    parts = [chapter_text(chapter, level=3) for chapter in chapters]
    return "\n".join(["\n".join(head), *parts])


def _beside(card: Card) -> str:
    if not card.pids:
        return "nothing else on it"
    return (
        f"**used by other processes too ({len(card.pids)})**, so that figures of time and memory are not the "
        "library's alone"
    )


def missed(chapters: Sequence[Chapter]) -> list[str]:
    """One line for each check that failed."""
    rows = [row for chapter in chapters for row in chapter.rows]
    return [f"{r.what}: {r.measured}, wanted {r.target}" for r in rows if r.is_met is False]


def not_run(chapters: Sequence[Chapter]) -> list[str]:
    """One line for each check that this machine cannot make, with the reason."""
    rows = [row for chapter in chapters for row in chapter.rows]
    return [f"{r.what}: {r.measured}" for r in rows if r.measured.startswith("not run: ")]


def _list(head: str, lines: Sequence[str]) -> list[str]:
    return [head, "", *(f"- {line}" for line in lines), ""] if lines else []
