"""What the kubelet is offered: the node's state as devices of three resources."""

from collections.abc import Iterable, Sequence

from gpu_device_plugin.domain.modes import check_message, resources_of
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.units import Resource
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubelet.encoding import CardUnits
from gpu_device_plugin.kubelet.endpoint import Endpoint

# Reasons for which nothing is registered at all: another plugin owns the cards, or the kubelet
# could not receive the list.
WITHDRAWING = frozenset({"OtherPlugin", "DeviceListTooLong"})


class DeviceLists:
    """Publishes the node state to the endpoints."""

    def __init__(self, endpoints: Iterable[tuple[Resource, Endpoint]]) -> None:
        self._endpoints = dict(endpoints)

    def publish(self, state: NodeState) -> None:
        """Offer what the node has now, if its mode serves it."""
        wanted = served_resources(state)
        for resource, endpoint in self._endpoints.items():
            if resource in wanted:
                endpoint.publish(card_units(resource, state))
            else:
                endpoint.withdraw()

    def not_ready(self, state: NodeState) -> list[str]:
        """What is still missing before the kubelet can place pods here; nothing when ready."""
        return [
            f"{resource}: {endpoint.state.detail or endpoint.state.phase.value}"
            for resource, endpoint in self._endpoints.items()
            if resource in served_resources(state) and not endpoint.is_ready
        ]


def served_resources(state: NodeState) -> tuple[Resource, ...]:
    """The resources that are registered now; none before mode and cards are known."""
    if state.mode is None or not state.cards or not WITHDRAWING.isdisjoint(state.faults):
        return ()
    return resources_of(state.mode)


def card_units(resource: Resource, state: NodeState) -> Sequence[CardUnits]:
    """Every card's units of `resource`; a card that is out stays in capacity.

    On a node that is marked for uninstalling the list is empty: the kubelet then counts 0 at once.
    If the list ended instead, the kubelet would keep the capacity for five minutes.
    """
    if state.mark:
        return []
    healthy = state.healthy
    return [
        CardUnits(resource, card.number, card.units(resource, state.unit), healthy[card.uuid])
        for card in state.cards
    ]


def message_problem(state: NodeState) -> str | None:
    """Why the device lists of this node could not be sent, or None."""
    if state.mode is None:
        return None
    try:
        check_message(state.cards, state.unit, state.mode)
    except ConfigError as error:
        return str(error)
    return None
