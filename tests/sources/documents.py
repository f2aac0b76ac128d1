"""The source documents as data: what each prints, in its order, and where this project differs from it.

A document of `data/` holds manifests, values, commands and outputs as its copy prints them, without
the prose. A test walks over the steps that it runs, in their order, and has to take each of them.

    python -m tests.sources.documents DIRECTORY     what copies of the documents have and the data lacks
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = Path(__file__).parent / "data"
NAMES_THERE = {"node": "<NODE_NAME>", "pod": "cuda-sample-m ****", "pool": "aks-mignode"}
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.yaml"))
Place = Literal["here", "cluster"]
# A mask hides one field and no line; of a date the line is the field.
FIELDS = {
    "word": r"[^\s|]+",
    "words": r"[^\s|]+(?: [^\s|]+)*",
    "date": r"\w{3} \w{3} \d+ \d\d:\d\d:\d\d \d{4}",
    "moment": r"\d{4}-\d\d-\d\d/\d\d:\d\d:\d\d",
    "about 30 percent": r"(?:1[89]|2\d|3[0-3])%",
    "card": r"GPU(?:-[0-9a-f]+){5}",
    "instance": r"MIG(?:-[0-9a-f]+){5}",
}


class Step(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Something that a document shows.

    Attributes:
        name: For people, and for the test that runs it.
        command: What the document has its reader run.
        text: A manifest, values or an output, as the copy prints it.
        read: What is damaged or cannot be had here, and what it stands for, in this order.
        restored: The same words with the line breaks or indentation that the copy has lost.
        sample: A file of the repository that is this manifest.
        masks: Regular expression of a field -> which of `FIELDS` stands in its place.
        runs: `here`, `cluster`, and other tests that show it, as file::test.
        differs: Why it is not run, or is not the same.
    """

    name: str
    command: str = ""
    text: str = ""
    read: Mapping[str, str] = {}
    restored: str = ""
    sample: str = ""
    masks: Mapping[str, str] = {}
    runs: tuple[str, ...] = ()
    differs: str = ""

    @property
    def meaning(self) -> str:
        """The text without the damage of the copy; AssertionError where `read` names what is not there."""
        text = self.text
        for printed, meant in self.read.items():
            assert printed in text + self.command, f"{self.name}: {printed!r} is not there"
            text = text.replace(printed, meant)
        if self.restored:
            assert text.split() == self.restored.split(), self.name
            return self.restored
        return text

    def words(self, **names: str) -> list[str]:
        """The command's words behind `kubectl`, with other names in the place of the source's, by these keys."""
        text = self.command
        for printed, meant in {
            **self.read,
            **{NAMES_THERE[key]: n for key, n in names.items()},
        }.items():
            text = text.replace(printed, meant)
        first, *words = shlex.split(text)
        assert first == "kubectl", self.command
        return words

    @property
    def data(self) -> Any:
        """The text, which is YAML."""
        return yaml.safe_load(self.meaning)

    @property
    def pattern(self) -> str:
        """A regular expression of what the text allows."""
        text, end, parts = collapsed(self.meaning), 0, []
        for found in self._masked(text):
            kind = list(self.masks.values())[int(found.lastindex or 0) - 1]
            parts += [re.escape(text[end : found.start()]), FIELDS[kind]]
            end = found.end()
        return "".join([*parts, re.escape(text[end:])])

    def _masked(self, text: str) -> Iterator[re.Match[str]]:
        if self.masks:
            yield from re.finditer("|".join(f"({mask})" for mask in self.masks), text)

    def bare_lines(self) -> list[str]:
        """Lines of which masks leave nothing, dates apart, and masks that hide nothing."""
        found = {index for m in self._masked(self.meaning) for index in [m.lastindex]}
        unused = [m for index, m in enumerate(self.masks, 1) if index not in found]
        fields = [mask for mask, kind in self.masks.items() if kind != "date"]
        lines = [line.strip() for line in self.meaning.splitlines() if line.strip()]
        return unused + [line for line in lines if any(re.fullmatch(m, line) for m in fields)]

    def shows(self, actual: str) -> bool:
        """Whether an output is the document's, in every character but spaces and masked fields."""
        return re.fullmatch(self.pattern, collapsed(actual)) is not None

    def check(self, actual: str) -> None:
        """AssertionError with both texts where the output is not the document's."""
        assert self.shows(actual), f"{self.name}: expected\n{self.meaning}\nis\n{actual}"


class Document(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One source; `damage` says what its copy has lost."""

    title: str
    damage: str
    steps: tuple[Step, ...]


class Walk:
    """The steps of one place, to be taken in the document's order."""

    def __init__(self, steps: list[Step]) -> None:
        self.left = steps

    def __call__(self, name: str) -> Step:
        """The next step, which has this name."""
        assert self.left, f"{name} is no further step"
        assert self.left[0].name == name
        return self.left.pop(0)


@cache
def load(name: str) -> Document:
    """A document by the name of its file."""
    return msgspec.yaml.decode((DIRECTORY / f"{name}.yaml").read_bytes(), type=Document)


@contextmanager
def walk(name: str, place: Place) -> Iterator[Walk]:
    """All steps that run at a place; AssertionError when one was left out."""
    steps = Walk([step for step in load(name).steps if place in step.runs])
    yield steps
    assert [step.name for step in steps.left] == []


def collapsed(text: str) -> str:
    """One line with single spaces, and none beside the lines of a table."""
    return re.sub(r"\s*([|+])\s*", r"\1", " ".join(text.split()))


_TECHNICAL = re.compile(
    r"[\w./:<>${}\"'-]*(?:[-_./:=$<>\"0-9]|[A-Z]{2})[\w./:<>${}\"'-]*", re.ASCII
)


def _technical(text: str) -> set[str]:
    return {word.strip("\"':.<>-") for word in _TECHNICAL.findall(text)} - {""}


def missing(copy: str) -> dict[str, list[str]]:
    """Technical words of a document that its data lacks, by the data file whose words it has most of."""
    words = _technical(copy)
    lacking = {name: words - _technical((DIRECTORY / f"{name}.yaml").read_text()) for name in NAMES}
    name = min(lacking, key=lambda each: len(lacking[each]))
    return {name: sorted(lacking[name])}


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).iterdir()):
        for document, lacks in missing(path.read_text()).items():
            sys.stdout.write(f"{path.name}: {document} lacks {' '.join(lacks)}\n")
