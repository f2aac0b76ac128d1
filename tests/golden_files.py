"""Texts that tests compare byte for byte, one file each; `make golden` writes them again."""

import os
from pathlib import Path

DIRECTORY = Path(__file__).parent / "golden"


def same_as_golden_file(name: str, text: str) -> None:
    """The text is what the file holds."""
    path = DIRECTORY / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
