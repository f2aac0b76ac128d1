"""The machine's driver at a root of its own: its libraries and nothing else of the machine, wherever they lie."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.harness.cluster.cdi_node import LIBRARIES

DIRECTORIES = (
    *(LIBRARIES, "usr/lib64", "usr/lib", "lib/x86_64-linux-gnu", "lib64"),
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib", "usr/lib/x86_64-linux-gnu/nvidia/current"),
)
PROGRAMS = ("usr/bin", "usr/local/nvidia/bin", "usr/local/bin")


def copy_driver(machine: Path, root: Path) -> None:
    """Libraries under their names and links, nvidia-smi, and the same device nodes.

    Raises:
        FileNotFoundError: The machine lacks one of them where it is looked for.
    """
    libraries = root / LIBRARIES
    for directory in (libraries, root / "usr/bin", root / "dev"):
        directory.mkdir(parents=True)
    theirs = _first(machine, DIRECTORIES, "libcuda.so.1")
    for path in [*theirs.glob("libcuda*.so*"), *theirs.glob("libnvidia*.so*")]:
        real = path.resolve()
        shutil.copy(real, libraries / real.name)
        if path.name != real.name:
            (libraries / path.name).symlink_to(real.name)
    shutil.copy(_first(machine, PROGRAMS, "nvidia-smi") / "nvidia-smi", root / "usr/bin")
    for node in (machine / "dev").glob("nvidia*"):
        if node.is_char_device():
            os.mknod(root / "dev" / node.name, 0o020666, node.stat().st_rdev)


def _first(machine: Path, directories: Sequence[str], name: str) -> Path:
    for directory in directories:
        if (machine / directory / name).exists():
            return machine / directory
    raise FileNotFoundError(f"the machine has no {name} in {', '.join(directories)}")
