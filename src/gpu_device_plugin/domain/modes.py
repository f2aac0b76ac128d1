"""Node modes: which resources a node offers, and when it may switch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.units import MemoryUnit, Resource
from gpu_device_plugin.errors import ConfigError

MODE_LABEL = "ack.node.gpu.schedule"
PLACEMENT_LABEL = "ack.node.gpu.placement"
MAX_PODS_PER_CARD = 16
"""Most pods per card in modes with isolation, whatever the unit (R-405)."""
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""Half of what the kubelet's gRPC client accepts of a ListAndWatch message."""

# What a device takes besides its id: the tag and length of the device, of its id and of its
# health, and the longer of the two healths, "Unhealthy".
_DEVICE_BYTES = 2 + 2 + 2 + len("Unhealthy")
_SHORTEST_ID = 3
_BASE = 36


class NodeMode(StrEnum):
    """Values of the node label `ack.node.gpu.schedule` (docs/node-modes.md)."""

    CORE_MEM = "core_mem"
    CGPU = "cgpu"
    SHARE = "share"
    DISABLED = "disabled"
    DEFAULT = "default"
    MPS = "mps"
    TOPOLOGY = "topology"
    MIG = "mig"


class PlacementPolicy(StrEnum):
    """Values of the node label `ack.node.gpu.placement`."""

    BINPACK = "binpack"
    SPREAD = "spread"


_RESOURCES: Mapping[NodeMode, tuple[Resource, ...]] = {
    NodeMode.CORE_MEM: (Resource.MEM, Resource.CORE, Resource.COUNT),
    NodeMode.CGPU: (Resource.MEM, Resource.COUNT),
    NodeMode.SHARE: (Resource.MEM, Resource.COUNT),
}
_NOT_YET = frozenset({NodeMode.DEFAULT, NodeMode.MPS, NodeMode.TOPOLOGY, NodeMode.MIG})


def resources_of(mode: NodeMode) -> tuple[Resource, ...]:
    """What a node in `mode` offers; nothing in `disabled` and in modes that are not served."""
    return _RESOURCES.get(mode, ())


def is_isolated(mode: NodeMode) -> bool:
    """Whether containers get a memory cap (R-505: `share` shows the whole card)."""
    return mode in {NodeMode.CORE_MEM, NodeMode.CGPU}


def is_served(mode: NodeMode) -> bool:
    """Whether this release implements the mode; `disabled` means offering nothing."""
    return mode not in _NOT_YET


def parse_mode(text: str) -> NodeMode | None:
    """The mode of that name, or None."""
    return next((mode for mode in NodeMode if mode == text), None)


def parse_policy(text: str) -> PlacementPolicy | None:
    """The placement policy of that name, or None."""
    return next((policy for policy in PlacementPolicy if policy == text), None)


def check_unit(mode: NodeMode, unit: MemoryUnit) -> None:
    """Check that the unit goes with the mode: small ones only with `share` (R-404).

    Raises:
        ConfigError: `unit` is 128MiB and `mode` is another one, even one that offers nothing.
    """
    if unit is MemoryUnit.MIB128 and mode is not NodeMode.SHARE:
        raise ConfigError(
            f"memory unit {unit.value} does not go with mode {mode}: it is for mode "
            f"{NodeMode.SHARE} only, where a card serves more than {MAX_PODS_PER_CARD} pods; set "
            f"the unit to {MemoryUnit.GIB.value}"
        )


def list_message_bytes(resource: str, cards: Sequence[Card], unit: MemoryUnit) -> int:
    """Size of the ListAndWatchResponse with every unit of `cards` unhealthy.

    >>> list_message_bytes(Resource.COUNT, [Card("GPU-0", 0, 0, 0, "T4", 15079)], MemoryUnit.GIB)
    18
    """
    return sum(_device_list_bytes(card.units(resource, unit)) for card in cards)


def check_message(cards: Sequence[Card], unit: MemoryUnit, mode: NodeMode) -> None:
    """Check that the kubelet can receive the device lists of this node.

    Raises:
        ConfigError: A list would exceed `MAX_MESSAGE_BYTES`; the text names the unit to set.
    """
    for resource in resources_of(mode):
        size = list_message_bytes(resource, cards, unit)
        if size > MAX_MESSAGE_BYTES:
            raise ConfigError(
                f"memory unit {unit.value} makes the device list of {resource} {size} bytes long, "
                f"the limit is {MAX_MESSAGE_BYTES}: {_cure(resource, cards)}"
            )


def _device_list_bytes(units: int) -> int:
    total, length, first = 0, _SHORTEST_ID, 0
    while first < units:
        end = min(units, _BASE ** (length - _SHORTEST_ID + 1))
        total += (end - first) * (_DEVICE_BYTES + length)
        length, first = length + 1, end
    return total


def _cure(resource: str, cards: Sequence[Card]) -> str:
    for unit in sorted(MemoryUnit, key=lambda unit: unit.mib):
        if list_message_bytes(resource, cards, unit) <= MAX_MESSAGE_BYTES:
            return f"the smallest unit that fits {len(cards)} cards is {unit.value}"
    return f"no unit fits {len(cards)} cards of this size"


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode of a node from now on.

    Attributes:
        mode: The mode.
        is_switch_refused: The label asks for another mode, which has to wait.
        note: Text of an Event on the node, or None.
        note_reason: Reason of that Event, one CamelCase word; empty without a note.
    """

    mode: NodeMode
    is_switch_refused: bool = False
    note: str | None = None
    note_reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitDecision:
    """The memory unit of a node from now on; the fields are those of ModeDecision."""

    unit: MemoryUnit
    is_switch_refused: bool = False
    note: str | None = None
    note_reason: str = ""


def next_mode(
    current: NodeMode | None,
    label: str | None,
    fallback: NodeMode,
    holders: Sequence[PodRef] | None,
    *,
    is_from_label: bool = True,
) -> ModeDecision:
    """What the node's label means for its mode now.

    Deleting the label changes nothing (docs/node-modes.md), nor does an unknown value, and a
    node does not switch while pods hold slices (R-107, R-502). A node that never had
    a label follows the operator's setting.

    Args:
        current: The mode until now; None only at the very first start.
        label: Value of `ack.node.gpu.schedule`, or None where there is no label.
        fallback: The operator's `--mode`, for nodes without a label.
        holders: Pods that hold slices; None where that is not known yet, so that no switch is
            made and none is refused with a reason.
        is_from_label: Whether a label brought the node into its current mode.
    """
    kept = current if current is not None and is_from_label else fallback
    wanted = kept if label is None else parse_mode(label)
    asked = f"--mode {wanted}" if label is None else f"label {MODE_LABEL}={label}"
    if wanted is None:
        return ModeDecision(
            current or fallback,
            note=f"{asked} names no mode; the node stays in {current or fallback}. "
            f"Known: {', '.join(NodeMode)}",
            note_reason="UnknownMode",
        )
    if current is None or wanted is current:
        return ModeDecision(wanted)
    return _switch(current, wanted, asked, holders)


def _switch(
    current: NodeMode, wanted: NodeMode, asked: str, holders: Sequence[PodRef] | None
) -> ModeDecision:
    """Switch the mode at once if no slice is held, else later."""
    if holders is None:
        return ModeDecision(current, is_switch_refused=True)
    if holders:
        return ModeDecision(
            current,
            is_switch_refused=True,
            note=f"{asked} waits: the node stays in {current} while pods hold slices: "
            f"{_names(holders)}. Delete or drain them",
            note_reason="ModeSwitchRefused",
        )
    later = "" if is_served(wanted) else "; this mode is not served yet, the node offers nothing"
    return ModeDecision(
        wanted,
        note=f"the node switched from mode {current} to {wanted}{later}",
        note_reason="ModeSwitched" if is_served(wanted) else "ModeNotServedYet",
    )


def next_unit(
    current: MemoryUnit | None, wanted: MemoryUnit, holders: Sequence[PodRef] | None
) -> UnitDecision:
    """The unit to count in: a change waits until no pod holds slices (R-403).

    Args:
        current: The unit of the last run, or None at the very first start.
        wanted: The operator's `--memory-unit`.
        holders: Pods that hold slices; None where that is not known yet, so that no switch is
            made and none is refused with a reason.
    """
    if current is None or current is wanted:
        return UnitDecision(wanted)
    if holders is None:
        return UnitDecision(current, is_switch_refused=True)
    if holders:
        return UnitDecision(
            current,
            is_switch_refused=True,
            note=f"memory unit {wanted.value} waits: the node still counts in "
            f"{current.value} while pods hold slices: {_names(holders)}. Delete or drain them",
            note_reason="UnitSwitchRefused",
        )
    return UnitDecision(
        wanted,
        note=f"the node switched from memory unit {current.value} to {wanted.value}",
        note_reason="UnitSwitched",
    )


def _names(holders: Sequence[PodRef]) -> str:
    return ", ".join(sorted({str(pod) if pod.name else f"uid {pod.uid}" for pod in holders}))
