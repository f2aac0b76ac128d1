"""The same commit gives the same image and the same wheel, whatever a cache kept of earlier builds."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.agent_image import BUILDER, ROOT, read_image
from tests.image.conftest import BUILT
from tools.harness.cluster.binaries import cache_directory

pytestmark = pytest.mark.long


@pytest.mark.skipif(
    "GPU_DEVICE_PLUGIN_REBUILD" not in os.environ,
    reason="builds the image from nothing, in ten minutes: set GPU_DEVICE_PLUGIN_REBUILD=1, as root",
)
def test_an_image_that_is_built_from_nothing_has_the_same_digest(tmp_path: Path) -> None:
    """`make image` has built the other one, with its cache."""
    built = read_image(BUILT / "gpu-device-plugin-amd64.tar")
    for program in cache_directory().iterdir():
        if program.name != "image":
            (tmp_path / program.name).symlink_to(program)
    own = {"GPU_DEVICE_PLUGIN_CACHE": str(tmp_path), "PYTHON": sys.executable}
    subprocess.run([BUILDER, "amd64"], cwd=ROOT, env={**os.environ, **own}, check=True)
    assert read_image(BUILT / "gpu-device-plugin-amd64.tar").digests == built.digests


def test_two_builds_of_the_kubectl_plugins_are_the_same_bytes(tmp_path: Path) -> None:
    """As .ci/release.sh builds them: the wheel, and krew's archive with its manifest."""
    sums = [build(tmp_path / name) for name in ("one", "two")]
    assert sums[0] == sums[1]
    assert len(sums[0]) >= 3


def build(target: Path) -> dict[str, str]:
    """Digest of each file."""
    target.mkdir()
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    dated = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for command in ([*words, str(target), "src/kubectl-gpu"], [".ci/krew.py", str(target)]):
        subprocess.run([sys.executable, *command], cwd=ROOT, env=dated, check=True)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in target.iterdir()}
