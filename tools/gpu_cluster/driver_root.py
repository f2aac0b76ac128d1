"""The machine's driver at a root of its own: its libraries and nothing else of the machine, wherever they lie."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cluster.cdi_node import LIBRARIES

DIRECTORIES = (
    *(LIBRARIES, "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64"),
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/x86_64-linux-gnu/nvidia/current"),
)
PROGRAMS = ("usr/bin", "usr/local/nvidia/bin", "usr/local/bin", "usr/lib/nvidia/current")


def copy_driver(machine: Path, root: Path) -> None:
    """Libraries under their names and links, the same device nodes, and nvidia-smi if it is found.

    Raises:
        FileNotFoundError: The machine has no libcuda.so.1 where it is looked for.
    """
    libraries = root / LIBRARIES
    for directory in (libraries, root / "usr/bin", root / "dev"):
        directory.mkdir(parents=True)
    theirs = _first(machine, DIRECTORIES, "libcuda.so.1")
    for path in [*theirs.glob("libcuda*.so*"), *theirs.glob("libnvidia*.so*")]:
        real = path.resolve()
        if not real.exists():  # an absolute link, which leads out of the machine's root
            continue
        shutil.copy(real, libraries / real.name)
        if path.name != real.name:
            (libraries / path.name).symlink_to(real.name)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy(_first(machine, PROGRAMS, "nvidia-smi") / "nvidia-smi", root / "usr/bin")
    for node in (machine / "dev").glob("nvidia*"):
        if node.is_char_device():
            os.mknod(root / "dev" / node.name, 0o020666, node.stat().st_rdev)


def _first(machine: Path, directories: Sequence[str], name: str) -> Path:
    for directory in directories:
        if (machine / directory / name).exists():
            return machine / directory
    raise FileNotFoundError(f"the machine has no {name} in {', '.join(directories)}")
