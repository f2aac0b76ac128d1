"""Whole cards, replicas and MIG instances: what a pod asks of them, and what each node has left.

kube-scheduler counts these resources as the kubelet does: a device is a device. So what is left on a
node is its allocatable less what the pods bound to it ask for.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.apps.overview.node_cards import CardView
from gpu_device_plugin.cluster.pod_spec import asking_containers, device_count
from gpu_device_plugin.cluster.survey_objects import SurveyedNode, SurveyedPod
from gpu_device_plugin.domain.counted import counted
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.holdings import (
    DEVICES_ANNOTATION,
    held_devices,
)


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """What a node has left of a resource.

    Attributes:
        resource: Its name.
        allocatable: How many devices the kubelet gives out.
        taken: How many of them pods ask for.
        asked: How many the pod asks for.
    """

    resource: str
    allocatable: int
    taken: int
    asked: int

    @property
    def missing(self) -> int:
        """How many are too few; 0 where the pod fits."""
        return max(0, self.asked - (self.allocatable - self.taken))

    def __str__(self) -> str:
        """In a line, for people."""
        free = max(0, self.allocatable - self.taken)
        lack = f", {self.missing} too few" if self.missing else ""
        return f"{self.resource}: {free} of {self.allocatable} free{lack}"


def device_rooms(
    asked: Mapping[str, int], node: SurveyedNode, taken: Mapping[str, int]
) -> tuple[DeviceRoom, ...]:
    """What the node has of each resource that is asked for; empty where it has never had any."""
    offered = node.status.allocatable or {}
    if not any(name in offered for name in asked):
        return ()
    return tuple(
        DeviceRoom(name, device_count(offered.get(name, 0)), taken.get(name, 0), amount)
        for name, amount in sorted(asked.items())
    )


def whole_by_claims(asked: Mapping[str, int], cards: Iterable[CardView]) -> tuple[DeviceRoom, ...]:
    """The cards of which a claim could have all; empty where none are given by claims.

    Only with the chart's value `dra.wholeCards`, under whose name whole cards are asked for.
    """
    given = [card for card in cards if card.door is Door.DRA and card.is_healthy]
    taken = sum(card.free_units < card.units for card in given)
    return tuple(
        DeviceRoom(f"{name} by claims (dra.wholeCards)", len(given), taken, amount)
        for name, amount in sorted(asked.items())
        if given
    )


def held_lines(
    pod: SurveyedPod, cards: Iterable[CardView], held: Collection[str] | None = None
) -> list[str]:
    """What the pod holds: one line a container and whole device.

    Args:
        pod: The pod, whose annotation says which container has what.
        cards: The cards of its node.
        held: UUIDs of what it holds by its node; None where that is not known.
    """
    told: Mapping[int, Sequence[str]] = held_devices(pod.annotations.get(DEVICES_ANNOTATION, ""))
    if held is not None:
        by_index = {index: [u for u in uuids if u in held] for index, uuids in told.items()}
        rest = set(held).difference(*by_index.values())
        told = {**by_index, **({len(pod.spec.containers): sorted(rest)} if rest else {})}
    by_uuid = {card.uuid: card for card in cards}
    lines, asking = [], asking_containers(pod)
    for index, uuids in told.items():
        for uuid in uuids:
            card = by_uuid.get(uuid)
            others = len(card.pods) - 1 if card else 0
            shared = (
                f", which {counted(others, 'other pod')} {'has' if others == 1 else 'have'} too"
                if others
                else ""
            )
            what = f"card {card.index} ({card.model})" if card else uuid
            name = pod.spec.containers[index].name if index < len(pod.spec.containers) else "?"
            # A claim of whole cards (docs/dra.md) is of the only one that asks.
            name = asking[0] if len(asking) == 1 else name
            lines.append(f"container {name}: {what}{shared}")
    return lines
