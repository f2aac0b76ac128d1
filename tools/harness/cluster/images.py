"""Container images made from files, without a registry and without a builder.

A docker archive is three members: the image's configuration, one layer and a manifest.
"""

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAUSE = "e2e.local/pause:1"
GPU_TEST = "e2e.local/gpu-test:1"
PROGRAMS = ("sh", "echo", "sleep", "env", "cat", "ls", "touch", "true", "mount", "grep", "head")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(Exception):
    """An image cannot be made from what is installed."""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image holds and starts."""

    reference: str
    files: Mapping[str, bytes]
    links: Mapping[str, str]
    entrypoint: Sequence[str]


def standard_images() -> tuple[Image, ...]:
    """The images that each of our clusters has: the sandbox, and a small shell for test pods."""
    found = shutil.which("busybox")
    if found is None:
        raise ImageError("busybox is not installed; run tests/e2e/install.sh")
    files = {"bin/busybox": Path(found).read_bytes()}
    links = {f"bin/{program}": "busybox" for program in PROGRAMS}
    return (
        Image(PAUSE, files, {}, ("/bin/busybox", "sleep", "2147483647")),
        Image(GPU_TEST, files, links, ()),
    )


def write_archive(image: Image, path: Path) -> None:
    """Write an image as a docker archive."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    machine = platform.machine()
    configuration = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": list(image.entrypoint), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image.reference], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, "config.json", json.dumps(configuration).encode())
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(image: Image) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for name, text in image.files.items():
            _add(layer, name, text)
        for name, target in image.links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            layer.addfile(link)
    return content.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    archive.addfile(member, io.BytesIO(content))
