"""The directory of plugin sockets, which the kubelet wipes whenever it starts.

"kubelet.sock is another one" is the kubelet's only way to say that it restarted and
forgot us: it removes the sockets, then listens (kubelet.md 1). A file event tells at
once; a look every second serves where the event was missed.
"""

import asyncio
import os
import secrets
import stat
from itertools import count
from pathlib import Path

import structlog
from watchfiles import awatch

from gpu_device_plugin.domain.units import Resource

KUBELET_SOCKET = "kubelet.sock"
LOOK_SECONDS = 1.0
_PREFIX = "gpudp"
_WATCH_STEP_MS = 500
_WATCH_PAUSE_MS = 5000
_LOG = structlog.get_logger(__name__)

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of a socket file."""


class PluginDirectory:
    """The plugin directory and the sockets in it, the kubelet's and ours.

    Attributes:
        path: The directory, for instance /var/lib/kubelet/device-plugins.
        kubelet_socket: Where the kubelet takes registrations.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubelet_socket = path / KUBELET_SOCKET
        self._listeners: set[asyncio.Event] = set()
        self._numbers = count(1)

    def kubelet_identity(self) -> SocketIdentity | None:
        """What tells this kubelet.sock from the next one; None where there is none.

        The time is part of it, because a file system may give a freed inode number out again.
        """
        try:
            found = self.kubelet_socket.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_mtime_ns)

    def fresh_socket(self, resource: Resource) -> Path:
        """A socket path never used before.

        Kubelets tell registrations apart by it: under a used name, the end of the old
        stream would end the new registration (kubernetes #135437).
        """
        name = f"{_PREFIX}-{resource.letter}-{os.getpid()}-{next(self._numbers)}"
        return self.path / f"{name}-{secrets.token_hex(3)}.sock"

    def remove_stale(self, resource: Resource, *, keep: Path) -> None:
        """Removes sockets that earlier registrations of `resource` left behind."""
        for path in self.path.glob(f"{_PREFIX}-{resource.letter}-*.sock"):
            if path != keep and is_socket(path):
                path.unlink(missing_ok=True)
                _LOG.info("stale socket removed", resource=str(resource), socket=path.name)

    def subscribe(self, listener: asyncio.Event) -> None:
        """Sets `listener` at every change in the directory, while `run` runs."""
        self._listeners.add(listener)

    async def run(self) -> None:
        """Watches the directory until cancelled; endpoints work without it, up to a second later."""
        while True:
            try:
                await self._watch()
            except OSError as error:
                # Not there yet, or out of inotify watches: the look every second has to do.
                _LOG.debug("cannot watch", directory=str(self.path), error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def _watch(self) -> None:
        identity = self.path.stat().st_ino
        changes = awatch(
            self.path,
            watch_filter=None,
            step=_WATCH_STEP_MS,
            debounce=_WATCH_STEP_MS,
            rust_timeout=_WATCH_PAUSE_MS,
            yield_on_timeout=True,
            recursive=False,
        )
        async for changed in changes:
            for listener in self._listeners if changed else ():
                listener.set()
            if not self.path.is_dir() or self.path.stat().st_ino != identity:
                return  # the directory itself was replaced: a watch follows the old one


def is_socket(path: Path | None) -> bool:
    """Whether a socket is at `path` now."""
    try:
        return path is not None and stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
