"""The configuration in force: NVIDIA's file is read again when it changes.

A change acts when no pod holds a device under the configuration before, as a change of the mode
does; what needs other endpoints or another inventory waits for the agent's next start.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.config.nvidia_settings import (
    Configuration,
    needs_restart,
    nvidia_configuration,
)
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.errors import ConfigError


class ConfigurationFollower:
    """Follows NVIDIA's configuration file.

    Attributes:
        current: What is in force.
    """

    def __init__(
        self,
        settings: Settings,
        holders: Callable[[], Sequence[PodRef] | None],
        recorder: Callable[[], EventRecorder],
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._holders = holders
        self._recorder = recorder
        self._on_change = on_change
        self._read_at = self._stamp()
        self.current = nvidia_configuration(settings)
        self._wanted = self.current
        self._waits_for = ""

    def run(self) -> None:
        """Take a changed file, or one that waits."""
        stamp = self._stamp()
        if stamp != self._read_at:
            self._read_at = stamp
            self._wanted = self._read()
        if self._wanted != self.current:
            self._settle()

    def _read(self) -> Configuration:
        """The file's configuration; that in force where the file's cannot be taken."""
        try:
            wanted = nvidia_configuration(self._settings)
        except ConfigError as error:
            return self._kept(str(error))
        if needs_restart(self.current, wanted):
            return self._kept("it has another MIG strategy or resource name; restart the agent")
        return wanted

    def _kept(self, why: str) -> Configuration:
        text = f"{self._settings.config_file} is not taken, the configuration before stays: {why}"
        self._recorder().node_note("ConfigurationRefused", text)
        return self.current

    def _settle(self) -> None:
        holders = self._holders()
        if holders is None:
            return  # it is not known yet
        names = ", ".join(sorted({str(pod) for pod in holders}))
        if names:
            if names != self._waits_for:
                text = f"{self._settings.config_file} has changed and waits for pods: {names}"
                self._recorder().node_note("ConfigurationWaits", text)
            self._waits_for = names
            return
        self.current, self._waits_for = self._wanted, ""
        text = f"{self._settings.config_file} is in force"
        self._recorder().node_note("ConfigurationChanged", text, is_warning=False)
        self._on_change()

    def _stamp(self) -> tuple[int, int, int] | None:
        """Differs when the file does; a ConfigMap replaces the directory that a link leads to."""
        try:
            found = Path(self._settings.config_file).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
