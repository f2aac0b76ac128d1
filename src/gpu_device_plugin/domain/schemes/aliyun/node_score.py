"""How good a node is for a pod, and how nodes of different policies compare."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.fragmentation import EVEN_MIX, NodeRoom, graded
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.schemes.aliyun.room import Room


@dataclass(frozen=True, slots=True)
class Score:
    """How good a node is; more is better, 1 is the best.

    Attributes:
        policy: The policy by which the node chooses for the pod.
        own: By that policy; compares with nodes of the same policy only.
        common: By the controller's default policy; compares with every node.
    """

    policy: PlacementPolicy
    own: float
    common: float


@dataclass(frozen=True, slots=True)
class Spared:
    """What a node has for others: cards, and processor in thousandths of a core."""

    rooms: Sequence[Room]
    cpu_milli: int

    @property
    def node_room(self) -> NodeRoom:
        """The same in thousandths of a card."""
        return NodeRoom(self.cpu_milli, tuple(room.free_milli for room in self.rooms))


def scored(
    before: Spared,
    after: Spared,
    uuids: Collection[str],
    policies: tuple[PlacementPolicy, PlacementPolicy],
) -> Score:
    """The score of a node.

    Args:
        before: Without the pod.
        after: With it.
        uuids: Its cards.
        policies: The one by which the node chooses, and the controller's default.
    """
    policy, default = policies
    own = _score(before, after, uuids, policy)
    return Score(policy, own, own if policy is default else _score(before, after, uuids, default))


def comparable(scores: Mapping[str, Score]) -> dict[str, float]:
    """Node -> score by one policy: their own where it is the same for all, else the default."""
    is_one = len({score.policy for score in scores.values()}) == 1
    return {name: score.own if is_one else score.common for name, score in scores.items()}


def _score(before: Spared, after: Spared, uuids: Collection[str], policy: PlacementPolicy) -> float:
    """By how full (binpack) or empty (spread) the pod's cards are with it on them, 0 to 1.

    Or by how little it spoils the node (fgd): below 0 where it strands many cards without
    processors.
    """
    if policy is PlacementPolicy.FGD:
        return graded(EVEN_MIX, before.node_room, after.node_room) / 100
    parts = [
        room.free_mem / max(1, room.card.capacity(room.unit))
        for room in after.rooms
        if room.card.uuid in uuids
    ]
    free = sum(parts) / max(1, len(parts))
    return free if policy is PlacementPolicy.SPREAD else 1.0 - free
