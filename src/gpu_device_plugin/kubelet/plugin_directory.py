"""The directory of plugin sockets, which the kubelet wipes whenever it starts.

A new kubelet.sock is the only sign that the kubelet restarted and forgot its plugins: it
removes all sockets, then listens. A file event reports it at once; in case an event is
missed, the directory is also checked once a second, for all endpoints together.
"""

import asyncio
import os
import secrets
from pathlib import Path

import structlog

from gpu_device_plugin.kubelet.file_events import FileEvents
from gpu_device_plugin.kubelet.unix_sockets import (
    LONGEST_PATH,
    SocketIdentity,
    is_socket,
    socket_identity,
)

KUBELET_SOCKET = "kubelet.sock"
LOOK_SECONDS = 1.0
_PREFIX = "gpudp"
ANY_SOCKET = "*.sock"
_NVIDIAS = "nvidia-*.sock"
_DIAL_SECONDS = 0.5
_log = structlog.get_logger(__name__)


class PluginDirectory:
    """The plugin directory and the sockets in it, the kubelet's and our own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubelet_socket = path / KUBELET_SOCKET
        self._listeners: list[asyncio.Event] = []
        self._sockets: dict[str, Path] = {}  # the newest of each resource

    def kubelet_identity(self) -> SocketIdentity | None:
        """What tells this kubelet.sock from the next one; None if there is none."""
        return socket_identity(self.kubelet_socket)

    def fresh_socket(self, resource: str) -> Path:
        """A socket path that was never used before.

        Kubelets tell registrations apart by the path: with a used path, the end of the old
        stream would end the new registration (kubernetes #135437). The resource's name in it is for
        people only, and is cut to the length that a socket's path may have.
        """
        own = f"-{secrets.token_hex(6)}.sock"
        room = LONGEST_PATH - len(os.fsencode(self.path / f"{_PREFIX}-{own}"))
        name = resource.rpartition("/")[2][: max(0, room)]
        self._sockets[resource] = self.path / f"{_PREFIX}-{name}{own}"
        return self._sockets[resource]

    def remove_stale(self) -> None:
        """Remove sockets that earlier registrations left behind, also those of an earlier agent."""
        for path in self.path.glob(f"{_PREFIX}-*.sock"):
            if path not in self._sockets.values() and is_socket(path):
                path.unlink(missing_ok=True)
                _log.info("stale socket removed", socket=path.name)

    async def other_plugins(self, pattern: str = _NVIDIAS) -> tuple[str, ...]:
        """Names of the sockets, without ours and the kubelet's, that answer; those of NVIDIA's plugin if none are named.

        A stale file refuses the connection. One that cannot be dialled at all proves nothing.
        """
        found = sorted(path for path in self.path.glob(pattern) if self._is_other(path))
        answers = await asyncio.gather(*map(_accepts, found))
        return tuple(path.name for path, has in zip(found, answers, strict=True) if has)

    def _is_other(self, path: Path) -> bool:
        is_ours = path.name == KUBELET_SOCKET or path.name.startswith(f"{_PREFIX}-")
        return not is_ours and is_socket(path)

    def subscribe(self, listener: asyncio.Event) -> None:
        """Set `listener` at every change in the directory, while `run` runs."""
        self._listeners.append(listener)

    async def run(self, *, with_events: bool = True) -> None:
        """Watch the directory until cancelled, once a second and by file events."""
        events: FileEvents | None = None
        watched = seen = None
        try:
            while True:
                found = self._look()
                if with_events and found[0] != watched:
                    events, watched = await self._follow(events), found[0]
                if found != seen:
                    seen = found
                    self._tell()
                if events is None:
                    watched = None  # tried again every second
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if events is not None:
                await events.close()

    def _look(self) -> tuple[int | None, int | None, SocketIdentity | None]:
        """Identity of the directory, time of its last change, identity of the kubelet's socket."""
        try:
            found = self.path.stat()
        except OSError:
            return None, None, None
        return found.st_ino, found.st_mtime_ns, self.kubelet_identity()

    async def _follow(self, before: FileEvents | None) -> FileEvents | None:
        """Watch again if the path is another directory now; a watch stays with the old one."""
        if before is not None:
            await before.close()
        try:
            return FileEvents(self.path, self._tell)
        except OSError as error:
            # Not there yet, or no inotify watch left: the check once a second has to do.
            _log.debug("cannot watch", directory=str(self.path), error=str(error))
            return None

    def _tell(self) -> None:
        for listener in self._listeners:
            listener.set()


async def _accepts(path: Path) -> bool:
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError) as error:
        _log.debug("does not answer", socket=path.name, error=str(error))
        return False
    writer.close()
    return True
