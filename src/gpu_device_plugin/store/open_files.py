"""Files that containers have mounted read-only, kept open so that no container can lease them.

Root in a container owns what the agent has made, where no user namespace stands between, and the
owner of a file may take a lease on it (fcntl(2) F_SETLEASE), also through a read-only mount. Then
everybody else's open() of it waits, for fs.lease-break-time (45 s) each: at every exec that reads
/etc/ld.so.preload, in the containers of others. The kernel gives no such lease on a file that
another process has open. The other kind of lease holds up writers only, and these files have none.
"""

import contextlib
import os
import threading
from collections.abc import Collection

_FLAGS = os.O_RDONLY | os.O_CLOEXEC


class OpenFiles:
    """Keeps files open until they are no longer wanted."""

    def __init__(self) -> None:
        # A file that was replaced may still be mounted, so it stays open with the one at its path.
        self._kept: dict[str, dict[tuple[int, int], int]] = {}

    def keep(self, paths: Collection[str]) -> None:
        """From now on the files at exactly these paths, and those that were there, are open.

        One that is leased already is opened by a thread of its own, which waits once: it counts as
        open while it waits, so that the lease is the last.
        """
        for path in self._kept.keys() - paths:
            for descriptor in self._kept.pop(path).values():
                if descriptor >= 0:
                    os.close(descriptor)
        for path in paths:
            with contextlib.suppress(OSError):
                self._open(path)

    def _open(self, path: str) -> None:
        found = os.lstat(path)
        kept, key = self._kept.setdefault(path, {}), (found.st_dev, found.st_ino)
        if key in kept:
            return
        place = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            kept[key] = os.open(f"/proc/self/fd/{place}", _FLAGS | os.O_NONBLOCK)
        except BlockingIOError:
            kept[key] = -1
            wait = (place, kept, key)
            threading.Thread(target=_open_leased, args=wait, name="lease", daemon=True).start()
        else:
            os.close(place)


def _open_leased(place: int, kept: dict[tuple[int, int], int], key: tuple[int, int]) -> None:
    try:
        kept[key] = os.open(f"/proc/self/fd/{place}", _FLAGS)
    except OSError:
        kept.pop(key, None)
    finally:
        os.close(place)
