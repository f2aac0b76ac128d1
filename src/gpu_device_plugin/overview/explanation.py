"""What a reason, an Event, an XID or an alert means and what to do, as the docs have it.

`words.json` has the rows of docs/troubleshooting.md and docs/operations/events.md, and the runbooks of alerts;
tools/words_file.py makes it.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from gpu_device_plugin.domain.cards.fault_cures import fault_cure

_XID = re.compile(r"(?:xid[ _:-]*)?(\d{1,5})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One meaning of a word: where it is met, what it means, and what to do; `cure` is empty where there is nothing to do."""

    word: str
    met: str
    meaning: str
    cure: str


def explain(word: str) -> tuple[Explanation, ...]:
    """All meanings of a word, whatever its case; empty for one that is not known."""
    rows = _rows()
    if found := _XID.fullmatch(word):
        name = f"XID{int(found[1])}"
        meaning = next(
            (row.meaning for row in rows.get(name, ())), "an XID that is not in the table"
        )
        cure = "" if " ignore" in meaning or " report" in meaning else fault_cure(name)
        return (Explanation(name, "an XID of the driver", meaning, cure),)
    by_name = {name.lower(): found for name, found in rows.items()}
    word = word.lower()
    return tuple(by_name.get(word, ()) or by_name.get(word.removesuffix("over"), ()))


def near(word: str) -> list[str]:
    """Known words that are like this one."""
    by_name = {name.lower(): name for name in _rows()}
    return [by_name[each] for each in difflib.get_close_matches(word.lower(), by_name, 3)]


def _rows() -> Mapping[str, list[Explanation]]:
    text = resources.files(__package__).joinpath("words.json").read_text(encoding="utf-8")
    found: dict[str, list[Explanation]] = {}
    for row in json.loads(text):
        found.setdefault(row[0], []).append(Explanation(*row))
    return found
