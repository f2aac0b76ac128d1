"""Looks for another device plugin that gives away the same cards, before anything is registered and then every few seconds."""

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.card_watch.mode_follower import OTHERS_CURE, ModeFollower
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.publish.device_lists import Registrations
from gpu_device_plugin.domain.node.other_plugins import is_of_others, served_by_others
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet.plugin_directory import ANY_SOCKET, PluginDirectory
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.settings.agent_settings import Settings

_AGAIN_SECONDS = 1.0
"""After which the kubelet is asked again: it may not have noticed yet that a plugin, or our own process of before, has ended."""
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class OtherPluginSearch:
    """Finds it by a socket of the names of NVIDIA's plugin, and by what the kubelet is served.

    Attributes:
        own: Resources that we may serve.
    """

    settings: Settings
    mode: ModeFollower
    cluster: Cluster
    registrations: Registrations
    plugins: PluginDirectory
    pods: PodResources
    own: Container[str]
    boot_seconds: Callable[[], float]

    async def run(self) -> None:
        """Look once, and tell the mode."""
        if self.settings.allow_other_plugin:
            return
        names = ", ".join(await self.plugins.other_plugins())
        text = f"another device plugin answers on {names} in {self.plugins.path}; {OTHERS_CURE}"
        self.mode.note_answering(text if names else "")
        before, found = self.mode.others, await self._served()
        if found and not before.names:
            await asyncio.sleep(_AGAIN_SECONDS)
            found = await self._served()
        is_new = bool(found) and found != before.names
        sockets = ", ".join(await self.plugins.other_plugins(ANY_SOCKET)) if is_new else ""
        self.mode.note_others(before.after(found, self.boot_seconds()), sockets)

    async def _served(self) -> frozenset[str] | None:
        """Resources of other plugins as the kubelet has them; None where it does not answer.

        While something of ours is registered it is asked only where the node has a name of another project's:
        the answer has an entry for each of our units.
        """
        node, registrations = self.cluster.node, self.registrations
        if registrations.is_any and not any(map(is_of_others, node.allocatable if node else ())):
            return frozenset()
        try:
            served = await self.pods.served()
        except KubeletError as error:
            _log.debug("the kubelet does not say what it is served", error=str(error))
            return None
        return served_by_others(served, self.own, is_registered=registrations.is_any)
