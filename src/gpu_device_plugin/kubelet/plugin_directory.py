"""The directory of plugin sockets, which the kubelet wipes whenever it starts.

A new kubelet.sock is the only sign that the kubelet restarted and forgot its plugins: it
removes all sockets, then listens. A file event reports it at once; in case an event is
missed, the directory is also checked once a second, for all endpoints together.

File events of one directory, read by the event loop without polling and without a thread.
"""

import asyncio
import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

from gpu_device_plugin.domain.socket_paths import LONGEST_PATH
from gpu_device_plugin.errors import KubeletError

_OF_FILES, _OF_ITSELF = Mask.CREATE | Mask.DELETE | Mask.MOVE, Mask.DELETE_SELF | Mask.MOVE_SELF
_WANTED = _OF_FILES | _OF_ITSELF | Mask.ONLYDIR


class FileEvents:
    """Calls `on_event` in the event loop when a file in `directory` is created or removed."""

    def __init__(self, directory: Path, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._inotify = Inotify()
        try:
            self._inotify.add_watch(directory, _WANTED)
        except OSError:
            self._inotify.close()
            raise
        self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop calling `on_event`."""
        self._listening.cancel()
        # The reader must be removed first: the next watch may get the same descriptor.
        await asyncio.wait({self._listening})
        self._inotify.close()

    async def _listen(self) -> None:
        # Which event it was does not matter: the callback checks the directory itself.
        async for _ in self._inotify:
            self._on_event()


KUBELET_SOCKET = "kubelet.sock"
LOOK_SECONDS = 1.0
_PREFIX = "gpudp"
_NVIDIAS = "nvidia-*.sock"
_DIAL_SECONDS = 0.5
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_ANSWER_SECONDS = 5.0
_log = structlog.get_logger(__name__)

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of a socket file."""


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

    async def other_plugins(self) -> tuple[str, ...]:
        """Names of the sockets of NVIDIA's plugin that answer; our own are never named so.

        A stale file refuses the connection. One that cannot be dialled at all proves nothing.
        """
        found = sorted(path for path in self.path.glob(_NVIDIAS) if is_socket(path))
        answers = await asyncio.gather(*map(_accepts, found))
        return tuple(path.name for path, has in zip(found, answers, strict=True) if has)

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


def socket_identity(path: Path) -> SocketIdentity | None:
    """The identity of a socket, which the next one of its name will not have; None if missing.

    The time is part of it, because a file system may reuse an inode number.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def is_socket(path: Path | None) -> bool:
    """Whether a socket is at `path` now."""
    try:
        return path is not None and stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def kubelet_pid(path: Path) -> int:
    """The process that serves this socket, 0 if outside our pid namespace. KubeletError: none."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(path))
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError as error:
        raise KubeletError(f"nothing answers on {path}: {error}") from error
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid
