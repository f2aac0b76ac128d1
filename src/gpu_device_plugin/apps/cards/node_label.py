"""One label of one node, as the API server has it."""

import asyncio
from collections.abc import Sequence

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.reflector import Listener, Reflection, Source
from gpu_device_plugin.cluster.wire import Node


class NodeLabel:
    """Follows it.

    Args:
        api: The API server.
        node: The node's name.
        key: The label's.

    Attributes:
        value: "" without the label or the node; None before the node was read.
        changed: Set at each change of the value.
    """

    def __init__(self, api: ApiServer, node: str, key: str) -> None:
        self.value: str | None = None
        self.changed = asyncio.Event()
        self._key = key
        listener: Listener[Node] = Listener(
            replace=self._replace, put=self._see, remove=lambda _: self._set("")
        )
        source = Source("/api/v1/nodes", f"metadata.name={node}")
        self._node = Reflection(api, source, Node, listener)

    async def run(self) -> None:
        """Follow it until cancelled."""
        await self._node.run()

    def _replace(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            self._set("")
        for node in nodes:
            self._see(node)

    def _see(self, node: Node) -> None:
        self._set((node.metadata.labels or {}).get(self._key, ""))

    def _set(self, value: str) -> None:
        if value != self.value:
            self.value = value
            self.changed.set()
