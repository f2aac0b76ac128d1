"""The agent without its sockets: a kubelet and an API server that are two dictionaries."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoCluster
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids, units_of
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.settings.agent_settings import Settings

_H200_MIB = 143771
_LIBRARY_VERSION = "0.0.1"
_ASKED: Mapping[str, int] = {Resource.MEM: 8, Resource.CORE: 5}


class AgentParts:
    """8 H200 in mode core_mem; every pod asks for 8 units and 5 %."""

    def __init__(self, directory: Path) -> None:
        structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
        settings = Settings(
            node_name="n1",
            standalone=True,
            kubelet_dir=str(directory / "kubelet"),
            state_dir=str(directory),
            run_dir=str(directory / "run"),
            library_dir=str(_library(directory / "library")),
        )
        edges = replace(real_edges(settings), pods=_Pods(self), cluster=lambda *_: _Api(self))
        self.wiring = Wiring(settings, edges)
        cards = tuple(
            Card(f"GPU-{i}", CardNumber(i), CardIndex(i), i, "H200", MiB(_H200_MIB))
            for i in range(8)
        )
        self.wiring.node_store.update(
            mode=NodeMode.CORE_MEM, cards=cards, library_version=_LIBRARY_VERSION
        )
        self._held: dict[PodRef, dict[str, frozenset[str]]] = {}
        self._specs: dict[tuple[str, str], PodRequest] = {}
        self._free = {resource: _units(resource, cards) for resource in _ASKED}

    async def fill(self, pods: int) -> None:
        """Pods that stay."""
        for number in range(pods):
            await self.admit(self.add_pod(f"held-{number}"))

    def add_pod(self, name: str) -> PodRef:
        """A pod that the API and the kubelet know of."""
        ref = PodRef("default", name, f"uid-{name}")
        container = ContainerRequest("main", ContainerKind.APP, 0, _ASKED)
        self._specs[ref.key] = PodRequest(ref, (container,))
        self._held[ref] = {}
        return ref

    async def admit(self, ref: PodRef) -> None:
        """Both resources, each preferred then allocated."""
        for resource, size in _ASKED.items():
            allocator, free = self.wiring.fraction_calls, self._free[resource]
            ids = await allocator.prefer(resource, tuple(free), (), size)
            await allocator.allocate(resource, ids)
            self._held[ref][resource] = frozenset(ids)
            free.difference_update(ids)

    def remove_pod(self, ref: PodRef) -> None:
        """The pod is gone, and its slice ends as the reconciler ends it."""
        for resource, ids in self._held.pop(ref).items():
            self._free[resource] |= ids
        del self._specs[ref.key]
        ledger_store = self.wiring.ledger_store
        ended = [grant.slice_id for grant in ledger_store.ledger.of_pod(ref)]
        assert ended
        ledger_store.amend((), ended=ended)

    async def look(self) -> None:
        """What is done now and then: files of ended slices go, others read what changed."""
        await self.wiring.reconciler.files.repair()
        self.wiring.publisher._publish()
        self.wiring.publisher.show()

    def listed(self) -> Sequence[ListedPod]:
        """PodResources List."""
        return [
            ListedPod(PodRef(ref.namespace, ref.name), {"main": dict(held)})
            for ref, held in self._held.items()
        ]

    def specs(self) -> Mapping[tuple[str, str], PodRequest]:
        """What the API watch has."""
        return self._specs


class _Pods(PodResources):
    """The kubelet's PodResources, without a socket."""

    def __init__(self, node: AgentParts) -> None:
        super().__init__(Path("kubelet.sock"))
        self._node = node

    async def list(self) -> tuple[ListedPod, ...]:
        return tuple(self._node.listed())

    async def get(self, pod: PodRef) -> ListedPod | None:
        return next((one for one in self._node.listed() if one.pod.key == pod.key), None)


class _Api(NoCluster):
    """An API server that knows every pod."""

    def __init__(self, node: AgentParts) -> None:
        self._node = node

    def specs(self) -> Mapping[tuple[str, str], PodRequest]:
        """Pods as the watch knows them."""
        return self._node.specs()

    async def fetch_spec(self, namespace: str, name: str, /) -> PodRequest | None:
        """One GET."""
        return self._node.specs().get((namespace, name))


def _units(resource: str, cards: Sequence[Card]) -> set[str]:
    unit = MemoryUnit.GIB
    return {i for c in cards for i in unit_ids(resource, c.number, units_of(c, resource, unit))}


def _library(directory: Path) -> Path:
    """An isolation library as far as the agent looks; nobody loads it here."""
    version = directory / _LIBRARY_VERSION
    version.mkdir(parents=True)
    (version / "libgpuslice.so").write_bytes(b"")
    (version / "ld.so.preload").write_text("")
    return directory


def _drop(_logger: object, _method: str, _event: Mapping[str, object]) -> Mapping[str, object]:
    raise structlog.DropEvent
