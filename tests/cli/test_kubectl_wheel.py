"""The wheel of the kubectl plugins holds what they need, and nothing of a node."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from tools.harness.api_server import kubeconfig, running
from tools.harness.objects import node
from tools.harness.waiting import until

pytestmark = pytest.mark.long  # a wheel is built

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


def built(directory: Path) -> Path:
    """A wheel, made as `make release` makes it."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "-w", str(directory)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    source = str(ROOT / "src" / "kubectl-gpu")
    subprocess.run([*command, source], check=True, timeout=300, env=environment)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """The wheel's content."""
    directory = wheel.parent
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "content")
    return directory / "content"


def test_two_builds_of_the_same_sources_are_the_same_file(wheel: Path, tmp_path: Path) -> None:
    again = built(tmp_path)

    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def command(unpacked: Path, *words: str) -> list[str]:
    """A plugin, from the wheel's content."""
    (information,) = unpacked.glob("*.dist-info")
    return [sys.executable, "-c", PROGRAM, str(unpacked), str(information), *words]


def environment(unpacked: Path, kubeconfig_file: Path) -> dict[str, str]:
    """The content is compared afterwards, so nothing may be written beside it."""
    quiet = {"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **quiet, "KUBECONFIG": str(kubeconfig_file)}


async def plugin(unpacked: Path, kubeconfig_file: Path, *words: str) -> str:
    """What a plugin prints."""
    found = await asyncio.to_thread(
        subprocess.run,
        command(unpacked, *words),
        env=environment(unpacked, kubeconfig_file),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@asynccontextmanager
async def started(
    unpacked: Path, kubeconfig_file: Path, *words: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A plugin that goes on."""
    process = await asyncio.create_subprocess_exec(
        *command(unpacked, *words),
        env={**environment(unpacked, kubeconfig_file), "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_both_plugins_run_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    async with running() as (server, _):
        await server.put("/api/v1/nodes/gpu-a", node("gpu-a"))
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {})

        assert "1 node, 2 cards" in await plugin(unpacked, config, "kubectl-gpu", "map")
        assert "0/30 (0%)" in await plugin(unpacked, config, "kubectl-inspect-cgpu")


async def test_the_page_is_served_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    """Templates, script and stylesheet are in it. On stdout is its address, on stderr the log."""
    async with running() as (server, _):
        await server.put("/api/v1/nodes/gpu-a", node("gpu-a"))
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {})
        words = ("kubectl-gpu", "page", "--address", "127.0.0.1:0")
        async with started(unpacked, config, *words) as process:
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().split()[-1]

            async def shows_the_node() -> bool:
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return 'id="node-gpu-a"' in await answer.text()

            await until(shows_the_node, 30)
            async with aiohttp.ClientSession() as session:
                for name in ("page.js", "page.css"):
                    async with session.get(f"{url}static/{name}") as answer:
                        assert answer.status == 200
            process.terminate()
            more, log = await process.communicate()
            assert (process.returncode, more) == (0, b"")
            assert b"ended" in log


def test_nothing_of_a_node_is_in_the_wheel(unpacked: Path) -> None:
    """Else it grows with everything that a node needs."""
    parts = {path.name for path in (unpacked / "gpu_device_plugin").iterdir()}
    assert parts == {
        "__init__.py",
        "cli",
        "domain",
        "errors.py",
        "kubernetes",
        "overview",
        "page",
        "py.typed",
        "web",
    }
    assert {path.name for path in (unpacked / "gpu_device_plugin" / "web").iterdir()} == {
        "__init__.py",
        "connections.py",
        "html",
        "http_server.py",
        "tls.py",
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
    (path / "kubectl-inspect-cgpu").symlink_to(path / "kubectl-gpu")  # as docs/kubectl.md says
    for program in ("dirname", "readlink", "ls"):
        (path / program).symlink_to(str(shutil.which(program)))
    assert run_link(path) == (1, "")
    for name, words in (("pipx", "run --spec"), ("uvx", "--quiet --from")):
        (path / name).write_text('#!/bin/sh\necho "$@"\n')
        (path / name).chmod(0o755)
        assert run_link(path) == (0, f"{words} {store / wheel.name} kubectl-gpu map\n")
        inspect = run_link(path, "kubectl-inspect-cgpu")
        assert inspect == (0, f"{words} {store / wheel.name} kubectl-inspect-cgpu map\n")


def run_link(path: Path, name: str = "kubectl-gpu") -> tuple[int, str]:
    """Exit code and output of what krew put there, with nothing else on the PATH."""
    found = subprocess.run(
        [str(path / name), "map"],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout
