"""The blog on GPUs in Kubernetes, line by line, on a simulated node with one card."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from tests.agent.test_nvidia import GPU, SHARED, offered
from tests.settings.test_nvidia import read
from tests.sources.containers import Containers, apply
from tests.sources.documents import ROOT, Walk, walk
from tools.harness.rig import Rig, running_rig

from gpu_device_plugin.errors import ConfigError

NAME = "test-gpu-pod"
SAMPLE = ROOT / "samples" / "time-slicing" / "time-slicing.yaml"


@asynccontextmanager
async def one_card(**settings: object) -> AsyncIterator[Rig]:
    """A node of one V100, whole or in replicas."""
    async with running_rig(is_started=False) as rig:
        for card in range(1, 4):
            rig.cards.unplug(card)
        await rig.start_agent(mode="default", **settings)
        yield rig


@pytest.mark.long
async def test_the_blog_on_time_slicing(containers: Containers, tmp_path: Path) -> None:
    """Each step that needs no cluster; those that do are in tests/e2e/test_sources.py."""
    with walk("time_slicing", "here") as step:
        async with one_card() as rig:
            await check_whole_card(rig, step, containers)
        file = check_files(step, tmp_path)
        async with one_card(config_file=file) as rig:
            await offered(rig, gpu=4)
        file.write_text(yaml.safe_load(SAMPLE.read_text())["data"]["default"])
        async with one_card(config_file=file) as rig:
            await check_replicas(rig, step, containers)


async def check_whole_card(rig: Rig, step: Walk, containers: Containers) -> None:
    """A pod has the card, and nobody else."""
    await offered(rig, gpu=1)
    pod = step("a pod with a GPU").data
    assert (await apply(rig, pod)).is_admitted
    (card,) = [card for card in rig.cards.view().cards if card.is_present]
    (container,) = pod["spec"]["containers"]
    listed = await containers.run(rig, NAME, "nvidia_smi", *container["command"][1:])
    assert listed == f"GPU 0: Tesla V100-SXM2-16GB (UUID: {card.uuid})\n"
    step("a GPU is not shared")
    assert not (await apply(rig, pod, "second")).is_admitted
    step("nothing is promised twice")
    await rig.delete(rig.uid(NAME))
    assert not (await rig.admit("two", {GPU: 2})).is_admitted


def check_files(step: Walk, place: Path) -> Path:
    """What NVIDIA's file may say; the source's with its indentation."""
    step("one of the two")
    resources = "resources: [{name: nvidia.com/gpu, replicas: 4}]"
    both = f"version: v1\nsharing: {{timeSlicing: {{{resources}}}, mps: {{{resources}}}}}"
    with pytest.raises(ConfigError, match="exclude each other"):
        read(place, both)
    printed = step("the file")
    with pytest.raises(ConfigError, match="its indentation is lost"):
        read(place, printed.text)
    (file,) = place.glob("*.yaml")
    file.write_text(printed.meaning)
    return file


async def check_replicas(rig: Rig, step: Walk, containers: Containers) -> None:
    """Four pods have the card under its new name, each with all of its memory."""
    await offered(rig, shared=4)
    pod = step("a pod with a replica").data
    (container,) = pod["spec"]["containers"]
    names = [NAME, *(f"{NAME}-{number}" for number in range(2, 5))]
    for name in names:
        assert (await apply(rig, pod, name)).is_admitted
    command = ["nvidia_smi", *container["command"][1:]]
    assert len({await containers.run(rig, name, *command) for name in names}) == 1
    assert not (await apply(rig, pod, "fifth")).is_admitted
    step("limits of time-slicing")
    for name in names[:2]:
        await rig.delete(rig.uid(name))
    assert (await rig.admit("two", {SHARED: 2})).is_admitted
    assert "/  16160MiB" in await containers.run(rig, "two", "nvidia_smi")
    environment = await containers.environment(rig, "two")
    assert "ALIYUN_COM_GPU_CORE" not in " ".join(environment)
