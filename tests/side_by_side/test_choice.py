"""NVIDIA's config-manager makes the choices of configuration files that tests/settings promises (R-730)."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.settings.test_config_choice import CHOICES
from tools.harness.api_server import StandInApiServer, kubeconfig
from tools.harness.cluster.binaries import nvidia_path

pytestmark = pytest.mark.long

LABEL = "nvidia.com/device-plugin.config"
FALLBACKS = "named,single"  # which its chart sets
_ATTEMPTS = 6


@pytest.mark.parametrize(("files", "label", "settings", "wanted"), CHOICES)
async def test_the_same_choice(
    tmp_path: Path, files: str, label: str, settings: dict[str, str], wanted: str
) -> None:
    """Where there is none, theirs ends: the agent keeps the file before (R-730)."""
    api, sources, chosen = StandInApiServer(), tmp_path / "files", tmp_path / "chosen"
    (sources / "..data").mkdir(parents=True)
    for name in files.split():
        (sources / name).write_text("version: v1")
    await api.start()
    labels = {LABEL: label} if label else {}
    await api.put("/api/v1/nodes/n1", {"metadata": {"name": "n1", "labels": labels}})
    kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{api.port}", {"token": "t"})
    flags = {
        "kubeconfig": tmp_path / "kubeconfig",
        "node-name": "n1",
        "config-file-srcdir": sources,
        "config-file-dst": chosen,
        "default-config": settings.get("default_config", ""),
        "fallback-strategies": settings.get("fallback_strategies", FALLBACKS),
    }
    try:
        code, errors = await _theirs(
            [f"--{name}={value}" for name, value in flags.items() if value]
        )
    finally:
        await api.stop()
    if " " in wanted:
        assert code == 1
        assert wanted.split()[-1] in errors
    else:
        assert code == 0, errors
        assert chosen.readlink() == (sources / wanted if wanted else Path("/dev/null"))


async def _theirs(flags: Sequence[str]) -> tuple[int, str]:
    """Exit code and errors of one run of config-manager.

    Where the node has no label it can wait for ever: the first value is "", as before it was read,
    and its wake-up is lost if it comes before the wait. So it is started again.
    """
    for attempt in range(_ATTEMPTS):
        process = await asyncio.create_subprocess_exec(
            str(nvidia_path("config-manager")),
            *("--oneshot", "--send-signal=false", *flags),
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        try:
            async with asyncio.timeout(10 * (attempt + 1)):
                _, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
        else:
            return process.returncode or 0, errors.decode()
    raise AssertionError(f"config-manager did not end in {_ATTEMPTS} attempts")
