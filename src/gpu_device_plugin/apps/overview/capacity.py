"""How many more pods of a size fit, and where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.apps.overview.node_cards import NodeView
from gpu_device_plugin.cluster.survey_objects import SurveyedNode
from gpu_device_plugin.domain.modes import PlacementPolicy
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import PodHold
from gpu_device_plugin.domain.schemes.aliyun.node_fit import Fit, fit
from gpu_device_plugin.domain.schemes.aliyun.room import Room
from gpu_device_plugin.domain.schemes.aliyun.units import Resource


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node can still take.

    Attributes:
        node: Its name.
        pods: How many more such pods fit.
        then: Why it takes no more.
    """

    node: str
    pods: int
    then: str


def sized_pod(name: str, units: int, percent: int, cards: int) -> PodRequest:
    """A pod of one container.

    Args:
        name: To tell it from others.
        units: Memory units over all of its cards.
        percent: Percent of one card's compute; 0 asks for none.
        cards: Over how many cards.
    """
    amounts = {Resource.MEM.value: units, Resource.CORE.value: percent}
    asked = {resource: amount for resource, amount in amounts.items() if amount}
    container = ContainerRequest("main", ContainerKind.APP, 0, asked)
    label = str(cards) if cards > 1 else None
    return PodRequest(PodRef("", name, name), (container,), card_count_label=label)


def capacities(
    nodes: Iterable[NodeView],
    facts: Mapping[str, SurveyedNode],
    units: int,
    percent: int,
    cards: int,
) -> tuple[NodeCapacity, ...]:
    """For each node, how many pods of that size fit beside what it holds.

    Args:
        nodes: The nodes with cards.
        facts: All nodes, by name; one that is cordoned or not ready takes none.
        units: As of `sized_pod`.
        percent: As of `sized_pod`.
        cards: As of `sized_pod`.
    """
    closed = {name: node.closed for name, node in facts.items() if node.closed}
    return tuple(
        NodeCapacity(node.name, 0, closed[node.name])
        if node.name in closed
        else _capacity(node, units, percent, cards)
        for node in nodes
    )


def _capacity(node: NodeView, units: int, percent: int, cards: int) -> NodeCapacity:
    rooms: Sequence[Room] = node.rooms
    policy = node.offer.policy or PlacementPolicy.BINPACK
    count = 0
    while True:
        pod = sized_pod(f"one-more-{count}", units, percent, cards)
        found = fit(node.offer, rooms, pod, policy)
        if not isinstance(found, Fit):
            never = f"mode {node.mode} never takes such a pod"
            full = f"no card has room; the largest slice left is {_largest(rooms)} units"
            return NodeCapacity(node.name, count, never if found.is_final else full)
        count += 1
        rooms = _after(rooms, found.hold(pod.ref))


def _after(rooms: Sequence[Room], hold: PodHold) -> tuple[Room, ...]:
    """What is left with one pod more; pods that wait for a card stay where they were guessed."""
    taken = hold.by_card()
    return tuple(
        replace(
            room,
            free_mem=room.free_mem - taken[room.card.index][0],
            free_core=room.free_core - taken[room.card.index][1],
            pods=room.pods + 1,
        )
        if room.card.index in taken
        else room
        for room in rooms
    )


def _largest(rooms: Iterable[Room]) -> int:
    """The largest slice that is free on one healthy card, with any compute left beside it."""
    free = (r.free_mem for r in rooms if r.is_healthy and r.free_core >= r.least_core)
    return max(free, default=0)
