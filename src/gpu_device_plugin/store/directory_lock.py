"""A lock that all processes of a node can take, whatever of it they have mounted, and who holds it.

It is one of a directory and not of a file in it: the programs that change cards have the kubelet's
directory mounted read-only. The kernel releases it with the process, and knows who has it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_device_plugin.errors import EdgeError, StorageError

_LOCKS = Path("/proc/locks")


@contextmanager
def only_one(directory: Path, purpose: str) -> Iterator[None]:
    """While it lasts no other process does the same.

    Args:
        directory: Any that all of them see.
        purpose: What is done, for the error.

    Raises:
        EdgeError: Another process does it; the text names it.
        StorageError: The directory cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be opened: {error.strerror}") from error
    try:
        _take(descriptor, directory, purpose)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, directory: Path, purpose: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder(os.fstat(descriptor).st_ino)
        raise EdgeError(
            f"{purpose}: {holder} does so now and holds the lock of {directory}; wait for its end"
        ) from error


def _holder(inode: int) -> str:
    """The process with a lock of that inode, and its command line."""
    for line in _LOCKS.read_text().splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 00:2b:1234 0 EOF
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            try:
                command = Path("/proc", words[4], "cmdline").read_bytes().rstrip(b"\0")
            except OSError:
                command = b""
            shown = command.replace(b"\0", b" ").decode(errors="backslashreplace")[:200]
            return f"process {words[4]} ({shown})"
    return "a process that this pid namespace does not show"
