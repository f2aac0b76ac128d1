"""`make gpu-page FROM=FOLDER`: what `make gpu-cluster` measured into docs/benchmarks.md; FOLDER is where its results lie."""

import sys
from pathlib import Path

from tools.bench.report import DOCUMENT, PODS_ON_A_CARD, with_section

SECTION = "section"


def write(results: Path, document: Path = DOCUMENT) -> None:
    """Put the section in its elder's place, or at the end.

    Raises:
        FileNotFoundError: No real card was measured there.
    """
    section = (results / SECTION).read_text(encoding="utf-8")
    text = document.read_text(encoding="utf-8")
    document.write_text(with_section(text, section, PODS_ON_A_CARD), encoding="utf-8")


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]))
    except FileNotFoundError as missing:
        sys.exit(f"{missing.filename} is missing: make gpu-cluster writes it where there is a card")
    sys.stdout.write(f"==> {DOCUMENT}\n")
