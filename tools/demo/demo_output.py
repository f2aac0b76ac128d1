"""What the demo shows, as values; a `Teller` draws them.

The demo's promises: each is held against what the running agents did.
"""

import asyncio
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tools.harness.kubelet_pods import ContainerStart


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that the demo promises, and what it saw."""

    what: str
    expected: str
    seen: str

    @property
    def is_kept(self) -> bool:
        """Whether it saw what it promised."""
        return self.expected == self.seen


@dataclass(frozen=True, slots=True)
class NamedOffer:
    """What a node must offer after a change, and what its kubelet counts, by resource name."""

    what: str
    expected: Mapping[str, int]
    seen: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CardShare:
    """What a pod holds of one card."""

    pod: str
    units: int
    core_percent: int


@dataclass(frozen=True, slots=True)
class CardHolders:
    """One card and who holds what of it."""

    index: int
    units: int
    shares: tuple[CardShare, ...]


@dataclass(frozen=True, slots=True)
class GpuView:
    """A card as NVML tells it to a process, which is in a slice or on the node."""

    who: str
    used_mib: int
    total_mib: int
    gpu_percent: int
    processes: int

    @property
    def memory(self) -> str:
        """As nvidia-smi writes it."""
        return f"{self.used_mib}MiB / {self.total_mib}MiB"


@dataclass(frozen=True, slots=True)
class ComputeShare:
    """What a pod may have of a card's time, and what it had."""

    pod: str
    granted_percent: int
    measured_percent: float


_Seen = TypeVar("_Seen")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan")
_NARROWEST = 80
_WIDEST = 100
# What stands before a line's own text: its indent, and a word like `asked`.
_LABEL = re.compile(r" *(?:(?:asked|decided|card \d+) {2,})?")
_FOLD_AT = 40
_SHARE_SIGNS = 50
_LONG_UUID = re.compile(r"(GPU-[0-9a-f]{8})-[0-9a-f-]{27}")
_MEANINGS = {
    "NVIDIA_VISIBLE_DEVICES": "",
    "ALIYUN_COM_GPU_MEM_IDX": "NVML indexes of its cards",
    "ALIYUN_COM_GPU_MEM_DEV": "units that such a card has",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "units that this container has",
    "ALIYUN_COM_GPU_MEM_POD": "units that the whole pod has",
}


class Teller:
    """Draws for a person, in order, with rich."""

    def __init__(self, console: Console) -> None:
        console.width = min(console.width, _WIDEST)
        self._console = console
        self._edge = "│" if console.encoding.startswith("utf") else "|"
        self._chapters = 0

    def opening(self, version: str) -> None:
        """The first line, before anything takes time."""
        self._console.print(Text(f"gpu-device-plugin {version}, demo", style="bold"))

    def chapter(self, title: str, text: str) -> None:
        """A heading and its idea."""
        self._chapters += 1
        self._console.print()
        self._console.print(Text(f"{self._chapters}. {title}", style="bold"))
        self.text(text)

    def text(self, text: str) -> None:
        """A paragraph."""
        for line in self._wrap(text):
            self._line(line)

    def note(self, text: str) -> None:
        """A line."""
        self._line(text, style="italic")

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Iterable[str | Text]],
        right: Sequence[str] = (),
    ) -> None:
        """One line a row; the columns of `right` are numbers."""
        table = _table(*headings, right=right)
        for row in rows:
            table.add_row(*row)
        self._draw(table)

    def named_offers(self, offers: Sequence[NamedOffer]) -> None:
        """One line a change; a number that has changed stands out."""
        table = _table("after", "allocatable of nvidia.com/")
        before: Mapping[str, int] = {}
        for offer in offers:
            shown = Text()
            for name, count in offer.seen.items():
                is_new = before.get(name) != count
                shown.append(", " if shown else "")
                shown.append(
                    f"{name.removeprefix('nvidia.com/')}: {count}", "green" if is_new else "dim"
                )
            table.add_row(offer.what, shown)
            before = offer.seen
        self._draw(table)

    def card_map(self, node: str, cards: Sequence[CardHolders], *, has_compute: bool) -> None:
        """A bar a card, and whose letters they are; compute where the node divides it."""
        pods = dict.fromkeys(share.pod for row in cards for share in row.shares)
        marks = {pod: (_LETTERS[n], _COLOURS[n % len(_COLOURS)]) for n, pod in enumerate(pods)}
        table = _table(node, "memory", "units", right=("compute",) if has_compute else ())
        table.add_column("who")
        for row in cards:
            held = sum(share.units for share in row.shares)
            cells: list[str | Text] = [f"card {row.index}", _bar(row, marks), f"{held}/{row.units}"]
            if has_compute:
                cells.append(f"{sum(share.core_percent for share in row.shares)} %")
            table.add_row(*cells, _holders(row, marks))
        self._draw(table)

    def received(self, pod: str, node: str, received: ContainerStart) -> None:
        """Variables with their meaning, then mounts."""
        self._console.print()
        self._line(f"{pod} on {node}", style="bold")
        for name in sorted(received.env, key=_order):
            first, *others = _fold(received.env[name])
            self._line(f"  {name}={first}", _MEANINGS.get(name, ""))
            for value in others:
                self._line(f"  {' ' * len(name)} {value}")
        for path, (_, is_read_only) in sorted(received.mounts.items()):
            shown = _LONG_UUID.sub(r"\1...", path)
            self._line(f"  {'ro' if is_read_only else 'rw'} mount {shown}")

    def quote(self, who: str, text: str) -> None:
        """The plugin's own words, set off."""
        self._console.print()
        self._line(f"{who}:", style="bold")
        for line in text.rstrip("\n").splitlines():
            label = _LABEL.match(line)
            hanging = " " * (len(label[0]) if label else 0)
            for part in self._wrap(line, hanging) or [""]:
                self._console.print(Text.assemble((f" {self._edge} ", "dim"), (part, "yellow")))

    def compute_shares(self, shares: Sequence[ComputeShare]) -> None:
        """A bar a pod: what it had; `|` is what it may have."""
        bars = "0 to 100 % of the card's time, | is what was granted"
        table = _table("pod", bars, right=("had",))
        for number, share in enumerate(shares):
            colour = _COLOURS[number % len(_COLOURS)]
            bar = Text(_share_bar(share), style=colour)
            table.add_row(share.pod, bar, f"{share.measured_percent:.1f} %")
        self._draw(table)

    def promise(self, promise: Promise) -> None:
        """One line; more where it was not kept."""
        if promise.is_kept:
            line = Text.assemble(("ok", "green"), f"  {promise.what}")
            if len(line) + len(promise.seen) + 6 < _NARROWEST:
                line.append(f": {promise.seen}")
            self._console.print(Padding(line, (0, 0, 0, 3), expand=False))
            return
        self._console.print(Text.assemble("   ", ("FAILED", "bold red"), f"  {promise.what}"))
        self._line(f"  expected  {promise.expected}")
        self._line(f"  seen      {promise.seen}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner in a terminal, a line elsewhere."""
        if self._console.is_terminal:
            with self._console.status(Text(text)):
                yield
        else:
            self._line(f"... {text}")
            yield

    def closing(self, promises: Sequence[Promise], seconds: float) -> None:
        """What it all comes to."""
        broken = [promise for promise in promises if not promise.is_kept]
        self._console.print()
        kept = len(promises) - len(broken)
        style = "bold red" if broken else "bold green"
        text = f"{kept} of {len(promises)} checks passed in {seconds:.0f} s."
        self._console.print(Text(text, style=style), "Nothing of this demo is left running.")
        for promise in broken:
            self._line(f"failed: {promise.what}", style="red")

    def failed(self, text: str) -> None:
        """The demo could not go on."""
        self._console.print()
        self._console.print(Text(f"The demo failed: {text}", style="bold red"))

    def ended_early(self, text: str) -> None:
        """Somebody ended it."""
        self._console.print()
        self._console.print(f"The demo was {text}; nothing of it is left running.")

    def _line(self, text: str, meaning: str = "", style: str = "") -> None:
        line = Text(text, style=style)
        if meaning:
            line.append(f"  {meaning}", style="dim")
        self._console.print(Padding(line, (0, 0, 0, 3), expand=False))

    def _wrap(self, text: str, hanging: str = "") -> list[str]:
        return textwrap.wrap(
            text,
            self._console.width - 4,
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _draw(self, table: Table) -> None:
        self._console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _order(name: str) -> tuple[bool, int, str]:
    """Variables that we know first, in the order in which they are best understood."""
    known = list(_MEANINGS)
    return name not in known, known.index(name) if name in known else 0, name


def _fold(value: str) -> list[str]:
    """A long list, one entry a line."""
    entries = value.split(",") if len(value) > _FOLD_AT else [value]
    return [*(f"{entry}," for entry in entries[:-1]), entries[-1]]


def _bar(row: CardHolders, marks: dict[str, tuple[str, str]]) -> Text:
    bar = Text()
    for share in row.shares:
        letter, colour = marks[share.pod]
        bar.append(letter * share.units, style=f"black on {colour}")
    bar.append("." * (row.units - len(bar)), style="dim")
    return bar


def _share_bar(share: ComputeShare) -> str:
    """A sign is two percent."""
    length = min(_SHARE_SIGNS, round(share.measured_percent * _SHARE_SIGNS / 100))
    signs = list("#" * length + "." * (_SHARE_SIGNS - length))
    signs.insert(share.granted_percent * _SHARE_SIGNS // 100, "|")
    return "".join(signs)


def _holders(row: CardHolders, marks: dict[str, tuple[str, str]]) -> Text:
    who = ((marks[share.pod], share.pod) for share in row.shares)
    return Text(", ").join(Text(f"{letter} {pod}", style=colour) for (letter, colour), pod in who)


_LOOK_SECONDS = 0.05


class Promises:
    """Counts promises and tells each once."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self.made: list[Promise] = []

    @property
    def broken(self) -> list[Promise]:
        """Those that were not kept."""
        return [promise for promise in self.made if not promise.is_kept]

    def check(self, what: str, expected: object, seen: object) -> None:
        """Hold one promise against what was seen; both are compared as they are shown."""
        promise = Promise(what, show_value(expected), show_value(seen))
        self.made.append(promise)
        self._teller.promise(promise)


def show_value(value: object) -> str:
    """A value for people: `60, 400, 4` and `card 0: 6, card 1: 8` rather than brackets."""
    if isinstance(value, Mapping):
        is_deep = any(isinstance(part, Mapping | tuple | list) for part in value.values())
        parts = [f"{key}: {show_value(part)}" for key, part in sorted(value.items())]
        return ("; " if is_deep else ", ").join(parts) or "nothing"
    if isinstance(value, tuple | list):
        return ", ".join(map(show_value, value)) or "nothing"
    return str(value)


async def wait_for(look: Callable[[], Awaitable[_Seen]], wanted: object, seconds: float) -> _Seen:
    """What `look` sees: as soon as it is what is wanted, else what it saw last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if seen == wanted or loop.time() >= deadline:
            return seen
        await asyncio.sleep(_LOOK_SECONDS)
