"""A Lease that one of several replicas holds, as client-go's leader election keeps it.

Where the API server does not answer, or refuses, each method raises ClusterError.
"""

import asyncio
import datetime
from dataclasses import dataclass
from typing import Any

from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import Document, create, read, replace


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

    def __init__(self, api: ApiServer, name: LeaseName, lease_seconds: float) -> None:
        """Others take over when nothing was renewed for `lease_seconds`."""
        self.holder = ""  # who held it when we looked last; "" for nobody
        self._api, self.name, self._lease_seconds = api, name, lease_seconds
        self._own: Document | None = None  # as we wrote it last, if nobody is known to have since
        self._seen: object = None
        self._seen_at = 0.0

    async def try_hold(self) -> bool:
        """Acquire or renew; whether this replica holds it now.

        What we wrote is renewed by one request, as client-go does it: a slow API server is asked once.
        """
        own, self._own = self._own, None
        if own and self._took(await self._replace(self._held_lease(own))):
            return True
        found = await read(self._api, self._path, self._lease_seconds)
        if found is None:
            body = {"metadata": {"name": self.name.name, "namespace": self.name.namespace}}
            return self._took(await create(self._api, self.name.collection, self._held_lease(body)))
        spec = found.get("spec") or {}
        loop = asyncio.get_running_loop()
        if spec != self._seen:
            self._seen, self._seen_at = spec, loop.time()
        self.holder = str(spec.get("holderIdentity") or "")
        is_alive = loop.time() < self._seen_at + self._lease_seconds
        if self.holder not in ("", self.name.identity) and is_alive:
            return False
        return self._took(await self._replace(self._held_lease(found)))

    async def release(self) -> None:
        """Let others take over at once; nothing happens where this replica does not hold it."""
        found = self._own or await read(self._api, self._path)
        spec = dict((found or {}).get("spec") or {})
        if found is None or spec.get("holderIdentity") != self.name.identity:
            return
        body = {**found, "spec": {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}}
        await self._replace(body)
        self.holder = ""

    async def _replace(self, body: Document) -> Document | None:
        """By a server that takes its time: who calls knows how long the Lease still lasts."""
        return await replace(self._api, self._path, body, self._lease_seconds)

    @property
    def _path(self) -> str:
        return f"{self.name.collection}/{self.name.name}"

    def _held_lease(self, before: Document) -> dict[str, Any]:
        spec = dict(before.get("spec") or {})
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.name.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(spec)
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": self.name.identity,
            "leaseDurationSeconds": max(1, round(self._lease_seconds)),
            "renewTime": now,
        }
        return {**before, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}

    def _took(self, written: Document | None) -> bool:
        if written is None:  # somebody was quicker
            return False
        self._own = written
        self._seen, self._seen_at = written.get("spec"), asyncio.get_running_loop().time()
        self.holder = self.name.identity
        return True
