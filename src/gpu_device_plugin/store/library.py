"""The isolation library on the node: which version lies there, whether it can be mounted.

`<library dir>/<version>/libgpuslice.so` and `ld.so.preload` beside it. A version stays until
the last pod whose grant names it is gone; installing and removing versions is the library's
own matter (see docs/isolation.md).
"""

from pathlib import Path

LIBRARY = "libgpuslice.so"
PRELOAD = "ld.so.preload"


def installed_version(library_dir: Path) -> str:
    """The newest complete version under `library_dir`, or "" where there is none."""
    try:
        entries = sorted(library_dir.iterdir(), key=lambda entry: _order(entry.name))
    except OSError:
        return ""
    complete = [entry.name for entry in entries if is_complete(entry)]
    return complete[-1] if complete else ""


def is_complete(version_dir: Path) -> bool:
    """Whether both files of a version are there, as files."""
    return (version_dir / LIBRARY).is_file() and (version_dir / PRELOAD).is_file()


def _order(name: str) -> tuple[tuple[int, str], ...]:
    """Versions in numeric order: 0.10.0 after 0.9.1."""
    return tuple(
        (int(part), "") if part.isdigit() else (-1, part)
        for part in name.replace("-", ".").split(".")
    )
