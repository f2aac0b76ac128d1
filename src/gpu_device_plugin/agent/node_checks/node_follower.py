"""What a change of our Node object means: another plugin, the labels, the mark for uninstalling."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpu_device_plugin.agent.card_watch.mode_follower import ModeFollower
from gpu_device_plugin.agent.node_checks.withdrawal import Withdrawal
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.domain.node.modes import MODE_LABEL, NodeMode, is_whole, parse_mode
from gpu_device_plugin.domain.node.state import StateReader
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.kubelet.plugin_directory import PluginDirectory
from gpu_device_plugin.kubernetes.objects.node_object import NVIDIA_NAMES
from gpu_device_plugin.settings.agent_settings import Settings

_CURE = "nothing is offered. Remove it, or start with --allow-other-plugin"
_SETTLED_SECONDS = 30.0  # the kubelet writes within 10 s that nobody serves a name any more


@dataclass(eq=False)
class NodeFollower:
    """Passes a change of the node on to the parts, in the order in which it matters."""

    cluster: Cluster
    mode: ModeFollower
    withdrawal: Withdrawal
    state: StateReader
    settings: Settings
    plugins: PluginDirectory

    def __post_init__(self) -> None:
        self._not_ours: dict[str, float] = {}
        """Names of ours that the kubelet has devices of without our registration, and since when."""
        self._sockets = ""

    def node_changed(self, _: None) -> None:
        node = self.cluster.node
        if node is None:
            return
        wanted = parse_mode(node.labels.get(MODE_LABEL, "")) or self.state().mode
        wanted = wanted or self.settings.mode
        self._count_names(node.allocatable_names(), wanted)
        foreign = self._foreign(wanted)
        self.mode.note_foreign(f"{foreign}; {_CURE}" if foreign else "")
        # Before the labels: a withdrawn node must not be offered meanwhile.
        self.withdrawal.follow()
        self.mode.note_kubelet(node.kubelet_version)
        if not self._is_unclear(wanted):
            self.mode.follow(node.labels)

    async def dial_other_plugins(self) -> None:
        """One that answers on a socket of the names of NVIDIA's plugin gives away the same cards.

        It is dialled once before anything is registered.
        """
        if self.settings.allow_other_plugin:
            return
        names = ", ".join(await self.plugins.other_plugins())
        text = f"another device plugin answers on {names} in {self.plugins.path}; {_CURE}"
        self.mode.note_answering(text if names else "")
        if self._not_ours:
            self._sockets = ", ".join(await self.plugins.other_plugins("*.sock"))
            self.node_changed(None)

    def _count_names(self, counted: Collection[str], wanted: NodeMode) -> None:
        """Note since when names of ours count that we do not serve: by ours of an earlier life for 10 s, else by another's."""
        if self.settings.allow_other_plugin:
            return
        now, mode = asyncio.get_running_loop().time(), self.state().mode
        has_whole = is_whole(mode) or is_whole(wanted)
        since, self._not_ours = self._not_ours, {}
        for name in counted:
            is_own = name in OUR_RESOURCES or (has_whole and name.startswith(NVIDIA_NAMES))
            is_served = name in self.mode.registered and mode is not NodeMode.DISABLED
            if is_own and (not is_served or name in self._settled(since)):
                self._not_ours[name] = since.get(name, now)

    def _settled(self, since: Mapping[str, float]) -> list[str]:
        now = asyncio.get_running_loop().time()
        return sorted(name for name, start in since.items() if now - start >= _SETTLED_SECONDS)

    def _is_unclear(self, wanted: NodeMode) -> bool:
        """Whether to offer nothing yet, because another plugin may serve the names."""
        is_out = self.state().mode in (None, NodeMode.DISABLED)
        is_settled = len(self._settled(self._not_ours)) == len(self._not_ours)
        return is_out and wanted is not NodeMode.DISABLED and not is_settled

    def _foreign(self, wanted: NodeMode) -> str:
        """Evidence of another plugin on our cards, as the API server shows it; empty if none.

        Where whole cards are offered, NVIDIA's names are our own; so are names that we registered
        earlier, which the kubelet goes on counting for a while. There a socket tells (`dial_other_plugins`).
        """
        if self.settings.allow_other_plugin:
            return ""
        has_whole, registered = (
            is_whole(self.state().mode) or is_whole(wanted),
            self.mode.registered,
        )
        found = self.cluster.foreign_plugin(
            lambda name: (has_whole and name.startswith(NVIDIA_NAMES)) or name in registered
        )
        if found or not (names := self._settled(self._not_ours)):
            return found
        answering = f" (sockets that answer: {self._sockets})" if self._sockets else ""
        return f"another device plugin serves {', '.join(names)} on this node{answering}"
