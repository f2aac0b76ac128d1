"""NVIDIA's own plugin beside ours, found by its socket where the resource names are the same."""

from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle.node_follower import CURE
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.kubelet.directory import PluginDirectory


class SocketCheck:
    """Dials the sockets in the kubelet's directory that are named as NVIDIA's plugin names them.

    It runs once before anything is registered.
    """

    def __init__(self, directory: PluginDirectory, mode: ModeFollower, settings: Settings) -> None:
        self._directory = directory
        self._mode = mode
        self._settings = settings

    async def run(self) -> None:
        """Dial them; one that answers is a plugin that gives away the same cards."""
        if not self._settings.allow_other_plugin:
            names = ", ".join(await self._directory.other_plugins())
            text = f"another device plugin answers on {names} in {self._directory.path}; {CURE}"
            self._mode.note_answering(text if names else "")
