"""Print the folder of a C header that a package of NVIDIA's installed: `find_header.py nvml.h`.

The packages put headers under `nvidia/<package>/include` of site-packages; the
build asks here, so that no header is ever copied into the repository.
"""

import sys
from pathlib import Path


def header_directory(name: str) -> Path | None:
    """The first folder on the module path that holds `name`, or None."""
    for entry in sys.path:
        for header in sorted(Path(entry).glob(f"nvidia/*/include/{name}")):
            return header.parent
    return None


def main() -> int:
    """Print the folder; 1 when no installed package has the header."""
    directory = header_directory(sys.argv[1])
    if directory is None:
        return 1
    sys.stdout.write(f"{directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
