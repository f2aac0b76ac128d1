"""Makes src/gpu_device_plugin/overview/words.json, what `kubectl gpu explain` knows: tables of two pages, runbooks of two."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
WORDS = _ROOT / "src/gpu_device_plugin/overview/words.json"
_MET = {
    "The request is never valid here": "a refusal of a pod",
    "No card has room now": "a refusal of a pod",
    "Claims": "a refusal of a claim",
    "The agent cannot tell which pod is asking": "a refusal of a pod",
    "The node cannot serve anyone": "a refusal of a pod",
    "A container may not start": "a refusal of a container's start",
    "A resize": "a refusal of a resize",
    "Events on a pod that are no refusals": "an Event on a pod",
    "Events on a ConfigMap": "an Event on a ConfigMap",
    "Events": "an Event on a node",
    "XIDs": "an XID of the driver",
}


def words() -> str:
    """The content of the file."""
    pages = ("docs/troubleshooting.md", "docs/operations/events.md")
    rows = [row for page in pages for row in _rows((_ROOT / page).read_text(encoding="utf-8"))]
    pages = ("docs/operations/alerts.md", "docs/controller.md")
    rows += [row for page in pages for row in _runbooks((_ROOT / page).read_text(encoding="utf-8"))]
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def _rows(text: str) -> Iterator[list[str]]:
    met = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"#+ (.*)", line):
            met = _MET.get(heading[1], "")
        cells = [_plain(cell) for cell in re.split(r"(?<!\\) \| ", line.strip("| "))]
        names = line.split("|")[1] if line.startswith("|") else ""
        if not met or len(cells) < 2:
            continue
        if met == _MET["XIDs"]:
            if cells[0].isdigit():
                yield [f"XID{cells[0]}", met, f"{cells[1]}; action by default: {cells[2]}", ""]
            continue
        for name in re.findall(r"`([A-Za-z]+)`", names):
            meaning = cells[1] if len(cells) < 4 else f"{cells[2]}. It says: {cells[1]}"
            yield [name, met, meaning, cells[-1] if len(cells) > 2 else ""]


def _runbooks(text: str) -> Iterator[list[str]]:
    for name, body in re.findall(
        r"^##+ (Gpu\w+)\n\n(.*?)(?=\n#|\Z)", text, re.MULTILINE | re.DOTALL
    ):
        severity, _, told = re.sub(r"\s+", " ", body).strip("* ").partition(".* ")
        yield [name, f"an alert, {severity.lower()}", _plain(told), ""]


def _plain(cell: str) -> str:
    """Without marks of code and links."""
    # In brackets is only a link, to a page that the reader may not have.
    cell = re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)", "", cell)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip(" |")


if __name__ == "__main__":
    WORDS.write_text(words(), encoding="utf-8")
