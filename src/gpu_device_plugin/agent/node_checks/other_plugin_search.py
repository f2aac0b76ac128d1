"""Looks for another device plugin that gives away the same cards, before anything is registered and then every few seconds."""

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import structlog

from gpu_device_plugin.agent.card_watch.mode_follower import OTHERS_CURE, ModeFollower
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.publish.device_lists import Registrations
from gpu_device_plugin.domain.node.other_plugins import is_of_others, served_by_others
from gpu_device_plugin.domain.scheme_registry import held_of_others
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
    _told: frozenset[str] = field(init=False, default=frozenset())
    _trouble: str = field(init=False, default="")

    async def run(self) -> None:
        """Look once, and tell the mode."""
        if self.settings.allow_other_plugin:
            return
        before, found = self.mode.others, await self._served()
        if found and not before.names:
            await asyncio.sleep(_AGAIN_SECONDS)
            found = await self._served()
        self.mode.note_answering(await self._answering())
        sockets = ""
        if found and found != self._told:
            sockets, self._told = ", ".join(await self.plugins.other_plugins(ANY_SOCKET)), found
        self.mode.note_others(before.after(found, self.boot_seconds()), sockets)

    async def _answering(self) -> str:
        """NVIDIA's plugin by its sockets; else why nobody knows yet whether there is another."""
        if names := ", ".join(await self.plugins.other_plugins()):
            return f"another device plugin answers on {names} in {self.plugins.path}; {OTHERS_CURE}"
        return self._trouble

    async def _served(self) -> frozenset[str] | None:
        """Resources of other plugins as the kubelet has them; None where it does not answer.

        While something of ours is registered it is asked only where the node has an amount of another project's:
        the answer has an entry for each of our units.
        """
        node, is_registered = self.cluster.node, self.registrations.is_any
        amounts = node.allocatable if node else {}
        if is_registered and not any(
            is_of_others(each) and amounts[each] != "0" for each in amounts
        ):
            return frozenset()
        try:
            served = await self.pods.served()
            # Not once it is ours: no List while one of our calls may be out (kubernetes #137534).
            others = self.mode.others
            listed = await self.pods.list() if others.names or not others.is_known else ()
        except KubeletError as error:
            if not self.mode.others.is_known:
                text = f"the kubelet does not tell which device plugins serve it: {error}"
                self._trouble = f"{text}; nothing is offered until it does"
            return None
        self._trouble = ""
        return served_by_others(served, self.own, is_registered=is_registered) | held_of_others(
            listed
        )
