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
DRIVER_PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
PROGRAMS = ("usr/bin", "usr/local/nvidia/bin", "usr/local/bin", "usr/lib/nvidia/current")


def copy_driver(machine: Path, root: Path) -> None:
    """Libraries under their names and links, the same device nodes, and those of its programs that are found.

    Raises:
        FileNotFoundError: The machine has no libcuda.so.1 where it is looked for.
    """
    libraries = root / LIBRARIES
    for directory in (libraries, root / "usr/bin", root / "dev"):
        directory.mkdir(parents=True)
    cuda = _first(machine, DIRECTORIES, "libcuda.so.1")
    if cuda is None:
        raise FileNotFoundError(f"the machine has no libcuda.so.1 in {', '.join(DIRECTORIES)}")
    _copy_libraries(machine, cuda.parent, libraries)  # Debian's links lead to where all of them are
    programs = (_first(machine, PROGRAMS, name) for name in DRIVER_PROGRAMS)
    for program in filter(None, programs):
        shutil.copy(program, root / "usr/bin")
    for node in (machine / "dev").glob("nvidia*"):
        if node.is_char_device():
            os.mknod(root / "dev" / node.name, 0o020666, node.stat().st_rdev)


def _copy_libraries(machine: Path, theirs: Path, libraries: Path) -> None:
    for path in [*theirs.glob("libcuda*.so*"), *theirs.glob("libnvidia*.so*")]:
        real = _real(machine, path)
        if not real.exists():
            continue
        shutil.copy(real, libraries / real.name)
        if path.name != real.name:
            (libraries / path.name).symlink_to(real.name)


def _first(machine: Path, directories: Sequence[str], name: str) -> Path | None:
    """The file itself; an empty one is a place where another tool mounts the real one."""
    found = (_real(machine, machine / directory / name) for directory in directories)
    return next((path for path in found if path.is_file() and path.stat().st_size), None)


def _real(machine: Path, path: Path) -> Path:
    """What links of the machine lead to, also the absolute ones, below the machine's root here."""
    while path.is_symlink():
        link = path.readlink()
        path = machine / str(link).lstrip("/") if link.is_absolute() else path.parent / link
    return path
