"""What the lifecycle needs of our image beside itself: the libraries in it, and a next version.

The next version has one layer more, in which the package says another version, as a rebuild after
a change of it would; the library that this agent brings gets the new version's name with it.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.agent_image import AgentImage, blob_name, read_image, read_json

PACKAGE = "usr/local/lib/python3.11/dist-packages/gpu_device_plugin"
REFERENCE = "org.opencontainers.image.ref.name"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def write_next_version(image: AgentImage, version: str, target: Path) -> AgentImage:
    """Write the image as if its package were of that version, which becomes its tag.

    Args:
        image: The one that was built.
        version: What the package is to say.
        target: The new archive.
    """
    content = _blobs(image.archive)
    with tarfile.open(image.archive) as archive:
        index = read_json(archive, "index.json")
        manifest = read_json(archive, blob_name(index["manifests"][0]["digest"]))
        configuration = read_json(archive, blob_name(manifest["config"]["digest"]))
    layer = _tar(_changes(version))
    configuration["rootfs"]["diff_ids"].append(_digest(layer))
    configuration.pop("history", None)
    manifest["layers"].append({"mediaType": LAYER, **_described(layer, content)})
    manifest["config"] |= _described(json.dumps(configuration).encode(), content)
    (described,) = index["manifests"]
    described |= _described(json.dumps(manifest).encode(), content)
    described["annotations"] = {REFERENCE: f"{image.repository}:{version}"}
    content["index.json"] = json.dumps(index).encode()
    target.write_bytes(_tar(content))
    return read_image(target)


def take_libraries(image: AgentImage, directory: Path) -> list[Path]:
    """Write the C libraries and programs that the image brings into a directory; their paths."""
    content = _blobs(image.archive)
    with tarfile.open(image.archive) as archive:
        index = read_json(archive, "index.json")
        manifest = read_json(archive, blob_name(index["manifests"][0]["digest"]))
    found = []
    for described in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(content[blob_name(described["digest"])])) as layer:
            for member in layer.getmembers():
                opened = layer.extractfile(member) if f"{PACKAGE}/native/" in member.name else None
                if opened is not None:
                    found.append(directory / Path(member.name).name)
                    found[-1].write_bytes(opened.read())
                    found[-1].chmod(0o755)
    return found


def _blobs(archive: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as blobs:
        for member in blobs.getmembers():
            opened = blobs.extractfile(member)
            if opened is not None:
                found[member.name] = opened.read()
    return found


def _changes(version: str) -> Mapping[str, bytes]:
    """The package's file, and a mark that what was compiled from the old one is gone."""
    text = f'"""The version after this one."""\n\n__version__ = "{version}"\n'
    compiled = f"{PACKAGE}/__pycache__/.wh.__init__.cpython-311.pyc"
    return {f"{PACKAGE}/__init__.py": text.encode(), compiled: b""}


def _described(blob: bytes, content: dict[str, bytes]) -> dict[str, Any]:
    """Keep a blob, and say how it is referred to."""
    digest = _digest(blob)
    content[blob_name(digest)] = blob
    return {"digest": digest, "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tar(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()
