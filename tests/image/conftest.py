"""The images that `make image` left in build/image, unpacked."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent_image import ROOT, blob_name, read_json

BUILT = ROOT / "build" / "image"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What one archive holds.

    Attributes:
        architecture: As the archive's name says it.
        configuration: The image's.
        layer_bytes: Compressed size of each layer.
        members: Of all layers, by path.
        root: The directory where they are unpacked.
        bill: The bill of materials beside the archive.
    """

    architecture: str
    configuration: dict[str, Any]
    layer_bytes: list[int]
    members: dict[str, tarfile.TarInfo]
    root: Path
    bill: dict[str, Any]


def unpack(archive: Path, root: Path) -> Unpacked:
    """Unpack an OCI archive's layers into a directory."""
    members: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(archive) as blobs:
        index = read_json(blobs, "index.json")
        manifest = read_json(blobs, blob_name(index["manifests"][0]["digest"]))
        for described in manifest["layers"]:
            content = blobs.extractfile(blob_name(described["digest"]))
            with tarfile.open(fileobj=content, mode="r:gz") as layer:
                # Python before 3.11.4 knows no filter, and takes this for a mere attribute.
                layer.extraction_filter = getattr(tarfile, "tar_filter", None)
                layer.extractall(root)  # noqa: S202 - our own archive
                members |= {member.name.lstrip("/"): member for member in layer.getmembers()}
        configuration = read_json(blobs, blob_name(manifest["config"]["digest"]))
    sizes = [layer["size"] for layer in manifest["layers"]]
    bill = json.loads(archive.with_name(f"{archive.stem}.spdx.json").read_text())
    architecture = archive.stem.rpartition("-")[2]
    return Unpacked(architecture, configuration, sizes, members, root, bill)


@pytest.fixture(scope="session", params=["amd64", "arm64"])
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Unpacked]:
    """One architecture's image."""
    archive = BUILT / f"gpu-device-plugin-{request.param}.tar"
    if not archive.exists():
        pytest.skip(f"{archive.relative_to(ROOT)} is not built on this machine: run `make image`")
    root = tmp_path_factory.mktemp("image")
    yield unpack(archive, root)
    shutil.rmtree(root)
