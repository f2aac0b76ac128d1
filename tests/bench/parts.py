"""The agent's parts without its edges: a kubelet and an API server that are two dictionaries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import structlog

from gpu_device_plugin.apps.agent.allocator import Allocator
from gpu_device_plugin.apps.agent.answers import Answers
from gpu_device_plugin.apps.agent.board import Board
from gpu_device_plugin.apps.agent.book import Book
from gpu_device_plugin.apps.agent.identify import Identifier, Sources
from gpu_device_plugin.apps.agent.journal import Journal
from gpu_device_plugin.apps.agent.library import LibraryKeeper
from gpu_device_plugin.apps.agent.publish import Facts, Publisher, Readers
from gpu_device_plugin.apps.agent.reconcile import Parts, Reconciler
from gpu_device_plugin.apps.agent.state import NodeState
from gpu_device_plugin.apps.agent.witness import Witness
from gpu_device_plugin.domain.device import Card
from gpu_device_plugin.domain.edits import DeviceAccess
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.pods import ContainerKind, ContainerRequest, ListedPod, PodRef
from gpu_device_plugin.domain.requests import PodRequest
from gpu_device_plugin.domain.units import Resource, unit_ids
from gpu_device_plugin.store.grants import GrantStore
from gpu_device_plugin.store.slices import SliceFiles
from gpu_device_plugin.web.metrics import AgentMetrics

_MIB = 143771
_ASKED = {Resource.MEM: 8, Resource.CORE: 5}


class AgentParts:
    """8 H200 in mode core_mem; every pod asks for 8 units and 5 %."""

    HELD = 109

    def __init__(self, directory: Path) -> None:
        structlog.configure(processors=[_drop], cache_logger_on_first_use=True)
        cards = tuple(Card(f"GPU-{i}", i, i, i, "H200", _MIB) for i in range(8))
        state = NodeState("n1", NodeMode.CORE_MEM, cards=cards)
        self._board = Board(state)
        self._listed: dict[PodRef, dict[Resource, frozenset[str]]] = {}
        self._specs: dict[tuple[str, str], PodRequest] = {}
        self._free = {
            resource: {
                i
                for c in cards
                for i in unit_ids(resource, c.number, c.units(resource, state.unit))
            }
            for resource in _ASKED
        }
        metrics = AgentMetrics("bench")
        self._journal = Journal(metrics, lambda _: None, self._board.read)
        self._book = Book(GrantStore(directory / "grants", "boot"), lambda _: None)
        library = LibraryKeeper(directory / "library", self._journal)
        self._board.update(library_version=library.look()[0])
        self._answers = Answers(
            SliceFiles(directory / "run"),
            library,
            DeviceAccess.NVIDIA,
            str(directory / "run"),
            str(directory / "library"),
        )
        identifier = Identifier(
            Sources(self._list, self._get, lambda: self._specs, self._fetch),
            lambda: self._book.ledger,
        )
        self._allocator = Allocator(
            identifier, self._book, self._answers, self._journal, self._board.read
        )
        self._witness = Witness(self._list, directory / "checkpoint")
        self._reconciler = self._made_reconciler()
        self._publisher = Publisher(
            Readers(metrics, None, None),
            Facts(lambda: self._book.ledger, lambda: ("535.0", "12.2"), lambda: 0, lambda: None),
            self._board.read,
        )

    async def fill(self) -> None:
        """Pods that stay."""
        for number in range(self.HELD):
            await self.admit(self.add_pod(f"held-{number}"))

    def add_pod(self, name: str) -> PodRef:
        """A pod that the API and the kubelet know of."""
        ref = PodRef("default", name, f"uid-{name}")
        mem, core = _ASKED[Resource.MEM], _ASKED[Resource.CORE]
        container = ContainerRequest("main", ContainerKind.APP, 0, mem, core)
        self._specs[ref.key] = PodRequest(ref, (container,))
        self._listed[ref] = {}
        return ref

    async def admit(self, ref: PodRef) -> None:
        """Both resources, each preferred then allocated."""
        for resource, size in _ASKED.items():
            ids = await self._allocator.prefer(resource, tuple(self._free[resource]), (), size)
            await self._allocator.allocate(resource, ids)
            self._listed[ref][resource] = frozenset(ids)
            self._free[resource] -= set(ids)

    def remove_pod(self, ref: PodRef) -> None:
        """The pod is gone, and the reconciler has seen so."""
        for resource, ids in self._listed.pop(ref).items():
            self._free[resource] |= ids
        del self._specs[ref.key]
        ended = [grant.slice_id for grant in self._book.ledger.of_pod(ref)]
        assert ended
        self._book.amend((), ended=ended)

    async def look(self) -> None:
        """The reconciler's look at the kubelet, and what others read of it."""
        await self._reconciler.look()
        self._reconciler.repair_files()
        self._publisher._publish()

    def _made_reconciler(self) -> Reconciler:
        parts = Parts(
            book=self._book,
            answers=self._answers,
            witness=self._witness,
            journal=self._journal,
            state=self._board.read,
            specs=lambda: self._specs,
            kubelet_identity=lambda: None,
            refresh_checkpoint=lambda: None,
        )
        return Reconciler(parts, self._allocator.calm)

    async def _list(self) -> Sequence[ListedPod]:
        return [
            ListedPod(PodRef(ref.namespace, ref.name), {"main": MappingProxyType(dict(held))})
            for ref, held in self._listed.items()
        ]

    async def _get(self, ref: PodRef) -> ListedPod | None:
        return next((pod for pod in await self._list() if pod.pod.key == ref.key), None)

    async def _fetch(self, namespace: str, name: str) -> PodRequest | None:
        return self._specs.get((namespace, name))


def _drop(_logger: object, _method: str, _event: Mapping[str, object]) -> Mapping[str, object]:
    raise structlog.DropEvent
