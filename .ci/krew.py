# ruff: noqa: INP001 - a script, no package
"""Writes krew's archive and manifest of the kubectl plugin beside its wheel: `krew.py DIRECTORY`.

RELEASE_URL is where the directory will be published; krew fetches the archive from there.
"""

import gzip
import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
NOWHERE = "https://release.invalid"


def pack(wheel: Path, archive: Path) -> None:
    """The wheel, what runs it, and the licence; the same bytes for the same content."""
    members = {
        "kubectl-gpu": (ROOT / "src/kubectl-gpu/kubectl-gpu.sh", 0o755),
        wheel.name: (wheel, 0o644),
        "LICENSE": (ROOT / "LICENSE", 0o644),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (source, mode) in members.items():
            content = source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def manifest(archive: Path, version: str, url: str) -> dict[str, object]:
    """What krew reads."""
    systems = {"key": "os", "operator": "In", "values": ["darwin", "linux"]}
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gpu"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Show shared GPUs, and why a pod is pending",
            "description": "Who holds what of which card, why a pod is pending or was refused, and "
            "what is wrong with an installation of gpu-device-plugin. Reads only.",
            "caveats": "Needs uv or pipx on the PATH: it is a Python program.",
            "platforms": [
                {
                    "selector": {"matchExpressions": [systems]},
                    "uri": f"{url.rstrip('/')}/{archive.name}",
                    "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
                    "bin": "kubectl-gpu",
                }
            ],
        },
    }


def main(directory: Path, url: str) -> None:
    """Pack the only wheel of the directory, and describe it."""
    (wheel,) = directory.glob("kubectl_gpu-*.whl")
    version = wheel.name.split("-")[1]
    archive = directory / f"kubectl-gpu-{version}.tar.gz"
    pack(wheel, archive)
    text = yaml.safe_dump(manifest(archive, version, url), sort_keys=False)
    (directory / "gpu.yaml").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ.get("RELEASE_URL", NOWHERE))
