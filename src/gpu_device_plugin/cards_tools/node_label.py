"""One label of one node, as the API server has it, and the configuration that it chooses."""

import asyncio
from collections.abc import Sequence

from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.errors import ConfigError, EdgeError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Node
from gpu_device_plugin.settings.nvidia_configuration import LastRead, read_if_changed
from gpu_device_plugin.settings.nvidia_settings import NvidiaSettings


class NodeLabel:
    """Follows the value of one label."""

    def __init__(self, api: ApiServer, node: str, key: str) -> None:
        self.value: str | None = None  # before the node was read; "" without the label or the node
        self.changed = asyncio.Event()  # set at each change of the value
        self._key = key
        listener: ObjectListener[Node] = ObjectListener(
            replace=self._replace, put=self._see, remove=lambda _: self._set("")
        )
        source = Source("/api/v1/nodes", f"metadata.name={node}")
        self._node = Reflection(api, source, Node, listener)

    async def run(self) -> None:
        await self._node.run()

    def _replace(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            self._set("")
        for node in nodes:
            self._see(node)

    def _see(self, node: Node) -> None:
        self._set(node.labels.get(self._key, ""))

    def _set(self, value: str) -> None:
        if value != self.value:
            self.value = value
            self.changed.set()


class ChosenConfiguration:
    """NVIDIA's configuration as it is now."""

    def __init__(self, settings: NvidiaSettings, label: NodeLabel | None) -> None:
        self._settings = settings
        self._label = label
        self._found = LastRead()

    def __call__(self) -> Configuration:
        """Read it again where it has changed. ConfigError: none is chosen, or it is malformed."""
        name = None if self._label is None else self._label.value
        if self._label is not None and name is None:
            raise EdgeError(f"the node's label {self._settings.node_label} has not been read yet")
        self._found = read_if_changed(self._settings, name, self._found)
        if isinstance(self._found.result, Configuration):
            return self._found.result
        raise self._found.result or ConfigError("no configuration was read")
