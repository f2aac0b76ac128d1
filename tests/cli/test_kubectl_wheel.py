"""The wheel of the kubectl plugins holds what they need, and nothing of a node."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.apps.controller.objects import node
from tests.fakes.api_server import kubeconfig, running

ROOT = Path(__file__).resolve().parents[2]
OF_A_NODE = ("grpc", "google", "pynvml", "prometheus_client", "asyncinotify", "kubernetes")

# Runs a plugin from the unpacked wheel as if these packages were not installed.
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({OF_A_NODE!r}))
# The editable installation of this checkout would come before the wheel.
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
from importlib.metadata import Distribution
import gpu_device_plugin
assert gpu_device_plugin.__file__.startswith(sys.argv[1]), gpu_device_plugin.__file__
found = Distribution.at(sys.argv[2]).entry_points.select(name=sys.argv[3])
sys.argv[:] = sys.argv[3:]
next(iter(found)).load()()
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "-w", str(directory)]
    subprocess.run([*command, str(ROOT / "src" / "kubectl-gpu")], check=True, timeout=300)
    (wheel,) = directory.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "content")
    return directory / "content"


async def plugin(unpacked: Path, kubeconfig_file: Path, *words: str) -> str:
    """What a plugin prints."""
    (information,) = unpacked.glob("*.dist-info")
    # The content is compared afterwards, so nothing may be written beside it.
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    found = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, str(unpacked), str(information), *words],
        env={**environment, "KUBECONFIG": str(kubeconfig_file)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


async def test_both_plugins_run_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    async with running() as (server, _):
        await server.put("/api/v1/nodes/gpu-a", node("gpu-a"))
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {})

        assert "1 nodes, 2 cards" in await plugin(unpacked, config, "kubectl-gpu", "map")
        assert "0/30 (0%)" in await plugin(unpacked, config, "kubectl-inspect-cgpu")


def test_nothing_of_a_node_is_in_the_wheel(unpacked: Path) -> None:
    """Else it grows with everything that a node needs."""
    parts = {path.name for path in (unpacked / "gpu_device_plugin").iterdir()}
    assert parts == {"__init__.py", "apps", "cli", "cluster", "domain", "errors.py", "py.typed"}
    assert {path.name for path in (unpacked / "gpu_device_plugin" / "apps").iterdir()} == {
        "__init__.py",
        "overview",
    }
    names = [path.name for path in unpacked.rglob("*")]
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_krew_gets_an_archive_that_runs_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    """It unpacks it into a directory of its own and puts a link on the PATH; uv or pipx do the rest."""
    (wheel,) = unpacked.parent.glob("*.whl")
    shutil.copy(wheel, tmp_path)
    environment = {**os.environ, "RELEASE_URL": "https://here.example/v1/"}
    command = [sys.executable, str(ROOT / ".ci" / "krew.py"), str(tmp_path)]
    subprocess.run(command, check=True, env=environment)
    (archive,) = tmp_path.glob("kubectl-gpu-*.tar.gz")
    manifest = yaml.safe_load((tmp_path / "gpu.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == f"https://here.example/v1/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()

    store, path = tmp_path / "store", tmp_path / "bin"
    store.mkdir()
    path.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(store)], check=True)
    (path / "kubectl-gpu").symlink_to(store / platform["bin"])
    for program in ("dirname", "readlink", "ls"):
        (path / program).symlink_to(str(shutil.which(program)))
    assert run_link(path) == (1, "")
    for name, words in (("pipx", "run --spec"), ("uvx", "--quiet --from")):
        (path / name).write_text('#!/bin/sh\necho "$@"\n')
        (path / name).chmod(0o755)
        assert run_link(path) == (0, f"{words} {store / wheel.name} kubectl-gpu map\n")


def run_link(path: Path) -> tuple[int, str]:
    """Exit code and output of what krew put there, with nothing else on the PATH."""
    found = subprocess.run(
        [str(path / "kubectl-gpu"), "map"],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout
