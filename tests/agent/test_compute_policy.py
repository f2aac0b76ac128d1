"""The promise: setting, node label and pod annotation decide what a share of compute means (R-560).

What the policies do inside the container is promised by tests/isolation/test_compute.py.
"""

import pytest
from tools.harness.rig import Rig, running_rig, slice_of, until

from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.domain.node.compute_policy import COMPUTE_POLICY_KEY


def policy_of(rig: Rig, name: str) -> str:
    """The policy in the limits file of a pod's container."""
    limits = rig.run / "slices" / rig.grant(name).slice_id / "config" / "limits"
    lines = limits.read_text().splitlines()
    return next(line.removeprefix("policy=") for line in lines if line.startswith("policy="))


@pytest.mark.parametrize("number", [1, 2])
async def test_a_setting_by_cgpus_number_reaches_the_limits_file_and_why(number: int) -> None:
    """R-560: 1 and 2 give idle time away."""
    async with running_rig(compute_policy=number) as rig:
        await rig.admit("p", slice_of(2, 30))

        assert policy_of(rig, "p") == "work-conserving"
        text = await ask(
            rig.run / "agent.sock", {"command": "why", "namespace": "default", "name": "p"}
        )
        assert "30 % compute (work-conserving)" in text


async def test_the_nodes_label_stands_over_the_setting_for_new_containers() -> None:
    """A running container keeps the policy that it was admitted with; so after a restart."""
    async with running_rig(compute_policy="native") as rig:
        await rig.admit("before", slice_of(2, 30))
        await rig.set_labels(compute_policy="1")

        async def follows() -> bool:  # the label arrives by itself, soon
            await rig.admit("after", slice_of(1, 5))
            found = policy_of(rig, "after")
            await rig.delete(rig.uid("after"))
            return found == "work-conserving"

        await until(follows, 10)
        await rig.restart_agent(compute_policy="fixed")
        assert policy_of(rig, "before") == "native"


async def test_a_label_that_names_no_policy_changes_nothing_and_is_told() -> None:
    """A typing error gives nobody more than its share (R-560)."""
    async with running_rig() as rig:
        await rig.set_labels(compute_policy="0")
        await until(lambda: rig.events("UnknownComputePolicy"), 10)
        await rig.admit("p", slice_of(2, 30))

        message = rig.events("UnknownComputePolicy")[0]["message"]
        assert "fixed (3)" in message
        assert "cGPU's 0 and 4 share by the number of containers, which is not offered" in message
        assert policy_of(rig, "p") == "fixed"


@pytest.mark.parametrize(("is_honored", "expected"), [(False, "fixed"), (True, "native")])
async def test_a_pods_annotation_counts_only_where_the_operator_allows_it(
    *, is_honored: bool, expected: str
) -> None:
    """Else it is ignored, with an Event."""
    async with running_rig(honor_pod_compute_policy=is_honored) as rig:
        await rig.admit("p", slice_of(2, 30), annotations={COMPUTE_POLICY_KEY: "5"})

        assert policy_of(rig, "p") == expected
        if not is_honored:
            await until(lambda: rig.events("ComputePolicyKept"), 10)


async def test_an_annotation_that_names_no_policy_is_refused() -> None:
    """With the names that there are."""
    async with running_rig(honor_pod_compute_policy=True) as rig:
        answer = await rig.admit("p", slice_of(2, 30), annotations={COMPUTE_POLICY_KEY: "4"})

        assert not answer.is_admitted
        assert (
            "known: fixed (3), work-conserving (1, 2), native (5); cGPU's 0 and 4 share"
            in answer.message
        )


async def test_containers_with_limits_get_the_drivers_libraries_of_the_setting() -> None:
    """Graphics and video work past the limits, so they are left out by default."""
    async with running_rig(driver_capabilities="compute,utility,video") as rig:
        await rig.admit("p", slice_of(2, 30))
        start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

        assert start.env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video"
