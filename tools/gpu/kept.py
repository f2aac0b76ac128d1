"""Chapters that were measured, so that a run which is interrupted can go on."""

import contextlib
import hashlib
import json
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.rows import Row
from tools.gpu.card import Card
from tools.gpu.place import CheckError


class Kept:
    """A file of rows by chapter; another card, driver or library begins again."""

    def __init__(self, file: Path, card: Card, library: Path) -> None:
        self._file = file
        digest = hashlib.sha256(library.read_bytes()).hexdigest()
        self._card = f"{card.uuid} {card.driver} {digest}"
        self._chapters: dict[str, list[dict[str, Any]]] = {}
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError, KeyError):
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["card"] == self._card:
                self._chapters = content["chapters"]

    def rows(self, chapter: str) -> list[Row] | None:
        """What was measured; None where the chapter did not run to its end."""
        rows = [Row(**row) for row in self._chapters.get(chapter, [])]
        is_whole = rows and not any("the check itself" in row.what for row in rows)
        return rows if is_whole else None

    def save(self, chapter: str, rows: list[Row]) -> None:
        """Written at once: the machine may be gone the next moment."""
        self._chapters[chapter] = [asdict(row) for row in rows]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = {"card": self._card, "chapters": self._chapters}
        self._file.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def forget(self) -> None:
        """All was measured: the next run begins again."""
        self._file.unlink(missing_ok=True)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends what runs longer.

    Raises:
        CheckError: It did.
    """

    def stop(*_: object) -> None:
        raise CheckError(f"ended after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
