"""The document on GPU models and drivers by label, line by line: the controller, then the pod's node."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.agent.test_nvidia import offered
from tests.controller.replica import Running, a_controller
from tests.controller.reviews import review
from tests.controller.test_webhook import (
    CLASS,
    DRIVER,
    MODEL,
    a_pod,
    ask,
    configure,
    mutated,
    required,
)
from tests.sources.containers import Containers, apply
from tests.sources.documents import ROOT, Walk, walk
from tools.harness.rig import NODE, Rig, running_rig
from tools.harness.waiting import until

NAME = "gpu-pod-with-model-and-driver"
PROFILE = ROOT / "samples" / "acs" / "acs-profile.yaml"
SECONDS = 40


@pytest.mark.long
async def test_the_document_on_models_and_drivers(containers: Containers, tmp_path: Path) -> None:
    """Each step that needs no cluster; those that do are in tests/e2e/test_sources.py (R-012, R-013)."""
    with walk("model_and_driver", "here") as step:
        async with a_controller(tmp_path, ()) as found:
            await check_fields(found, step)
            await check_profile(found, step)
            pod = step("the pod").data
            wanted = {MODEL: "T4", DRIVER: "535.161.08"}
            assert required(await mutated(found, pod)) == {key: [v] for key, v in wanted.items()}
        async with running_rig("t4", is_started=False) as rig:
            rig.cards.upgrade_driver(wanted[DRIVER])
            await rig.start_agent(mode="default")
            await offered(rig, gpu=len(rig.cards.view().cards))
            await until(lambda: labels(rig).get(DRIVER) == wanted[DRIVER], SECONDS)
            assert (await apply(rig, pod)).is_admitted
            table = await containers.run(rig, NAME, "nvidia_smi")
            _, shown = table.partition("\n\n")[0].split("\n", 1)
            step("nvidia-smi in the pod").check(shown)


async def check_fields(found: Running, step: Walk) -> None:
    """Where a pod of each class says its model and its driver."""
    assert step("field of the model, class gpu-hpn").text == "spec.nodeSelector"
    hpn = a_pod(compute_class="gpu-hpn")
    hpn["spec"]["nodeSelector"] = {MODEL: "P16EN"}
    stored = await mutated(found, hpn)
    assert stored["spec"]["nodeSelector"] == {MODEL: "P16EN"}
    assert stored["metadata"]["labels"][DRIVER] == "1.4.1"
    (key,) = re.findall(r"\[ *(\S+)\]", step("field of the model, class gpu").text)
    stored = await mutated(found, a_pod(compute_class="gpu", **{key: "T4"}))
    assert required(stored)[MODEL] == ["T4"]
    (key,) = re.findall(r"\[ *(\S+)\]", step("field of the driver").text)
    asking = a_pod(compute_class="gpu", model="T4", **{key: "570.133.20"})
    assert required(await mutated(found, asking))[DRIVER] == ["570.133.20"]
    step("drivers that are served")
    asking["metadata"]["labels"][key] = "999"
    refused = (await ask(found, review(asking)))["response"]
    assert refused["allowed"] is False
    assert "'999' is not served for T4. Served: " in refused["status"]["message"]


async def check_profile(found: Running, step: Walk) -> None:
    """Every pod of the class gets the driver, and no other pod."""
    profile = step("the profile").data
    sample = yaml.safe_load(PROFILE.read_text())
    assert json.loads(sample["data"]["selectors"]) == json.loads(profile["data"]["selectors"])
    assert {**sample, "data": 0} == {**profile, "data": 0}
    await configure(found, profile["metadata"]["name"], **profile["data"])
    await until(lambda: len(found.controller.models.rules.profile) == 1)
    stored = await mutated(found, a_pod(compute_class="gpu-hpn"))
    assert stored["metadata"]["labels"] == {CLASS: "gpu-hpn", DRIVER: "1.5.0"}
    stored = await mutated(found, a_pod(compute_class="gpu", model="T4"))
    assert stored["metadata"]["labels"][DRIVER] == "535.161.08"


def labels(rig: Rig) -> dict[str, str]:
    """The node's."""
    found: dict[str, str] = rig.api.objects[f"/api/v1/nodes/{NODE}"]["metadata"]["labels"]
    return found
