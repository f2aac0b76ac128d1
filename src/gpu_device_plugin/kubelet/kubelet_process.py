"""The kubelet's process, by its socket."""

import socket
import struct
from pathlib import Path

from gpu_device_plugin.errors import KubeletError

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_SECONDS = 5.0


def kubelet_pid(path: Path) -> int:
    """The process that serves this socket, 0 if outside our pid namespace. KubeletError: none."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(path))
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError as error:
        raise KubeletError(f"nothing answers on {path}: {error}") from error
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid
