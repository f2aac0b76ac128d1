"""Writes the tables of docs/settings.md from the settings of the programs: `python -m tools.settings_page`.

tests/test_docs.py checks that the page is up to date.
"""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from gpu_device_plugin.cli.setting_options import in_help_order
from gpu_device_plugin.settings.agent_settings import Settings
from gpu_device_plugin.settings.controller_settings import ControllerSettings
from gpu_device_plugin.settings.setting import Setting

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
_HEAD = "| flag | default | effect |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def text() -> str:
    """The page, with a table for each group of `--help`, in its order."""
    groups = (
        _HEAD + "".join(map(_row, group))
        for kind in (Settings, ControllerSettings)
        for _, group in itertools.groupby(in_help_order(kind), lambda each: each.heading)
    )
    made = _TABLE.sub(lambda _: next(groups), PAGE.read_text(encoding="utf-8"))
    if left := next(groups, None):
        raise ValueError(f"{PAGE.name} has too few tables: {left}")
    return made


def _row(each: Setting) -> str:
    default = "off" if each.default is False else "none"
    effect = each.text + (f" One of {_names(each.choices)}." if each.choices else "")
    if others := [name for name in each.variables[1:] if name not in effect]:
        effect += f" Also {_names(others)}."
    return f"| `{each.flag}` | {_names([each.shown_default]) or default} | {effect} |\n"


def _names(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
