"""The agent's image, as the Dockerfile builds it for this machine."""

import json
import os
import platform
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.harness.cluster.images import ARCHITECTURES
from tools.harness.cluster.node import Node

ROOT = Path(__file__).resolve().parents[2]
BUILDER = ".ci/image.sh"


@dataclass(frozen=True, slots=True)
class AgentImage:
    """An image in an archive, under the name that the chart uses.

    Attributes:
        archive: OCI's kind.
        repository: Its name without the tag.
        tag: Its tag.
        digests: Of its manifest and its configuration; a runtime names it by either.
    """

    archive: Path
    repository: str
    tag: str
    digests: tuple[str, str]

    @property
    def reference(self) -> str:
        """What stands in a pod's `image`."""
        return f"{self.repository}:{self.tag}"

    def load_into(self, node: Node) -> None:
        """Make it known to a node."""
        node.load_archive(self.archive, self.reference)


def agent_image(network: int, checkout: Path = ROOT) -> AgentImage:
    """Build the image where it was not built yet from what stands in a checkout.

    Args:
        network: Descriptor of a network namespace that reaches Debian and the package index.
        checkout: Of this repository, at any commit.
    """
    architecture = ARCHITECTURES[platform.machine()]
    done = subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{network}", BUILDER, architecture],
        cwd=checkout,
        capture_output=True,
        text=True,
        pass_fds=(network,),
        env={**os.environ, "PYTHON": str(ROOT / ".venv" / "bin" / "python")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_image(checkout / done.stdout.splitlines()[-1])


def read_image(archive: Path) -> AgentImage:
    """What an archive says of itself."""
    with tarfile.open(archive) as blobs:
        described = read_json(blobs, "index.json")["manifests"][0]
        manifest = read_json(blobs, blob_name(described["digest"]))
    repository, _, tag = described["annotations"]["org.opencontainers.image.ref.name"].rpartition(
        ":"
    )
    return AgentImage(archive, repository, tag, (described["digest"], manifest["config"]["digest"]))


def blob_name(digest: str) -> str:
    """Where a blob lies in an OCI archive."""
    return f"blobs/{digest.replace(':', '/')}"


def read_json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    """One of the JSON documents of an OCI archive."""
    content = archive.extractfile(name)
    assert content is not None, name
    return dict(json.load(content))
