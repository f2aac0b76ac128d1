"""The ConfigMaps `unhealthy-gpu-<node>` (R-542): what agents found, written for others who read them.

What operators take out there each agent reads itself, and tells with its cards.
"""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.cards.health_values import TAKEN_OUT
from gpu_device_plugin.domain.cards.named_cards import named_cards
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer, fault_reason
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import Document, read, write
from gpu_device_plugin.kubernetes.client.reflector import Reflection, Source, listen_by_key
from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import (
    COLLECTION,
    KEY,
    NAMESPACE,
    PREFIX,
    WRITTEN,
    WRITTEN_BY,
    UnhealthyGpus,
)

_AGAIN_SECONDS = 30.0
_log = structlog.get_logger("unhealthy")


class UnhealthyCards:
    """Keeps its own entries to what the agents tell; those of operators stay as they are.

    It follows those ConfigMaps alone that it has written: the namespace may have large ones.
    `writes` says whether this replica keeps them now.
    """

    def __init__(self, api: ApiServer, ledger: ClusterLedger, writes: Callable[[], bool]) -> None:
        self._api, self._ledger, self._writes = api, ledger, writes
        self._found: dict[str, UnhealthyGpus] = {}
        self._due: dict[str, None] = {}  # in order
        self._wake = asyncio.Event()
        self.reflection = Reflection(
            api,
            Source(COLLECTION, "", is_optional=True, labels=f"{WRITTEN}={WRITTEN_BY}"),
            UnhealthyGpus,
            listen_by_key(
                lambda found: found.metadata.name,
                lambda: [PREFIX + node for node in self._found],
                self._put,
                self._drop,
                self._wake.set,
            ),
        )

    def node_changed(self, node: str) -> None:
        """The health of a node's cards may have changed.

        Thousands of nodes are as they should be; kube-scheduler would wait for each look.
        """
        if not self._is_right(node):
            self._due[node] = None
            self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflection.run())
            group.create_task(self._write())

    def _put(self, found: UnhealthyGpus) -> None:
        if found.metadata.name.startswith(PREFIX):
            node = found.metadata.name.removeprefix(PREFIX)
            self._found[node] = found
            self.node_changed(node)

    def _drop(self, name: str) -> None:
        node = name.removeprefix(PREFIX)
        self._found.pop(node, None)
        self.node_changed(node)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due and self._writes() and self.reflection.is_synced:
                node = next(iter(self._due))
                del self._due[node]
                try:
                    await self._write_entries(node)
                except ClusterError as error:
                    _log.warning("ConfigMap unhealthy-gpu not written", node=node, error=str(error))
                    self._due[node] = None
                    await asyncio.sleep(_AGAIN_SECONDS)

    def _is_right(self, node: str) -> bool:
        """Whether the ConfigMap says what the agent says; nothing is taken back that is not known."""
        offer, found = self._ledger.offers.get(node), self._found.get(node, UnhealthyGpus())
        if offer is None:
            return True
        ours = _ours(offer, found)
        return set(found.written) == ours and ours <= set(found.listed)

    async def _write_entries(self, node: str) -> None:
        """Make the written entries those cards that are sick; an operator's stay."""
        offer = self._ledger.offers.get(node)
        if offer is None or self._is_right(node):
            return
        before = await read(self._api, f"{COLLECTION}/{PREFIX}{node}")
        body = _merge(before, node, offer)
        if await write(self._api, COLLECTION, PREFIX + node, before, body) is None:
            self._due[node] = None  # changed meanwhile: look again


def _ours(offer: NodeOffer, found: UnhealthyGpus) -> set[str]:
    """Indexes of the cards that an agent found sick and that no operator's entry names."""
    indexes = {card.uuid: card.index for card in offer.cards}
    named = {card for entry in found.operators for card in named_cards(entry, indexes)}
    return {
        str(card.index)
        for card in offer.cards
        if card.index not in offer.healthy
        and card.uuid not in named
        and fault_reason(offer.faults.get(card.index, "")) != TAKEN_OUT
    }


def _merge(before: Document | None, node: str, offer: NodeOffer) -> Document:
    plain = before or {"metadata": {"name": PREFIX + node, "namespace": NAMESPACE}}
    found = msgspec.convert(plain, UnhealthyGpus)
    written = sorted(_ours(offer, found), key=int)
    meta = {
        **plain["metadata"],
        "labels": {**found.labels, WRITTEN: WRITTEN_BY},
        "annotations": {**found.annotations, WRITTEN: ",".join(written)},
    }
    data = {**(plain.get("data") or {}), KEY: ",".join((*found.operators, *written))}
    return {**plain, "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
