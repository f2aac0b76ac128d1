"""Which files travel together: each part is an archive of its own, so that all cores unpack at once."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

MIB = 1024 * 1024
MOST_BYTES = 60 * MIB
"""Of a part, compressed."""
RAW_BYTES = 110 * MIB
"""Of a part's files: they are compressed to half or less."""
SUMS = "SHA256SUMS"


class PartError(Exception):
    """A part is too large to travel."""


def packed(sizes: Mapping[str, int], most: int = RAW_BYTES) -> Sequence[Sequence[str]]:
    """The files in as few groups as it takes; none is larger than `most`, unless one file is."""
    groups: list[tuple[int, list[str]]] = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        for number, (size, names) in enumerate(groups):
            if size + sizes[name] <= most:
                groups[number] = (size + sizes[name], [*names, name])
                break
        else:
            groups.append((sizes[name], [name]))
    return [names for _, names in groups]


def write_sums(bundle: Path) -> Sequence[tuple[str, int]]:
    """Write the digest of each file of the bundle; names and sizes.

    Raises:
        PartError: One is larger than a part may be.
    """
    files = sorted(path for path in bundle.iterdir() if path.name != SUMS)
    for path in files:
        if path.stat().st_size > MOST_BYTES:
            raise PartError(f"{path.name} has {path.stat().st_size} bytes; at most {MOST_BYTES}")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (bundle / SUMS).write_text("".join(lines))
    return [(path.name, path.stat().st_size) for path in files]
