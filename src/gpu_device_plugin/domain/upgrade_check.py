"""What an upgrade may not change while pods hold slices (R-402, R-403)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.errors import StateError


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node's mode and unit now, from what its agent publishes.

    Attributes:
        name: The node.
        mode: Its mode, or "" if it publishes none.
        unit_mib: Its memory unit, or None.
        has_label: Whether a label of the node decides its mode.
        holders: Pods that hold slices there by units.
        has_claims: Whether others hold some by claims.
    """

    name: str
    mode: str
    unit_mib: int | None
    has_label: bool
    holders: tuple[PodRef, ...]
    has_claims: bool = False


def upgrade_obstacles(
    nodes: Sequence[NodeStanding],
    unit: MemoryUnit,
    mode: NodeMode,
    *,
    is_other_mode: bool,
) -> tuple[str, ...]:
    """A line for each node whose slices the new settings would change, with their pods.

    Args:
        nodes: Every node of the cluster.
        unit: The new `gpuMemoryUnit`.
        mode: The new `mode`, for nodes without a label.
        is_other_mode: Whether the upgrade changes it. A node keeps the mode of a label that it
            had earlier.
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


def holders_by_node(
    pods: Sequence[tuple[str, PodRef]],
) -> Mapping[str, tuple[PodRef, ...]]:
    """Pods by node, each once."""
    found: dict[str, dict[PodRef, None]] = {}
    for node, pod in pods:
        found.setdefault(node, {})[pod] = None
    return {node: tuple(refs) for node, refs in found.items()}


def _unit_name(mib: int) -> str:
    """An agent of another version may count in a unit that this one does not know."""
    try:
        return MemoryUnit.of_mib(mib).value
    except StateError:
        return f"{mib} MiB"
