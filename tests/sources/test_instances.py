"""The document on node pools of multi-instance GPUs, line by line, on simulated A100s."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.agent.test_nvidia import offered
from tests.cards_tools.test_mig_apply import cut, mig
from tests.chart.rendering import HELM, render
from tests.chart.test_nvidia import settings
from tests.sources.containers import Containers, apply
from tests.sources.documents import ROOT, Step, Walk, walk
from tools.harness.rig import Rig, running_rig

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.nvidia.mig_devices import profile_of
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration

CARDS = "a100-pcie-mig"
A100 = ("NVIDIA A100 40GB PCIe", MiB(40960))


@pytest.mark.long
@pytest.mark.skipif(not HELM.exists(), reason="helm is not built: tests/e2e/install.sh")
async def test_the_document_on_instances(containers: Containers, tmp_path: Path) -> None:
    """Each step that needs no cluster; those that do are in tests/e2e/test_sources.py (R-207, R-209, R-210, R-212)."""
    with walk("instances", "here") as step:
        check_profiles(step)
        await check_pool(step("the node pool"))
        names = list(step("resources of the strategies").data)
        strategies = re.findall(r"MIG_STRATEGY=(\w+)", step("the strategy").command)
        installation, node = step("the installation"), step("the node")
        listed: list[str] = []
        for strategy, name in zip(strategies, names, strict=True):
            configuration = install(installation, strategy, tmp_path)
            pod = step(f"the pod of strategy {strategy}").data
            shown = step(f"nvidia-smi in the pod of strategy {strategy}")
            async with running_rig(CARDS, mode="default", **configuration) as rig:
                await check_node(rig, node, name)
                assert (await apply(rig, pod)).is_admitted
                listed.append(await containers.run(rig, f"nvidia-{strategy}", "nvidia_smi", "-L"))
                whole = await containers.on_node(rig, "nvidia_smi", "-L")
            # The seven of the source's first output are a whole card's.
            for output in listed if strategy == "mixed" else [whole]:
                shown.check(output)
        check_images(step("images"))


def check_profiles(step: Walk) -> None:
    """The table of profiles, with the names that node pools have for them."""
    rows = [row.strip("| ").split(" | ") for row in step("profiles").text.splitlines()]
    names = step("names of profiles").text.split()
    for alias, (name, compute, memory, count) in zip(names, rows, strict=True):
        found = profile_of(alias, *A100)
        assert f"MIG {found.name}" == name
        assert f"{found.compute_slices}/7" == compute
        assert f"{found.memory_slices}/8" == memory
        assert found.count == int(count)
        assert profile_of(found.name, *A100) == found


async def check_pool(step: Step) -> None:
    """The cards of a node are cut into the profile that the pool names."""
    assert f"--gpu-instance-profile {step.text}" in step.command
    async with running_rig(CARDS, is_started=False) as rig:
        for card in range(8):
            rig.cards.cut(card, None)
        code, said = await mig(rig, step.text, "--yes")
        assert code == 0, said
        assert cut(rig) == [["1g.5gb"] * 7] * 8


def install(step: Step, strategy: str, place: Path) -> dict[str, Any]:
    """What the agent's settings are of the chart with the source's values, in its namespace."""
    values = [
        text.replace("${MIG_STRATEGY}", strategy)
        for text in re.findall(r"--set (\S+)", step.command)
    ]
    (namespace,) = re.findall(r"--namespace (\S+)", step.command)
    made = [each for each in yaml.safe_load_all(render(*values, namespace=namespace)) if each]
    (agent,) = [each for each in made if each["kind"] == "DaemonSet"]
    assert agent["metadata"]["namespace"] == namespace
    found = settings(place, *values)
    return {"mig_strategy": nvidia_configuration(found).mig_strategy, "gfd": found.gfd}


async def check_node(rig: Rig, step: Step, name: str) -> None:
    """The node offers what the source's does, under the strategy's name."""
    (line,) = [each for each in step.text.splitlines() if f" {name}: " in each]
    count = int(line.rpartition(" ")[2])
    await offered(rig, **{"gpu" if name == "nvidia.com/gpu" else "seventh": count})


def check_images(step: Step) -> None:
    """Samples name a version of their image, and none the deprecated tag."""
    version, deprecated = step.text.split()
    files = [path.read_text() for path in (ROOT / "samples").rglob("*.yaml")]
    images = re.findall(r"image: (\S+)", "\n".join(files))
    assert f"nvidia/cuda:{version}" in images
    assert [image for image in images if image.endswith(f":{deprecated}") or ":" not in image] == []
