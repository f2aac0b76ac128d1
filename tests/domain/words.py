"""Short ways to say a card, a container, a pod and a grant, for the tests of the domain."""

from collections.abc import Mapping

from tests.held import fraction

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.node.state import NodeTerms

V100_MIB = 16160
MEM, CORE, COUNT = Resource.MEM, Resource.CORE, Resource.COUNT
APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def cards(*sizes_mib: int, model: str = "Tesla-V100-SXM2-16GB") -> tuple[Card, ...]:
    """Cards of these sizes; their numbers run against their indexes, so mixing them up shows."""
    last = len(sizes_mib) - 1
    return tuple(
        Card(
            f"GPU-{index}", CardNumber(last - index), CardIndex(index), index + 3, model, MiB(size)
        )
        for index, size in enumerate(sizes_mib)
    )


def terms(mode: NodeMode = NodeMode.CORE_MEM, unit: MemoryUnit = MemoryUnit.GIB) -> NodeTerms:
    """The terms of node `node-a`."""
    return NodeTerms("node-a", mode, unit)


def container(
    name: str, mem: int = 0, core: int = 0, kind: ContainerKind = APP, index: int = 0
) -> ContainerRequest:
    """A container that asks for memory and compute."""
    return ContainerRequest(name, kind, index, {Resource.MEM: mem, Resource.CORE: core})


def pod(name: str, *containers: ContainerRequest, label: str | None = None) -> PodRequest:
    """A pod `default/<name>` with uid `uid-<name>`."""
    return PodRequest(PodRef("default", name, f"uid-{name}"), containers, card_count_label=label)


def listed(name: str, **held: Mapping[Resource, frozenset[str]]) -> ListedPod:
    """A pod as the kubelet lists it: no uid; container -> what it holds."""
    by_name = {c: {str(r): ids for r, ids in units.items()} for c, units in held.items()}
    return ListedPod(PodRef("default", name), by_name)


def grant(
    name: str, mem: str = "", core: str = "", kind: ContainerKind = APP, on: str = ""
) -> Grant:
    """A grant of container `main` of pod `default/<name>` on one card; ids as one text, `m00 m01`."""
    return fraction(
        f"slice-{name}",
        PodRef("default", name, f"uid-{name}"),
        "main",
        kind=kind,
        units={Resource.MEM: tuple(mem.split()), Resource.CORE: tuple(core.split())},
        cards=(on,) if on else (),
    )
