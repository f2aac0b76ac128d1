"""The configuration in force: NVIDIA's file is read again when it changes.

The disk of the file may be stuck: a thread of its own reads it, and nobody waits for that. A
change acts when no pod holds a device under the configuration before, as a change of the mode does; what needs other endpoints or another inventory waits for the agent's next start.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.config.nvidia_settings import (
    Configuration,
    needs_restart,
    nvidia_configuration,
)
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.store.writer import Writer

_Stamp: TypeAlias = tuple[int, int, int] | None


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
        self._read_at = _stamp(settings)
        self._thread = Writer()
        self._reading: asyncio.Task[None] | None = None
        self.current = nvidia_configuration(settings)
        self._wanted = self.current
        self._waits_for = ""

    def run(self) -> None:
        """Begin to take a changed file, or one that waits, unless that is going on."""
        is_busy = self._reading is not None and not self._reading.done()
        if self._settings.config_file and not is_busy:
            self._reading = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        before = self._read_at
        job = partial(_read_if_changed, self._settings, before)
        self._read_at, found = await self._thread.run(job)
        if self._read_at != before:
            self._wanted = self._taken(found)
        if self._wanted != self.current:
            self._settle()

    def _taken(self, wanted: Configuration | ConfigError) -> Configuration:
        """The file's configuration; that in force where the file's cannot be taken."""
        if isinstance(wanted, ConfigError):
            return self._kept(str(wanted))
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


def _read_if_changed(
    settings: Settings, read_at: _Stamp
) -> tuple[_Stamp, Configuration | ConfigError]:
    """The file's stamp and, where that is another one, what the file says."""
    stamp = _stamp(settings)
    try:
        return stamp, Configuration() if stamp == read_at else nvidia_configuration(settings)
    except ConfigError as error:
        return stamp, error


def _stamp(settings: Settings) -> _Stamp:
    """Differs when the file does; a ConfigMap replaces the directory that a link leads to."""
    try:
        found = Path(settings.config_file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
