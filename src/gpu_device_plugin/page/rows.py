"""What the page shows of a node: cards as bars, and the places of slices on them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.grants.node_annotations import fault_reason
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode
from gpu_device_plugin.overview.live_cluster import FollowedPod
from gpu_device_plugin.overview.node_cards import CardView, NodeCards, PodShare
from gpu_device_plugin.overview.verdicts import amounts_text
from gpu_device_plugin.page.uses import PodUse, UseOf

COLOURS = 8
_BAR_PIXELS, _LETTER_PIXELS, _GLYPH_PIXELS, _FEW = 144, 18, 6.5, 3  # of page.css, and its font
_POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "alibabacloud.com/nodepool-id",
    "karpenter.sh/nodepool",
)


class Colours:
    """A colour for each namespace, 0 to 7, in the order in which they are first asked for.

    >>> colours = Colours()
    >>> colours.of("search"), colours.of("vision"), colours.of("search")
    (0, 1, 0)
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str, int] = {}

    def of(self, namespace: str) -> int:
        """The namespace's; beyond eight namespaces, colours are given again."""
        return self._by_namespace.setdefault(namespace, len(self._by_namespace) % COLOURS)


@dataclass(frozen=True, slots=True)
class SliceRow:
    """A pod's part of a bar.

    Attributes:
        letter: The pod's letter on this node, as `kubectl gpu map` has it.
        kind: Classes of the stylesheet: the namespace's colour, and whether it is only reserved.
        start: Where it begins, in percent of the bar.
        width: How wide it is, as above.
        text: For people, all of it.
        memory: Percent of its memory that is used, at most 100; None while it is not known.
    """

    pod: str
    name: str
    letter: str
    kind: str
    start: float
    width: float
    text: str
    memory: int | None

    @property
    def label(self) -> str:
        """As much of its name as the narrowest bar shows beside the letter."""
        most = int((_BAR_PIXELS * self.width / 100 - _LETTER_PIXELS) // _GLYPH_PIXELS)
        if len(self.name) <= most:
            return self.name
        return f"{self.name[: most - 2]}…" if most > _FEW else ""


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card.

    Attributes:
        held: Memory units that are held.
        percent: Percent of compute that is held; None where the mode does not divide it.
        asked_start: Where the part begins that pods without a card ask for, in percent of the bar.
        asked_width: How wide that part is; 0 for none.
        is_open: Whether a new pod may get a slice of it: healthy, on a node that takes pods.
        room: Units and percent that one container more may ask here.
    """

    card: CardView
    held: int
    percent: int | None
    slices: tuple[SliceRow, ...]
    asked_start: float
    asked_width: float
    is_open: bool = False
    room: tuple[int, int] = (0, 0)

    @property
    def fill(self) -> float:
        """The part of it that is held, 0 to 1; of a card that is given whole 0 or 1."""
        if self.card.pods:
            return 1
        return round(min(1, self.held / self.card.units), 2) if self.card.units else 0

    @property
    def is_stranded(self) -> bool:
        """Whether units are free that nobody can ask for, because no compute is left beside them."""
        has_none = self.percent is not None and self.card.free_percent == 0
        return self.is_open and self.card.free_units > 0 and has_none

    @property
    def warning(self) -> str:
        """Why a new pod gets nothing of what is free; empty where it may."""
        if not self.card.is_healthy:
            return ": ".join(filter(None, ("unhealthy", fault_reason(self.card.fault))))
        return "no compute left" if self.is_stranded else ""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node.

    Attributes:
        kind: Mode, unit and models, for people.
        marks: What is wrong with it, each in one or two words.
        states: For the filter: those of `NODE_STATES`.
        held: Memory units that are held.
        units: Memory units that it has; 0 where it gives whole cards, replicas or instances.
        waiting: Pods bound to it that have no card yet, with the units they ask for.
        instances: MIG instances, with who holds them.
        trouble: Why its cards cannot be read; empty if they can.
        places: What nodes are grouped by -> the node's: `model`, `pool` and `zone`.
    """

    name: str
    kind: str = ""
    marks: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    held: int = 0
    units: int = 0
    cards: tuple[CardRow, ...] = ()
    waiting: Mapping[PodRef, int] = field(default_factory=dict)
    instances: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict)
    trouble: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def percent(self) -> int:
        return 100 * self.held // self.units if self.units else 0

    @property
    def free(self) -> int:
        """Units that a new pod may ask for, over all its cards."""
        return sum(row.room[0] for row in self.cards)

    @property
    def largest(self) -> int:
        """The most of them that lie on one card."""
        return max((row.room[0] for row in self.cards), default=0)


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod without a node, or one that a node has refused; `owner` is what made it, `asks` for how much."""

    namespace: str
    name: str
    why: str
    is_refused: bool
    owner: str = ""
    asks: str = ""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """Pods without a card that one owner has made and that are alike but for their names."""

    first: PodRow
    pods: tuple[str, ...]


def pod_groups(pods: Iterable[PodRow]) -> list[PodGroup]:
    """The pods by owner, size and reason; a pod that nothing has made is a group of its own."""
    groups: dict[PodRow, list[PodRow]] = {}
    for pod in pods:
        groups.setdefault(replace(pod, name="") if pod.owner else pod, []).append(pod)
    return [
        PodGroup(found[0], tuple(f"{each.namespace}/{each.name}" for each in found))
        for found in groups.values()
    ]


def node_row(
    node: SurveyedNode,
    view: NodeCards | str,
    use_of: UseOf,
    colours: Colours,
    *,
    is_whole: bool = True,
) -> NodeRow:
    """A node with its cards, or with the reason why they cannot be read.

    Of one that is not shown whole (`NodeCards.of_namespace`) nobody sees what is free.
    """
    name, places = node.metadata.name, dict(_places(node))
    if isinstance(view, str):
        return NodeRow(name, marks=node.marks, states=("unhealthy",), trouble=view, places=places)
    sick, marks = sum(not card.is_healthy for card in view.cards), view.closed
    marks += (f"{sick} unhealthy",) if sick else ()
    states = view.states if is_whole else tuple(s for s in view.states if s not in ("free", "full"))
    return NodeRow(
        name,
        view.kind_text,
        marks,
        states,
        tuple(sorted(view.namespaces)),
        view.held_units,
        view.units if view.has_memory else 0,
        tuple(_cards(view, use_of, colours, takes_pods=is_whole and not view.closed)),
        view.waiting,
        view.instances,
        places=places | {"model": few(sorted({card.model for card in view.cards}))},
    )


def pod_row(followed: FollowedPod) -> PodRow:
    """A pod without a card."""
    pod, is_refused, asks = followed.pod, followed.is_refused, amounts_text(followed.asking)
    why = f"on {pod.spec.node_name}" if is_refused else pod.condition("PodScheduled").reason
    owner = pod.metadata.owner
    made_by = f"{owner.kind} {owner.name}" if owner else ""
    return PodRow(pod.metadata.namespace, pod.metadata.name, why, is_refused, made_by, asks)


def _places(node: SurveyedNode) -> Iterator[tuple[str, str]]:
    """Its zone, and its pool by the label of the first cloud that has one."""
    yield "zone", node.labels.get("topology.kubernetes.io/zone", "")
    yield "pool", next((node.labels[key] for key in _POOL_LABELS if key in node.labels), "")


def _cards(
    view: NodeCards, use_of: UseOf, colours: Colours, *, takes_pods: bool
) -> Iterator[CardRow]:
    letters, has_compute = view.letters, view.has_compute
    for card in view.cards:
        slices, held = [], 0
        whole = max(card.units, card.held_units, 1)
        for holder in card.holders:
            use, pod = use_of(holder.pod, card.index), holder.pod
            kind = f"c{colours.of(pod.namespace)}" + ("" if holder.is_granted else " reserved")
            start, width = round(100 * held / whole, 2), round(100 * holder.units / whole, 2)
            text, memory = _slice_text(card, holder, use), use.memory
            used = None if memory is None else min(memory, 100)
            letter = letters[pod]
            slices.append(SliceRow(str(pod), pod.name, letter, kind, start, width, text, used))
            held += holder.units
        width = round(100 / max(1, len(card.pods)), 2)
        for number, pod in enumerate(card.pods):
            start = round(100 * number / len(card.pods), 2)
            text = f"{pod}: {'the whole card' if len(card.pods) == 1 else 'a replica'}"
            kind, letter = f"c{colours.of(pod.namespace)}", letters[pod]
            slices.append(SliceRow(str(pod), pod.name, letter, kind, start, width, text, None))
        has_asked = card.is_healthy and view.has_memory
        asked = max(0, card.units - held - card.free_units) if has_asked else 0
        percent = sum(holder.percent for holder in card.holders) if has_compute else None
        start, width = round(100 * held / whole, 2), round(100 * asked / whole, 2)
        is_open = takes_pods and has_asked
        room = view.room(card) if is_open else (0, 0)
        yield CardRow(card, held, percent, tuple(slices), start, width, is_open, room)


def _slice_text(card: CardView, holder: PodShare, use: PodUse) -> str:
    text = f"{holder.pod}: {holder.units} of {card.units} units"
    text += f", {holder.percent} % compute" if holder.percent else ""
    uses = "uses" if card.is_healthy else "last known use:"
    text += f", {uses} {use.memory} % of its memory" if use.memory is not None else ""
    text += f", {use.compute} % of the card's time" if use.compute is not None else ""
    text += f", {holder.enforcers}" if holder.enforcers else ""
    return text if holder.is_granted else text + ", reserved"
