"""A real small tmpfs, as the node's run directory is one that tenants can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_tmpfs(directory: Path, kib: int) -> Iterator[Path]:
    """Mounted while it lasts; skips the test where nothing can be mounted."""
    directory.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(directory)]
    done = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here (root can): {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(path: Path) -> None:
    """Write to a file until its file system is full, to the last block."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        return
    finally:
        os.close(descriptor)
