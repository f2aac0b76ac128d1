"""How good a node is for a pod, and how nodes of different policies compare."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.fragmentation import (
    EVEN_MIX,
    PLENTY_CPU_MILLI,
    NodeRoom,
    graded,
)
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.schemes.aliyun.room import Room

_FGD = PlacementPolicy.FGD


@dataclass(frozen=True, slots=True)
class Score:
    """How good a node is; more is better, 1 is the best.

    Attributes:
        policy: The policy by which the node chooses for the pod.
        default: The controller's.
        own: By the policy; compares with nodes of the same policy only.
        common: By the default; compares with every node.
        before: What is free of each card without the pod, in thousandths; empty without `fgd`.
        after: The same with the pod.
    """

    policy: PlacementPolicy
    default: PlacementPolicy
    own: float
    common: float
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def beside(self, free_cpu_milli: int, pod_cpu_milli: int) -> "Score":
        """The score where a node has this much processor free, and the pod takes that of it.

        `fgd` alone asks: how little the pod spoils the node for others. It is below 0 where many
        cards are left without processors.
        """
        if _FGD not in (self.policy, self.default):
            return self
        left = NodeRoom(free_cpu_milli - pod_cpu_milli, self.after)
        found = graded(EVEN_MIX, NodeRoom(free_cpu_milli, self.before), left) / 100
        own = found if self.policy is _FGD else self.own
        return replace(self, own=own, common=found if self.default is _FGD else self.common)


def scored(
    before: Sequence[Room],
    after: Sequence[Room],
    uuids: Collection[str],
    policies: tuple[PlacementPolicy, PlacementPolicy],
) -> Score:
    """The score of a node with plenty of processor.

    Args:
        before: Its cards without the pod.
        after: Its cards with the pod.
        uuids: The pod's cards.
        policies: The one by which the node chooses, and the controller's default.
    """
    parts = [
        room.free_mem / max(1, room.card.capacity(room.unit))
        for room in after
        if room.card.uuid in uuids
    ]
    free = sum(parts) / max(1, len(parts))
    # By how full (binpack) or empty (spread) the pod's cards are with it on them.
    own, common = (free if policy is PlacementPolicy.SPREAD else 1.0 - free for policy in policies)
    if _FGD not in policies:
        return Score(*policies, own, common)
    cards = [tuple(room.free_milli for room in rooms) for rooms in (before, after)]
    return Score(*policies, own, common, cards[0], cards[1]).beside(PLENTY_CPU_MILLI, 0)


def comparable(scores: Sequence[Score]) -> list[float]:
    """Each by one policy: nodes' own where it is the same for all, else the default."""
    is_one = len({score.policy for score in scores}) == 1
    return [score.own if is_one else score.common for score in scores]
