"""What the demo shows, as values; a `Teller` draws them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


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
class Offered:
    """What a kubelet counts of one node: memory units, percent of compute, cards.

    Attributes:
        node: The node.
        mode: Its mode.
        cards: Its cards, in words.
        amounts: Allocatable of the three resources; None where the mode does not offer one.
    """

    node: str
    mode: str
    cards: str
    amounts: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class NamedOffer:
    """What a node must offer after a change, and what its kubelet counts, by resource name."""

    what: str
    expected: Mapping[str, int]
    seen: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the admission of a pod ended; `gets` names cards and memory, or why it was refused."""

    pod: str
    node: str
    asks: str
    is_admitted: bool
    gets: str


@dataclass(frozen=True, slots=True)
class Share:
    """What a pod holds of one card."""

    pod: str
    units: int
    core_percent: int


@dataclass(frozen=True, slots=True)
class CardRow:
    """One card and who holds what of it."""

    index: int
    units: int
    is_healthy: bool
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class CardMap:
    """A node's cards; `has_compute` tells whether the node divides compute."""

    node: str
    mode: str
    has_compute: bool
    cards: tuple[CardRow, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """What a container was started with."""

    pod: str
    node: str
    env: Mapping[str, str]
    mounts: Mapping[str, tuple[str, bool]]


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


@dataclass(frozen=True, slots=True)
class RealCard:
    """A card of this very machine."""

    index: int
    model: str
    uuid: str
    memory_mib: int
    remark: str


class Teller(Protocol):
    """Draws for a person, in order."""

    def chapter(self, title: str, text: str) -> None:
        """Begin a block: a heading, and its one idea in a sentence or two."""

    def text(self, text: str) -> None:
        """Say something more."""

    def note(self, text: str) -> None:
        """Say something that was measured."""

    def offers(self, offers: Sequence[Offered]) -> None:
        """Show what nodes offer."""

    def named_offers(self, offers: Sequence[NamedOffer]) -> None:
        """Show what a node offers after one change after the other."""

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Show what became of pods."""

    def card_map(self, card_map: CardMap) -> None:
        """Show who holds what."""

    def received(self, received: Received) -> None:
        """Show what a container received."""

    def quote(self, who: str, text: str) -> None:
        """Show the very words of the plugin, and where a person finds them."""

    def gpu_views(self, views: Sequence[GpuView]) -> None:
        """Show what NVML tells to each."""

    def compute_shares(self, shares: Sequence[ComputeShare]) -> None:
        """Show what each had of a card's time."""

    def real_cards(self, cards: Sequence[RealCard]) -> None:
        """Show the cards of this machine."""

    def promise(self, promise: Promise) -> None:
        """Show whether a promise was kept."""

    def waiting(self, text: str) -> AbstractContextManager[None]:
        """Show that something is going on, for as long as it does."""
