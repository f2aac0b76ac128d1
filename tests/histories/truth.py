"""What is so, by the kubelet's own book, the driver and the disk: that with which everything else is compared."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tests.histories.pods import Life
from tests.histories.shapes import CORE, COUNT, MEM

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, GrantStore
from gpu_device_plugin.domain.fractions.units import parse_unit_id
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.lifetime import KUBELET_SETTLE_SECONDS
from gpu_device_plugin.errors import StateError

if TYPE_CHECKING:
    from tests.histories.node import Node

_FRACTIONS = {MEM, CORE, COUNT}


class Hold(NamedTuple):
    """One unit that a container of a living pod holds; `device` is the UUID of its card or instance."""

    life: Life
    container: str
    resource: str
    unit: str
    device: str

    @property
    def is_fraction(self) -> bool:
        """Whether it is a part of a card that the agent chose."""
        return self.resource in _FRACTIONS

    @property
    def is_whole(self) -> bool:
        """Whether nobody else may have any of its device."""
        return not self.is_fraction and "::" not in self.unit


def grants(node: "Node") -> tuple[Grant, ...]:
    """What stands on the disk.

    Raises:
        StateError: It cannot be read.
    """
    pair = (node.file(KIND), node.file(f"{KIND}.other"))
    mark = tuple(path.read_bytes() for path in pair if path.exists())
    if node.past.read_grants[0] != mark:
        ledger = GrantStore(pair[0].parent, "", schemes=node.schemes).read()
        node.past.read_grants = (mark, tuple(ledger.grants.values()))
    return node.past.read_grants[1]


def numbers(node: "Node") -> Mapping[str, int]:
    """UUID -> number of the card, as the agent remembers them."""
    path = node.file("cards")
    mark = tuple(p.read_bytes() for p in (path, path.with_name("cards.other")) if p.exists())
    if node.past.read_numbers[0] != mark:
        try:
            sealed = SealedFile(path, "cards", 1).read()
        except StateError:
            return node.past.read_numbers[1]
        found = json.loads(sealed.payload)["numbers"] if sealed else {}
        node.past.read_numbers = (mark, found)
    return node.past.read_numbers[1]


def offered_devices(node: "Node") -> Mapping[str, list[str]]:
    """Number of a card, or UUID of a card or instance -> the units of it that the kubelet may give."""
    lists = tuple(node.kubelet.registry.book.healthy.values())
    if len(lists) != len(node.past.offered[0]) or any(
        new is not old for new, old in zip(lists, node.past.offered[0], strict=True)
    ):
        found: dict[str, list[str]] = {}
        for unit in (unit for ids in lists for unit in ids):
            parsed = parse_unit_id(unit)
            name = str(parsed.card) if parsed else unit.partition("::")[0]
            found.setdefault(name, []).append(unit)
        node.past.offered = lists, found
    return node.past.offered[1]


def held(node: "Node", life: Life) -> dict[tuple[str, str], frozenset[str]]:
    """(container, resource) -> ids, of the resources that are granted."""
    found = node.pods.held(life).items()
    return {key: ids for key, ids in found if key[1] != COUNT and ids}


def holds(node: "Node") -> Iterator[Hold]:
    """Every unit that living pods hold."""
    by_number = {number: uuid for uuid, number in numbers(node).items()}
    for life in node.pods.living():
        for (container, resource), ids in held(node, life).items():
            for unit in ids:
                parsed = parse_unit_id(unit) if resource in _FRACTIONS else None
                device = by_number.get(parsed.card, "") if parsed else unit.partition("::")[0]
                yield Hold(life, container, resource, unit, device)


def card_of_device(node: "Node", device: str) -> str:
    """The UUID of the card of which this is an instance, or of the card itself."""
    if not device.startswith("MIG-"):
        return device
    return next((c.uuid for c in node.driver.cards if device in c.all_instances), device)


def against_the_rules(node: "Node", life: Life) -> bool:
    """A label that nobody could read at Allocate: the pod runs, not as it asks, and an Event says so."""
    return bool(life.pod.labels) and any(
        value["reason"] == "CardCountUnknown" and value["involvedObject"]["name"] == life.pod.name
        for path, value in node.api.objects.items()
        if "/events/" in path
    )


def may_list_be_short(node: "Node", longer_seconds: float) -> bool:
    """Whether List may lack pods, or did until some seconds ago, for all that the agent knows."""
    known_since = max(node.kubelet_since, node.agent_since)
    return node.machine.loop.now - known_since < KUBELET_SETTLE_SECONDS + longer_seconds
