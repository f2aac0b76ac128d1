"""The ConfigMaps `unhealthy-gpu-<node>` (R-542): what operators take out, and what agents found."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog

from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import Document, read, write
from gpu_device_plugin.kubernetes.client.reflector import Reflection, Source, listen_by_key
from gpu_device_plugin.kubernetes.client.wire import ConfigMap

NAMESPACE = "kube-system"
PREFIX = "unhealthy-gpu-"
KEY = "gpus"
WRITTEN = "gpu-device-plugin/unhealthy-gpus"
"""Annotation of such a ConfigMap: the entries that the controller wrote; the others are an operator's."""
_AGAIN_SECONDS = 30.0
_COLLECTION = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_log = structlog.get_logger("unhealthy")


class UnhealthyCards:
    """Honours what operators wrote, and keeps its own entries to what the agents tell.

    `writes` says whether this replica keeps the ConfigMaps now.
    """

    def __init__(self, api: ApiServer, ledger: ClusterLedger, writes: Callable[[], bool]) -> None:
        self._api, self._ledger, self._writes = api, ledger, writes
        self._told: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
        self._due: dict[str, None] = {}  # in order
        self._wake = asyncio.Event()
        self.reflection = Reflection(
            api,
            Source(_COLLECTION, "", is_optional=True),
            ConfigMap,
            listen_by_key(
                lambda found: found.metadata.name,
                lambda: [PREFIX + node for node in self._told],
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

    def _put(self, found: ConfigMap) -> None:
        name = found.metadata.name
        if name.startswith(PREFIX):
            listed = _indexes((found.data or {}).get(KEY, ""))
            written = _indexes(found.annotations.get(WRITTEN, ""))
            self._take(name.removeprefix(PREFIX), listed, written)

    def _drop(self, name: str) -> None:
        if name.startswith(PREFIX):
            self._take(name.removeprefix(PREFIX), frozenset(), frozenset())

    def _take(self, node: str, listed: frozenset[int], written: frozenset[int]) -> None:
        # Entries that were written here say nothing new: the annotation that they come from is newer.
        before = self._told.pop(node, (frozenset(), frozenset()))
        if listed or written:
            self._told[node] = (listed, written)
        if listed - written != before[0] - before[1]:
            _log.info("cards taken out", node=node, indexes=sorted(listed - written))
            self._ledger.taken_out(node, listed - written)
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
        sick = self._ledger.sick(node)
        listed, written = self._told.get(node, (frozenset(), frozenset()))
        return sick is None or (sick <= listed and written <= sick)

    async def _write_entries(self, node: str) -> None:
        """Make the written entries those cards that are sick; an operator's stay."""
        sick = self._ledger.sick(node)
        if sick is None or self._is_right(node):
            return
        found = await read(self._api, f"{_COLLECTION}/{PREFIX}{node}")
        body = _merge(found, node, sick)
        if await write(self._api, _COLLECTION, PREFIX + node, found, body) is None:
            self._due[node] = None  # changed meanwhile: look again


def _merge(before: Document | None, node: str, sick: frozenset[int]) -> Document:
    plain = before or {"metadata": {"name": PREFIX + node, "namespace": NAMESPACE}}
    annotations: Mapping[str, str] = plain["metadata"].get("annotations") or {}
    data: Mapping[str, str] = plain.get("data") or {}
    operators = _indexes(data.get(KEY, "")) - _indexes(annotations.get(WRITTEN, ""))
    written = sick - operators
    meta = {**plain["metadata"], "annotations": {**annotations, WRITTEN: _text(written)}}
    data = {**data, KEY: _text(operators | written)}
    return {**plain, "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def _indexes(text: str) -> frozenset[int]:
    """The cards of a list such as `0,3`; what is no number names no card.

    >>> sorted(_indexes("0, 3,x,"))
    [0, 3]
    """
    parts = (part.strip() for part in text.split(","))
    return frozenset(int(p) for p in parts if p.isascii() and p.isdecimal() and len(p) < 4)


def _text(cards: Iterable[int]) -> str:
    return ",".join(str(card) for card in sorted(cards))
