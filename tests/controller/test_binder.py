"""A replica binds only while it leads, and for as long as no other one can."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest
from tests.kubernetes.test_cluster_watch import SlowAnswer
from tools.harness.api_server import StandInApiServer, running
from tools.harness.objects import node, path, pod

from gpu_device_plugin.controller import binder
from gpu_device_plugin.controller.binder import Binder, View
from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.pod_spec import scheduled_request

_NEW = pod("new", 2, 30)
_CALL = {"PodName": "new", "PodNamespace": "ns", "PodUID": "uid-new", "Node": "n1"}


@dataclass
class Replica:
    """A binder, its ledger, and what the Lease says."""

    server: StandInApiServer
    ledger: ClusterLedger
    left_seconds: float = 4.0
    leads: bool = True
    loses_it: bool = False
    api_port: int = 0  # where the API server is said to be; 0 for where it is
    outcome: str = ""

    async def load(self) -> Credentials:
        """Credentials: reading them takes time, in which the lead may be lost."""
        self.leads = not self.loses_it
        return Credentials(f"http://127.0.0.1:{self.api_port or self.server.port}")

    async def read(self, _ref: PodRef, _seconds: float) -> ClusterPod | None:
        """Nobody says whether a binding without an answer has come about."""
        raise ClusterError("away")

    async def unbound(self) -> Collection[str]:
        """Nor does a list."""
        raise ClusterError("away")

    def ended(self, outcome: str) -> None:
        self.outcome = outcome

    async def bind(self) -> str:
        """Why the pod is not bound, or ""."""
        view = View(
            self.read,
            self.unbound,
            lambda: "" if self.leads else "one does not lead",
            lambda: self.left_seconds,
            self.ended,
        )
        api = ApiServer(self.load)
        binder = Binder(self.ledger, api, view)
        try:
            return str(json.loads(await binder.bind(json.dumps(_CALL).encode()))["Error"])
        finally:
            await api.close()


@asynccontextmanager
async def a_replica() -> AsyncIterator[Replica]:
    """A node with room, and a pod that waits for it."""
    ledger = ClusterLedger(PlacementPolicy.BINPACK)
    cards = node("n1")["metadata"]["annotations"][CARDS_ANNOTATION]
    ledger.node_changed("n1", ClusterNode("n1", cards, {}))
    async with running() as (server, _):
        await server.put(path(_NEW), _NEW)
        stored = msgspec.json.decode(json.dumps(server.objects[path(_NEW)]), type=Pod)
        request = scheduled_request(stored)
        ledger.pod_changed(
            request.ref, ClusterPod(request, "", {}, stored.metadata.resource_version)
        )
        yield Replica(server, ledger)


@pytest.mark.parametrize("loses_it", [False, True])
async def test_the_lead_is_looked_at_directly_before_the_request(*, loses_it: bool) -> None:
    """What is lost after the reservation keeps the binding back, and gives the room back."""
    async with a_replica() as replica:
        replica.loses_it = loses_it
        assert await replica.bind() == ("one does not lead" if loses_it else "")
        assert len(replica.server.seen("POST")) == (0 if loses_it else 1)
        assert replica.ledger.reserved == (0 if loses_it else 1)


async def test_a_binding_is_given_up_before_another_replica_can_bind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server then carries it out no more; until that is certain its room stays reserved."""
    monkeypatch.setattr(binder, "_BIND_SECONDS", 600.0)
    async with a_replica() as replica:
        replica.left_seconds = 0.05
        slow = SlowAnswer({})
        replica.server.fault = lambda seen: slow if seen.method == "POST" else None
        async with asyncio.timeout(60):  # without the bound it would be ten minutes
            assert "pods/new/binding" in await replica.bind()
        assert replica.ledger.reserved == 1
        slow.go_on.set()


async def test_a_binding_without_a_connection_was_not_sent_and_is_in_no_doubt() -> None:
    """An API server that starts again refuses connections: kube-scheduler tries again, anywhere."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen
        async with a_replica() as replica:
            replica.api_port = deaf.getsockname()[1]
            assert "connection refused" in await replica.bind()
            assert replica.outcome == "refused"
            assert replica.ledger.reserved == 0
