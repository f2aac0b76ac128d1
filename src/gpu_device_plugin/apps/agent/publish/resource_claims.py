"""Claims at the API server: what is allocated to them, and what is offered for them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.claims import fetch_claim, list_allocated
from gpu_device_plugin.cluster.node import NodeView
from gpu_device_plugin.cluster.resource_slices import ResourceSlices
from gpu_device_plugin.domain.claims import Claim, OfferedDevice

CLAIM_SECONDS = 5.0
"""The kubelet waits longer for a claim, and asks again."""


class ResourceClaims(Protocol):
    """What the front of claims needs of the API server."""

    async def fetch(self, namespace: str, name: str, /) -> Claim | None:
        """One GET with a deadline; None if there is no such claim.

        Raises:
            ClusterError: The API server did not answer in time.
        """
        ...

    async def every(self) -> Sequence[Claim]:
        """Every claim of the cluster that has a device of ours.

        Raises:
            ClusterError: The API server does not answer.
        """
        ...

    def offer(self, devices: Sequence[OfferedDevice], driver_version: str, /) -> None:
        """Offer these to the scheduler for claims, and nothing else."""
        ...

    @property
    def has_offered(self) -> bool:
        """Whether the API server has the last offer."""
        ...

    @property
    def refused(self) -> str:
        """That the API server takes no offers of ours, in its words; empty where it may."""
        ...

    @property
    def was_taken(self) -> bool:
        """Whether the API server has, or had, one of our offers since it was last taken back."""
        ...

    async def would_take(self) -> bool:
        """Whether it would take now what it has refused; nothing is written."""
        ...


class ApiClaims:
    """Claims of a cluster; nothing is asked before the first offer or claim."""

    def __init__(self, api: ApiServer, node: str, view: Callable[[], NodeView | None]) -> None:
        self._api = api
        self._slices = ResourceSlices(
            api, node, lambda: node_view.uid if (node_view := view()) else ""
        )

    async def fetch(self, namespace: str, name: str) -> Claim | None:
        """One GET with a deadline; None if there is no such claim.

        Raises:
            ClusterError: The API server did not answer in time.
        """
        return await fetch_claim(self._api, namespace, name, CLAIM_SECONDS)

    async def every(self) -> Sequence[Claim]:
        """Every claim of the cluster that has a device of ours.

        Raises:
            ClusterError: The API server does not answer.
        """
        return await list_allocated(self._api)

    def offer(self, devices: Sequence[OfferedDevice], driver_version: str) -> None:
        """Offer these to the scheduler for claims, and nothing else."""
        self._slices.offer(devices, driver_version)

    def node_changed(self) -> None:
        """Our node is another one than before, or is known now."""
        self._slices.node_changed()

    @property
    def has_offered(self) -> bool:
        """Whether the API server has the last offer."""
        return self._slices.is_written

    @property
    def refused(self) -> str:
        """That the API server takes no offers of ours, in its words; empty where it may."""
        return self._slices.refused

    @property
    def was_taken(self) -> bool:
        """Whether the API server has, or had, one of our offers since it was last taken back."""
        return self._slices.was_taken

    async def would_take(self) -> bool:
        """Whether it would take now what it has refused; nothing is written."""
        return await self._slices.would_take()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._slices.run()


class NoClaims:
    """Without an API server there are none, and nobody would allocate what is offered."""

    has_offered = True
    refused = ""
    was_taken = True

    async def would_take(self) -> bool:
        """Nothing is refused."""
        return True

    async def fetch(self, _namespace: str, _name: str, /) -> Claim | None:
        """None."""
        return None

    async def every(self) -> Sequence[Claim]:
        """None."""
        return ()

    def offer(self, _devices: Sequence[OfferedDevice], _driver_version: str, /) -> None:
        """Nothing to do."""
