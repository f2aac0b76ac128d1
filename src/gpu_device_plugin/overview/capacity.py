"""How many more pods of a size fit, and where."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.fractions.demands import demand
from gpu_device_plugin.domain.fractions.node_fit import OTHER_MODE, Fit, fit
from gpu_device_plugin.domain.fractions.request_rules import CORE_STEP_PERCENT
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import ConfigError, RequestError
from gpu_device_plugin.overview.node_cards import ClusterCards, NodeCards
from gpu_device_plugin.overview.verdicts import closed_text, rule_text


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """How many more such pods a node can take, and `then` why it takes no more."""

    node: str
    pods: int
    then: str


def one_more(units: int, percent: int, cards: int) -> PodRequest:
    """A pod of one container: memory units over all `cards`, percent of one card's compute (0: none).

    ConfigError: No pod may ask for so many percent.
    """
    if percent % CORE_STEP_PERCENT:
        wanted = f"wanted a multiple of {CORE_STEP_PERCENT}"
        raise ConfigError(f"PERCENT: {percent} is not valid: {wanted}")
    amounts = {Resource.MEM.value: units, Resource.CORE.value: percent}
    asked = {resource: amount for resource, amount in amounts.items() if amount}
    container = ContainerRequest("main", ContainerKind.APP, 0, asked)
    label = str(cards) if cards > 1 else None
    return PodRequest(PodRef("", "one-more", "one-more"), (container,), card_count_label=label)


def capacities(cluster: ClusterCards, pod: PodRequest) -> tuple[NodeCapacity, ...]:
    """For each node, how many such pods fit beside what it holds, the most first.

    A node that is cordoned or not ready takes none, nor does one that cannot be read.
    """
    found = [
        NodeCapacity(name, 0, f"unreadable: {why}") for name, why in cluster.unreadable.items()
    ]
    found += (_capacity(node, pod) for node in cluster.nodes)
    return tuple(sorted(found, key=lambda each: (-each.pods, each.node)))


def _capacity(node: NodeCards, pod: PodRequest) -> NodeCapacity:
    if node.marks:
        return NodeCapacity(node.name, 0, closed_text(node.marks))
    rooms: Sequence[Room] = node.rooms
    policy = node.offer.policy or PlacementPolicy.BINPACK
    pod = replace(pod, allocation_api=node.offer.allocation_api)
    count = 0
    while True:
        found = fit(node.offer, rooms, pod, policy)
        if not isinstance(found, Fit):
            return NodeCapacity(node.name, count, _then(node, rooms, pod))
        count += 1
        taken = found.hold.by_card()
        # Pods that wait for a card stay where they were guessed.
        rooms = [
            room.without(*taken[room.card.index], 1) if room.card.index in taken else room
            for room in rooms
        ]


def _then(node: NodeCards, rooms: Sequence[Room], pod: PodRequest) -> str:
    """Why a node takes no such pod more."""
    try:
        wanted = demand(pod, pod.containers[0], node.offer.terms)
    except RequestError as error:
        is_mode = error.reason in OTHER_MODE
        rule = rule_text(error)
        return f"never, in mode {node.mode}: {rule.partition(';')[0]}" if is_mode else rule
    serving = [room for room in rooms if room.is_healthy]
    if not serving:
        return "every card is unhealthy"
    each = count_noun(wanted.units_per_card, "unit")
    large = [r for r in serving if r.card.capacity(r.unit) >= wanted.units_per_card]
    if len(large) < wanted.cards:
        return _few_cards(len(large), wanted, each)
    if wanted.cards == 1:
        return _short_of(serving, wanted)
    fitting = sum(room.lack(wanted) is None for room in serving)
    return _few_cards(fitting, wanted, f"room for {each}")


def _few_cards(found: int, wanted: Demand, what: str) -> str:
    """How many cards have it, where the pod needs more of them."""
    if not found:
        return f"no card has {what}"
    return f"only {count_noun(found, 'card')} {'has' if found == 1 else 'have'} {what}, not {wanted.cards}"


def _short_of(serving: Sequence[Room], wanted: Demand) -> str:
    """What the healthy cards are out of: pods, compute or memory."""
    fewer = [room for room in serving if not room.is_full_of_pods]
    if not fewer:
        return f"every card has as many pods as it may have ({serving[0].max_pods})"
    least = max(wanted.core_percent, fewer[0].least_core)
    cool = [room for room in fewer if room.free_core >= least]
    if not cool:
        most = max(room.free_core for room in fewer)
        return f"no card has {least} % compute left; the most is {most} %"
    beside = f" with {least} % compute" if least else ""
    largest = count_noun(max(room.free_mem for room in cool), "unit")
    return f"no card has room; the largest slice left{beside} is {largest}"
