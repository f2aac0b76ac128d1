"""`make gpu-page FROM=FOLDER`: what `make gpu-cluster` measured into docs/benchmarks.md; FOLDER is where its results lie."""

import json
import sys
from pathlib import Path

from tools.bench.report import (
    DOCUMENT,
    PODS_ON_A_CARD,
    REAL_CARD,
    chapter_text,
    section_of,
    with_section,
)
from tools.bench.rows import Chapter, Row

ROWS, BARE = "rows.json", "bare-card"
"""The cluster's, after each step; and what the checks without one make of it, at their end."""

METHOD = """\
Whether a pod of a whole Kubernetes gets its slice of a real card and keeps it, and what two models get of one card. `make gpu-cluster`
measured it on {date} on Linux {kernel}.

One node, the chart's agents, cards by CDI, programs of the machine in pods. A share is what a program completes in its pod, against the
same program outside right before. Each model writes one token after another; those without a slice have the card as NVIDIA's NRI plugin
gives it. Two begin at the same moment, and each figure is one window."""


def write(results: Path, document: Path = DOCUMENT) -> None:
    """Put the sections in their elders' places, or at the end: of a run that was cut off, what it has.

    Raises:
        FileNotFoundError: No real card was measured there.
    """
    found = {PODS_ON_A_CARD: _pods(results / ROWS), REAL_CARD: _bare(results / BARE)}
    if not any(found.values()):
        raise FileNotFoundError(f"{results} has neither {ROWS} nor {BARE} of a real card")
    text = document.read_text(encoding="utf-8")
    for name, section in found.items():
        text = with_section(text, section, name) if section else text
    document.write_text(text, encoding="utf-8")


def _pods(file: Path) -> str | None:
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if content.get("simulated", True):
        return None
    rows = [Row(**row) for step in content["steps"].values() for row in step["rows"]]
    return chapter_text(Chapter("In pods, on a real card", METHOD.format(**content), tuple(rows)))


def _bare(file: Path) -> str | None:
    return section_of(file.read_text(encoding="utf-8"), REAL_CARD) if file.exists() else None


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]))
    except FileNotFoundError as missing:
        sys.exit(f"{missing}; make gpu-cluster writes them where there is a card")
    sys.stdout.write(f"==> {DOCUMENT}\n")
