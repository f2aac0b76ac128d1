"""A Lease that one of several replicas holds, as client-go's leader election keeps it.

The holder has a label by which a Service finds the one pod that serves kube-scheduler. Where the API
server does not answer, or refuses, each method raises ClusterError.
"""

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer, Request
from gpu_device_plugin.kubernetes.client.listing import Document, create, list_items, read, replace
from gpu_device_plugin.kubernetes.client.wire import Bare

LEADER_LABEL = "gpu-device-plugin/leader"


class LeaderLabel:
    """The label on the pods of one namespace; nothing is done where our own pod has no name."""

    def __init__(self, api: ApiServer, namespace: str, pod_name: str) -> None:
        self._api, self._pod_name = api, pod_name
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    async def take(self) -> None:
        """Have it on our pod and on no other."""
        if not self._pod_name:
            return
        query = {"labelSelector": f"{LEADER_LABEL}=true"}
        pods = list_items(self._api, self._pods, Bare, query)
        names = {pod.metadata.name async for pod in pods}
        for name in names - {self._pod_name}:
            await self._patch(name, None)
        if self._pod_name not in names:
            await self._patch(self._pod_name, "true")

    async def give_up(self) -> None:
        """Have it on our pod no more."""
        if self._pod_name:
            await self._patch(self._pod_name, None)

    async def _patch(self, name: str, value: str | None) -> None:
        body: dict[str, Any] = {"metadata": {"labels": {LEADER_LABEL: value}}}
        answer = await self._api.call(Request("PATCH", f"{self._pods}/{name}", body=body))
        if not (answer.is_success or answer.is_not_found):
            raise ClusterError(f"label of pod {name}: {answer.text}")


@dataclass(frozen=True, slots=True)
class LeasePace:
    """client-go's three times.

    Attributes:
        lease_seconds: Others take over when nothing was renewed for so long, by their own clock.
        renew_seconds: The holder gives up when it could not renew for so long. What it has sent
            by then has to be over before `lease_seconds`.
    """

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which Lease, and who we are: no other replica has our `identity`."""

    namespace: str
    name: str
    identity: str

    @property
    def collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"


class Lease:
    """One replica's view of the Lease.

    Clocks of replicas are never compared: what counts is for how long we saw no change.
    """

    def __init__(
        self,
        api: ApiServer,
        name: LeaseName,
        pace: LeasePace,
        utc_now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.holder = ""  # who held it when we looked last; "" for nobody
        self.name, self.pace = name, pace
        self._api, self._utc_now = api, utc_now
        self._seen: object = None
        self._seen_at = 0.0

    async def try_hold(self) -> bool:
        """Acquire or renew; whether this replica holds it now."""
        found = await read(self._api, self._path)
        if found is None:
            body = {"metadata": {"name": self.name.name, "namespace": self.name.namespace}}
            return self._took(await create(self._api, self.name.collection, self._held_lease(body)))
        spec = found.get("spec") or {}
        loop = asyncio.get_running_loop()
        if spec != self._seen:
            self._seen, self._seen_at = spec, loop.time()
        self.holder = str(spec.get("holderIdentity") or "")
        is_alive = loop.time() < self._seen_at + self.pace.lease_seconds
        if self.holder not in ("", self.name.identity) and is_alive:
            return False
        return self._took(await replace(self._api, self._path, self._held_lease(found)))

    async def release(self) -> None:
        """Let others take over at once; nothing happens where this replica does not hold it."""
        found = await read(self._api, self._path)
        spec = dict((found or {}).get("spec") or {})
        if found is None or spec.get("holderIdentity") != self.name.identity:
            return
        body = {**found, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}}
        await replace(self._api, self._path, body)
        self.holder = ""

    @property
    def _path(self) -> str:
        return f"{self.name.collection}/{self.name.name}"

    def _held_lease(self, before: Document) -> dict[str, Any]:
        """The Lease with this replica as its holder from now on."""
        spec = dict(before.get("spec") or {})
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.name.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(spec)
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self.name.identity,
            "leaseDurationSeconds": max(1, round(self.pace.lease_seconds)),
            "renewTime": now,
        }
        return {**before, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}

    def _took(self, written: Document | None) -> bool:
        if written is None:  # somebody was quicker
            return False
        self._seen, self._seen_at = written.get("spec"), asyncio.get_running_loop().time()
        self.holder = self.name.identity
        return True
