"""Locks of a node: one agent, and one program at a time that changes cards."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_device_plugin.disk.selinux import relabel
from gpu_device_plugin.errors import ConfigError, EdgeError, StorageError, storage_errors


class NodeLock:
    """Holds `<state-dir>/lock` while the process lives; the kernel releases it.

    The file names the holder's pod and pid, so that a second agent can name the first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._said = ("", 0)

    def take(self, pod: str, pid: int) -> None:
        """Become the node's agent. ConfigError: another serves it; the text names pod and pid."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            hint = f"; if SELinux enforces, run on the node: {relabel(self._path.parent)}"
            is_denied = error.errno == errno.EACCES
            raise StorageError(
                f"{self._path}: cannot be opened: {error.strerror}{hint if is_denied else ''}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(self._path, descriptor):  # removed meanwhile: another one is the lock
                os.close(descriptor)
                self.take(pod, pid)
                return
        except BlockingIOError as error:
            holder = os.read(descriptor, 4096).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise ConfigError(
                f"another agent serves this node: {holder or 'one that has not written its name yet'} "
                f"holds {self._path}; one agent per node"
            ) from error
        # For people only: a full disk must not keep the agent from starting.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"pod {pod or '(none)'}, pid {pid}\n".encode())
        self._descriptor, self._said = descriptor, (pod, pid)

    def keep(self) -> bool:
        """Take the lock again if the file was removed; whether it was. ConfigError: another has it."""
        try:
            if self._descriptor < 0 or is_at(self._path, self._descriptor):
                return False
        except OSError:  # a failing disk has not lost the file
            return False
        self.release()
        self.take(*self._said)
        return True

    def remove(self) -> None:
        """Release the lock and remove its file; only the holder may."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one at `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


_LOCKS = Path("/proc/locks")


@contextmanager
def only_one(directory: Path, purpose: str) -> Iterator[None]:
    """While it lasts no other process of the node does the same, whatever of it each has mounted.

    The lock is one of a directory and not of a file in it: the programs that change cards have the
    kubelet's directory mounted read-only. The kernel releases it with the process. EdgeError names
    another process that does it.
    """
    with storage_errors("opened", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
