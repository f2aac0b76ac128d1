"""The promise: no slice goes to a pod whose RuntimeClass is of a sandbox, in which nothing would enforce it.

The policy's part is tests/e2e/policy_table.py; who writes which name is tests/hostile's.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.agent.claim_node import ClaimsOnly, node_at
from tests.agent.test_claim_requests import POD
from tools.harness.rig import running_rig, slice_of, until

from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.errors import ConfigError, KubeletError, RequestError
from gpu_device_plugin.settings.agent_settings import load_settings

KATA = {"spec": {"runtimeClassName": "kata-qemu"}}


async def test_a_slice_is_refused_with_the_class_and_the_way_out() -> None:
    """Whatever the node's default is; other classes are left alone."""
    async with running_rig() as rig:
        refused = await rig.admit("p", slice_of(2, 30), **KATA)
        assert not refused.is_admitted
        assert "runtimeClassName kata-qemu is of a sandbox" in refused.message
        assert "use another runtime class, or a whole card" in refused.message
        assert (
            await rig.admit("q", slice_of(2, 30), spec={"runtimeClassName": "nvidia"})
        ).is_admitted


@pytest.mark.parametrize(
    ("names", "refused"), [("", set()), ("kata,mine", {"mine"}), ("kata-*", {"kata-qemu"})]
)
async def test_the_operators_list_takes_the_place_of_the_usual_names(
    names: str, refused: set[str]
) -> None:
    async with running_rig(sandbox_runtime_classes=names) as rig:
        for name in ("kata-qemu", "mine", "gvisor"):
            answer = await rig.admit(name, slice_of(1, 5), spec={"runtimeClassName": name})
            assert answer.is_admitted is (name not in refused)


@pytest.mark.parametrize("settings", [{"isolation": "off"}, {"mode": "share"}])
async def test_what_nothing_enforces_anyway_is_given(settings: dict[str, Any]) -> None:
    async with running_rig(**settings) as rig:
        limits = slice_of(2) if "mode" in settings else slice_of(2, 30)
        assert (await rig.admit("p", limits, **KATA)).is_admitted


async def test_whole_cards_are_given() -> None:
    """A virtual machine may have a card of its own, and time-slicing promises nothing."""
    async with running_rig(mode="default") as rig:
        assert (await rig.admit("p", {"nvidia.com/gpu": 1}, **KATA)).is_admitted


@pytest.mark.parametrize(
    ("units", "percent", "is_given"), [(2, 30, False), (15, 30, False), (15, 100, True)]
)
async def test_a_claim_of_a_part_of_a_card_is_refused(
    short_dir: Path, units: int, percent: int, *, is_given: bool
) -> None:
    """All of a card needs no enforcer."""
    node = node_at(short_dir, ClaimsOnly())
    ref = node.cluster.allocate("a", 0, units=units, percent=percent)
    node.api.known = {POD.key: PodRequest(POD, (), runtime_class="gvisor")}
    if is_given:
        assert await node.wiring.claim_endpoint.prepare(ref)
        return
    with pytest.raises(RequestError, match="runtimeClassName gvisor is of a sandbox"):
        await node.wiring.claim_endpoint.prepare(ref)
    assert node.files == []


@pytest.mark.parametrize("bad", ["*", "Kata", "a*b", "a|b", "[a]*"])
def test_a_pattern_that_is_no_beginning_of_a_name_is_an_error(bad: str) -> None:
    flags = {"node_name": "n", "sandbox_runtime_classes": (bad,)}
    with pytest.raises(ConfigError, match="neither a RuntimeClass's name nor a beginning"):
        load_settings(flags, {}, None)


async def test_a_pod_of_an_outage_is_refused_its_starts_once_its_spec_is_known() -> None:
    """As with every rule that needs the spec."""
    async with running_rig() as rig:
        await rig.api.stop()
        pod = rig.pod("during", slice_of(2, 30))
        assert (await rig.kubelet.admit(pod)).is_admitted
        seen = rig.object_of(pod)
        seen["spec"] |= KATA["spec"]
        await rig.api.put("/api/v1/namespaces/default/pods/during", seen)
        await rig.api.start()

        async def is_refused() -> bool:
            try:
                await rig.kubelet.start_container(pod.uid, "main-0")
            except KubeletError as error:
                return "runtimeClassName kata-qemu is of a sandbox" in str(error)
            return False

        await until(is_refused, 40)
