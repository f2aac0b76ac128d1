# ruff: noqa: INP001 - a script, no package
"""Writes the Python messages of every .proto file here: `python proto/generate.py [DIRECTORY]`.

They are made where the package is built and never committed. Only messages are made: the
kubelet package calls grpc with method names itself, so that a device list can be sent as
bytes that are already encoded.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent
PACKAGE = SOURCES.parent / "src" / "gpu_device_plugin" / "kubelet" / "_proto"


def main(target: Path) -> int:
    """Protoc's exit status after writing `target`/*_pb2.py and its __init__.py."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from proto/; do not edit."""\n', "utf-8")
    well_known = files("grpc_tools") / "_proto"
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{SOURCES}",
                f"-I{well_known}",
                f"--python_out={target}",
                *(str(path) for path in sorted(SOURCES.glob("*.proto"))),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE))
