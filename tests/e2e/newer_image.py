"""The next version of our image: the one that was built, with another version in its package.

One layer more says so, as a rebuild after a change of the version would; the library that this
agent brings gets the new version's name with it.
"""

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "gpu_device_plugin/__init__.py"


class ArchiveError(Exception):
    """An archive is none of an image of ours."""


def write_next_version(archive: Path, version: str, reference: str, target: Path) -> None:
    """Write an archive of the image in `archive` as if its package were of that version.

    Args:
        archive: As `docker save` writes it.
        version: What the package is to say.
        reference: Name and tag of the new image.
        target: The new archive.
    """
    with tarfile.open(archive) as image:
        content = {one.name: _content(image, one) for one in image.getmembers() if one.isfile()}
    (manifest,) = json.loads(content.pop("manifest.json"))
    content.pop("repositories", None)
    configuration = json.loads(content.pop(manifest["Config"]))
    package = _package_path([content[name] for name in manifest["Layers"]])
    layer = _layer(_changes(package, version))
    configuration["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
    configuration.pop("history", None)
    layers = [*manifest["Layers"], "next-version.tar"]
    described = {"Config": "config.json", "RepoTags": [reference], "Layers": layers}
    content |= {"config.json": json.dumps(configuration).encode(), "next-version.tar": layer}
    content["manifest.json"] = json.dumps([described]).encode()
    target.write_bytes(_layer(content))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = archive.extractfile(member)
    return opened.read() if opened else b""


def _package_path(layers: list[bytes]) -> str:
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as files:
            for name in files.getnames():
                if name.endswith(PACKAGE):
                    return name
    raise ArchiveError(f"no layer of the image holds {PACKAGE}")


def _changes(package: str, version: str) -> Mapping[str, bytes]:
    """The package's file, and a mark that what was compiled from the old one is gone."""
    compiled = posixpath.join(posixpath.dirname(package), "__pycache__")
    text = f'"""The version after this one."""\n\n__version__ = "{version}"\n'
    return {package: text.encode(), f"{compiled}/.wh.__init__.cpython-311.pyc": b""}


def _layer(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o644
            layer.addfile(member, io.BytesIO(text))
    return content.getvalue()
