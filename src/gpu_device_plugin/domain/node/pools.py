"""What a node offers the kubelet: pools of units, each under the name of one extended resource."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Units that lie on one device and are offered alike; their ids are as the kubelet counts them."""

    ids: tuple[str, ...]
    is_healthy: bool = True
    card: str = ""
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class UnitCount:
    """Units of one resource on one card, free and held; `resource` is the kubelet's name."""

    resource: str
    free: int
    held: int


@dataclass(frozen=True, slots=True)
class Pool:
    """Everything of one resource that this node has, healthy or not."""

    resource: str
    groups: tuple[DeviceGroup, ...] = ()
