"""Node modes: the values of the node label that chooses how cards are shared, and when one may switch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import StateError

Value = TypeVar("Value", bound=Enum)
MODE_LABEL = "ack.node.gpu.schedule"
PLACEMENT_LABEL = "ack.node.gpu.placement"
PLACEMENT_ANNOTATION = "gpu-device-plugin/placement"
"""A pod's own policy, which takes precedence over its node's."""
SETTINGS_LABEL = "gpu-device-plugin/settings"
"""Names settings of the operator's for this node."""
MIG_PROFILE_LABEL = "gpu-device-plugin/mig-profile"
MAX_PODS_LABEL = "ack.node.gpu.max-pod"


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
    """Values of the node label `ack.node.gpu.placement`; `fgd` is this project's (domain/fractions/fragmentation.py)."""

    BINPACK = "binpack"
    SPREAD = "spread"
    FGD = "fgd"


_NOT_YET = frozenset({NodeMode.MPS})


def is_isolated(mode: NodeMode) -> bool:
    """Whether containers get a memory cap (R-505: `share` shows the whole card)."""
    return mode in {NodeMode.CORE_MEM, NodeMode.CGPU}


def is_served(mode: NodeMode) -> bool:
    """Whether this release implements the mode; `disabled` means offering nothing."""
    return mode not in _NOT_YET


def is_whole(mode: NodeMode | None) -> bool:
    """Whether whole cards are offered, not fractions."""
    return mode in {NodeMode.DEFAULT, NodeMode.TOPOLOGY, NodeMode.MIG}


def parse_mode(text: str) -> NodeMode | None:
    """The mode of that name, or None."""
    return next((mode for mode in NodeMode if mode == text), None)


def parse_policy(text: str) -> PlacementPolicy | None:
    """The placement policy of that name, or None."""
    return next((policy for policy in PlacementPolicy if policy == text), None)


def parse_max_pods(text: str) -> int | None:
    """Most pods a card by the label `ack.node.gpu.max-pod`, or None if it says no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True)
class SwitchDecision(Generic[Value]):
    """What a node has from now on (mode, memory unit, allocation API); a switch that is refused has to wait."""

    value: Value
    is_switch_refused: bool = False
    note: str | None = None
    note_reason: str = ""


def next_mode(  # noqa: PLR0913 - what a node's mode depends on
    current: NodeMode | None,
    label: str | None,
    fallback: NodeMode,
    holders: Sequence[str] | None,
    mps_root: str = "",
    *,
    is_from_label: bool = True,
) -> SwitchDecision[NodeMode]:
    """What the node's label means for its mode now.

    Deleting the label changes nothing (docs/node-modes.md), nor does an unknown value, and a node
    does not switch while pods hold slices (R-107, R-502), nor from whole cards while an MPS daemon
    has cards, which only its clients can use. A node that never had a label follows the operator's
    setting, `fallback`.

    `current` is None only at the very first start. Without known `holders` no switch is made and
    none is refused with a reason. `mps_root` is the directory of an MPS daemon that serves cards or
    has not given them back.
    """
    without_label = current if current is not None and is_from_label else fallback
    wanted = without_label if label is None else parse_mode(label)
    asked = f"--mode {wanted}" if label is None else f"label {MODE_LABEL}={label}"
    if wanted is None:
        return SwitchDecision(
            current or fallback,
            note=f"{asked} is not a known mode; keeping {current or fallback}. "
            f"Known: {', '.join(NodeMode)}",
            note_reason="UnknownMode",
        )
    obstacle = (
        f"until the MPS daemon of {mps_root} has given its cards back. Choose a configuration "
        f"without sharing.mps first"
    )
    obstacle = obstacle if mps_root and current is NodeMode.DEFAULT else ""
    reason = ("ModeSwitched", "ModeSwitchRefused")
    return switch("mode", current, wanted, asked, holders, obstacle, reason=reason)


def switch(  # noqa: PLR0913, PLR0917 - what the texts name
    what: str,
    current: Value | None,
    wanted: Value,
    asked: str,
    holders: Sequence[str] | None,
    obstacle: str = "",
    *,
    reason: tuple[str, str],
) -> SwitchDecision[Value]:
    """The one rule by which a node changes what it offers: only while nobody holds anything of it.

    Args:
        what: What changes, for people, as `mode`.
        current: What the node has; None at the very first start.
        wanted: What it is to have.
        asked: What asks for that.
        holders: Who holds anything of the node; None while that is not known: then no switch is made
            and none is refused with a reason.
        obstacle: What else is in the way, or "".
        reason: Of the Event of a switch, and of one that waits.
    """
    if current is None or wanted is current:
        return SwitchDecision(wanted)
    if holders is None:
        return SwitchDecision(current, is_switch_refused=True)
    if holders:
        obstacle = f"while pods hold slices: {', '.join(holders)}. Cordon and drain the node"
    if obstacle:
        note = f"{asked} waits: the node stays in {what} {current.value} {obstacle}"
        return SwitchDecision(current, is_switch_refused=True, note=note, note_reason=reason[1])
    note = f"the node switched from {what} {current.value} to {wanted.value}"
    return SwitchDecision(wanted, note=note, note_reason=reason[0])


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node's mode and unit now, from what its agent publishes.

    Attributes:
        has_label: Whether a label of the node decides its mode.
        holders: Pods that hold slices there by units.
        has_claims: Whether others hold some by claims.
    """

    name: str
    mode: str
    unit_mib: MiB | None
    has_label: bool
    holders: tuple[PodRef, ...]
    has_claims: bool = False


def upgrade_obstacles(
    nodes: Sequence[NodeStanding], unit: MemoryUnit, mode: NodeMode, *, is_other_mode: bool
) -> tuple[str, ...]:
    """A line for each node whose slices the new settings would change, with their pods.

    `mode` is for nodes without a label; a node keeps the mode of a label that it had earlier.
    """
    found = []
    for node in nodes:
        changes = []
        if node.unit_mib is not None and node.unit_mib != unit.mib:
            changes.append(f"counts in {_unit_name(node.unit_mib)}, not {unit.value}")
        if is_other_mode and node.mode and not node.has_label and node.mode != mode:
            changes.append(f"serves in mode {node.mode}, not {mode}")
        holders = sorted({str(pod) for pod in node.holders})
        holders += ["pods with claims"] if node.has_claims else []
        if changes and holders:
            found.append(f"node {node.name} {' and '.join(changes)}: {', '.join(holders)}")
    return tuple(found)


def holders_by_node(pods: Sequence[tuple[str, PodRef]]) -> Mapping[str, tuple[PodRef, ...]]:
    """Pods by node, each once."""
    by_node: dict[str, dict[PodRef, None]] = {}
    for node, pod in pods:
        by_node.setdefault(node, {})[pod] = None
    return {node: tuple(refs) for node, refs in by_node.items()}


def _unit_name(mib: MiB) -> str:
    """An agent of another version may count in a unit that this one does not know."""
    try:
        return MemoryUnit.of_mib(mib).value
    except StateError:
        return f"{mib} MiB"
