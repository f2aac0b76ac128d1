"""What pods were answered, kept for those that ask alike.

Pods come in many copies, and few nodes change between two of them; and of thousands of nodes many
have the same left.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import NodeOffer
from gpu_device_plugin.domain.schemes.aliyun.node_fit import Checked, Misfit, Score, checked, tried
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.rules import MOST_CONTAINERS

Answer = Score | Misfit
_MOST_SHAPES = 64
_MOST_ANSWERS = 100_000
_MOST_KINDS = 1_000
_Asked = tuple[object, str | None, str | None, str | None, int | None]


@dataclass(slots=True)
class Answers:
    """What pods of one shape were answered.

    Attributes:
        pod: The first of them.
        default: The controller's policy.
        counts_processors: Whether any node is scored by the processor that it has free.
        by_node: The answer for a node, until it changes.
        by_kind: For nodes with the same left, and plenty of processor.
        by_free: The same with so much processor.
        by_rules: For nodes of one mode, unit, bound and policy, whatever they have left.
    """

    pod: PodRequest
    default: PlacementPolicy
    counts_processors: bool
    by_node: dict[str, Answer] = field(default_factory=dict)
    by_kind: dict[int, Answer] = field(default_factory=dict)
    by_free: dict[tuple[int, int], Score] = field(default_factory=dict)
    by_rules: dict[object, Checked | Misfit] = field(default_factory=dict)

    def of_kind(
        self, kind: int, offer: NodeOffer, rooms: Sequence[Room], free_milli: int | None
    ) -> Answer:
        """The answer for a node.

        Args:
            kind: The same for nodes with the same left.
            offer: What the node offers.
            rooms: What its cards have left.
            free_milli: Its free processor, or None where that does not count.
        """
        found = self.by_kind.get(kind)
        if found is None:
            found = self.by_kind[kind] = self._tried(offer, rooms)
        if isinstance(found, Misfit) or free_milli is None:
            return found
        at = kind, free_milli
        if at not in self.by_free:
            self.by_free[at] = found.beside(free_milli, self.pod.cpu_milli)
        return self.by_free[at]

    def checked(self, offer: NodeOffer) -> Checked | Misfit:
        """The pod by the rules of nodes as this one, once for all of them."""
        rules = offer.mode, offer.unit, offer.max_pods, offer.policy
        if rules not in self.by_rules:
            self.by_rules[rules] = checked(offer, self.pod, self.default)
        return self.by_rules[rules]

    def _tried(self, offer: NodeOffer, rooms: Sequence[Room]) -> Answer:
        """The answer for a node with plenty of processor."""
        asked = self.checked(offer)
        found = asked if isinstance(asked, Misfit) else tried(offer, rooms, asked)
        return found if isinstance(found, Misfit) else found.score

    def trim(self) -> None:
        """Bound what is kept beside the answers for nodes."""
        for kept in (self.by_kind, self.by_free, self.by_rules):
            if len(kept) > _MOST_KINDS:
                kept.clear()


class KeptAnswers:
    """The answers of as many shapes as are asked for lately: what was asked longest ago goes."""

    def __init__(self, default: PlacementPolicy) -> None:
        self._default = default
        self._shapes: OrderedDict[_Asked, Answers] = OrderedDict()

    def __len__(self) -> int:
        """How many there are for nodes."""
        return sum(len(answers.by_node) for answers in self._shapes.values())

    def to(self, pod: PodRequest, *, counts_processors: bool) -> Answers:
        """What pods were answered that ask as this one does."""
        # Of a pod with any number of containers so many are kept as tell that they are too many.
        asking = pod.asking[: MOST_CONTAINERS + 1]
        pod = replace(pod, containers=asking, wish=(), init_wish=())
        cpu = pod.cpu_milli if counts_processors else None
        asked = _shape(pod), pod.card_count_label, pod.placement, pod.card_label, cpu
        answers = self._shapes.get(asked)
        if answers is None:
            answers = self._shapes[asked] = Answers(pod, self._default, counts_processors)
        self._shapes.move_to_end(asked)
        answers.trim()
        while len(self._shapes) > 1 and (
            len(self._shapes) > _MOST_SHAPES or len(self) > _MOST_ANSWERS
        ):
            self._shapes.popitem(last=False)
        return answers

    def forget(self, node: str) -> None:
        """A node has changed."""
        for answers in self._shapes.values():
            answers.by_node.pop(node, None)


def _shape(pod: PodRequest) -> object:
    """What an answer depends on of a pod's containers."""
    return tuple((c.kind, c.index, frozenset(c.amounts.items())) for c in pod.containers)
