"""Sockets as files: how long a path may be, which socket is there now, who serves it."""

import asyncio
import socket
import stat
import struct
from pathlib import Path
from typing import Any

from gpu_device_plugin.errors import KubeletError

LONGEST_PATH = 107
"""Bytes, in Linux: 108 with the zero byte at the end (unix(7)). The settings check paths by the same number."""
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_ANSWER_SECONDS = 5.0

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of a socket file."""


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


async def listen(server: Any, path: Path) -> None:
    """Start a gRPC server on a socket; cancelled, it is started first. KubeletError: it cannot listen.

    A start that is cut off leaves a server that runs and that gRPC can stop no more.
    """
    try:
        server.add_insecure_port(f"unix:{path}")
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting
            raise
    except RuntimeError as error:
        raise KubeletError(f"cannot listen on {path}: {error}") from error


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
