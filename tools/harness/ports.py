"""Ports for programs that are told theirs before they listen."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

# Not of the kernel's range: no connection of another program takes one meanwhile.
_FIRST, _COUNT = 20000, 12000
# The last one that was given, for all processes of this user: those that run side by side share none.
_LAST = Path(tempfile.gettempdir()) / f"free-port-{os.getuid()}"


def free_port() -> int:
    """A port of loopback on which nobody listens, another one at each call."""
    with _LAST.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = int(file.read() or 0)
        for number in range(last + 1, last + 1 + _COUNT):
            port = _FIRST + number % _COUNT
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            file.truncate(0)
            file.write(str(number))
            return port
    raise AssertionError(f"every port of {_FIRST} to {_FIRST + _COUNT - 1} is taken")
