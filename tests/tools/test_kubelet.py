"""The stand-in kubelet has the habits of the real one, the inconvenient ones too."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.kubelet.rig import CORE, MEM, Rig, container, mem_cards, pod
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import PluginCall, StandInContainer

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError, RequestError
from gpu_device_plugin.kubelet.podresources import PodResources


async def refuse(*_: object) -> None:
    """A plugin that refuses."""
    raise RequestError("never", reason="Never")


async def test_resources_of_a_container_come_in_either_order_and_together(rig: Rig) -> None:
    """Choice and allocation of one resource, then of the other; over many pods both orders."""
    await rig.serve(units=60)
    for i in range(30):
        assert (await rig.kubelet.admit(pod(f"p{i}", container(mem=2, core=3)))).is_admitted
    calls = [call for call in rig.kubelet.calls if call.method != "GetDevicePluginOptions"]
    orders = set()
    for i in range(0, len(calls), 4):
        four = calls[i : i + 4]
        assert [call.method for call in four] == ["GetPreferredAllocation", "Allocate"] * 2
        assert four[0].resource == four[1].resource
        orders.add((four[0].resource, four[2].resource))

    assert orders == {(MEM, CORE), (CORE, MEM)}


@pytest.mark.parametrize(
    ("answer", "expected_inside"),
    [
        pytest.param(["m03", "m05"], 2, id="exactly as many: those"),
        pytest.param(["m03", "m05", "m07", "m09"], 2, id="more: some of them"),
        pytest.param(["m03"], 1, id="fewer: those, and others at random"),
        pytest.param([], 0, id="none: any at random"),
        pytest.param(["m03", "x00"], 1, id="an unknown one is dropped"),
    ],
)
async def test_what_a_preference_does(rig: Rig, answer: list[str], expected_inside: int) -> None:
    """As the kubelet's devicesToAllocate does it."""
    await rig.serve()

    async def choose(*_: object) -> Sequence[str]:
        return answer

    rig.service.choose = choose
    await rig.kubelet.admit(pod("p", container(mem=2)))
    held = rig.kubelet.held("uid-p")["main", MEM]

    assert len(held) == 2
    assert len(held & set(answer)) >= expected_inside


async def test_a_preference_names_what_is_available_and_the_whole_size(rig: Rig) -> None:
    """Ids taken over are among the available ones and must be included; the size is the total."""
    await rig.serve(units=5)
    await rig.kubelet.admit(
        pod(
            "p",
            container("init", mem=2, kind=ContainerKind.INIT),
            container("side", mem=1, kind=ContainerKind.SIDECAR),
            container(mem=3),
        )
    )
    held = rig.kubelet.held("uid-p")
    asked = [call for call in rig.kubelet.calls if call.method == "GetPreferredAllocation"]

    assert len(asked) == 2, "the sidecar takes from the init container without a question"
    assert held["side", MEM] < held["init", MEM]
    (kept,) = held["init", MEM] - held["side", MEM]
    assert asked[1].must_include == (kept,)
    assert asked[1].size == 3
    assert set(asked[1].ids) == {"m00", "m01", "m02", "m03", "m04"} - held["side", MEM]


async def test_a_failed_resource_leaves_the_earlier_one_taken_until_the_next_admission(
    rig: Rig,
) -> None:
    """Partial allocations stay with the failed pod, and are taken back lazily."""
    await rig.serve()
    rig.service.before_allocate = refuse_second(rig)
    admission = await rig.kubelet.admit(pod("p", container(mem=2, core=5)))
    left = rig.kubelet.held("uid-p")
    rig.service.before_allocate = None
    await rig.kubelet.admit(pod("q", container(mem=15, core=100)))

    assert not admission.is_admitted
    assert len(left) == 1
    assert rig.kubelet.held("uid-p") == {}
    assert len(rig.kubelet.held("uid-q")) == 2


def refuse_second(rig: Rig) -> Callable[..., Awaitable[None]]:
    """Refuses the second Allocate that comes."""

    async def second(*_: object) -> None:
        if sum(call == "allocate" for call, _, _ in rig.service.calls) == 2:
            await refuse()

    return second


async def test_an_unknown_resource_is_skipped_in_silence(rig: Rig) -> None:
    """The pod starts without a device, as on a node where the plugin has never been."""
    await rig.kubelet.start()
    admission = await rig.kubelet.admit(pod("p", container(mem=2)))

    assert admission.is_admitted
    assert rig.kubelet.held("uid-p") == {}


async def test_too_few_devices_are_said_so_without_asking_the_plugin(rig: Rig) -> None:
    """The kubelet's own words."""
    await rig.serve()
    admission = await rig.kubelet.admit(pod("p", container(mem=16)))

    assert admission.message == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for"
        f" {MEM}. Requested: 16, Available: 15, which is unexpected"
    )
    assert rig.service.calls == []


async def test_a_pod_admitted_again_keeps_what_it_has_without_a_call(rig: Rig) -> None:
    """Re-admission asks nothing; a changed amount is an error."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    calls = len(rig.kubelet.calls)
    again = await rig.kubelet.admit(pod("p", container(mem=2)))

    assert again.is_admitted
    assert len(rig.kubelet.calls) == calls

    changed = await rig.kubelet.admit(pod("p", container(mem=3)))

    assert "changed request" in changed.message


async def test_a_plugin_that_is_gone_leaves_capacity_for_five_minutes(short_dir: Path) -> None:
    """Allocatable is 0 at once; pods are told there is no healthy device."""
    now = [1000.0]
    kubelet = StandInKubelet(short_dir, clock=lambda: now[0])
    rig = Rig(kubelet)
    await rig.serve()
    await rig.stop_endpoints()
    await rig.offered(MEM, 0)
    admission = await kubelet.admit(pod("p", container(mem=1)))
    during = kubelet.capacity(MEM)
    now[0] += 301
    after = kubelet.capacity(MEM)
    await kubelet.stop()

    assert "no healthy devices present; cannot allocate unhealthy devices" in admission.message
    assert (during, after) == (15, 0)


async def test_a_restart_wipes_sockets_and_remembers_who_holds_what(rig: Rig) -> None:
    """Plain files and directories stay; the resource is known, with no device, until it returns."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    held = rig.kubelet.held("uid-p")
    (rig.directory.path / "DEPRECATION").write_text("x", "utf-8")
    await rig.stop_endpoints()
    await rig.kubelet.restart()

    assert rig.sockets() == set()
    assert (rig.directory.path / "DEPRECATION").exists()
    assert (rig.kubelet.capacity(MEM), rig.kubelet.allocatable(MEM)) == (0, 0)
    assert rig.kubelet.held("uid-p") == held

    refused = await rig.kubelet.admit(pod("q", container(mem=1)))

    assert "no healthy devices present" in refused.message


async def test_a_container_started_again_gets_the_answer_of_its_admission(rig: Rig) -> None:
    """PreStart each time while registered, none while not; Allocate never again."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    first = await rig.kubelet.start_container("uid-p", "main")
    await rig.kubelet.start_container("uid-p", "main")
    await rig.stop_endpoints()
    await rig.kubelet.restart()
    after = await rig.kubelet.start_container("uid-p", "main")
    calls = [call.method for call in rig.kubelet.calls]

    assert after == first
    assert calls.count("Allocate") == 1
    assert calls.count("PreStartContainer") == 2


async def test_a_key_that_two_resources_set_is_won_by_either(rig: Rig) -> None:
    """At each start again; and the container's own environment stands over both."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2, core=5)))
    winners = {(await rig.kubelet.start_container("uid-p", "main")).env["FROM"] for _ in range(30)}
    own = dataclasses.replace(container(mem=2), env={"FROM": "the pod"})
    await rig.kubelet.admit(pod("q", own))

    assert winners == {MEM, CORE}
    assert (await rig.kubelet.start_container("uid-q", "main")).env["FROM"] == "the pod"


async def test_a_pod_admitted_before_the_plugin_came_is_allocated_at_its_start(rig: Rig) -> None:
    """The one path on which Allocate is not part of an admission."""
    await rig.kubelet.start()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    rig.mem.publish(mem_cards(15))
    rig.run(rig.mem)
    await rig.offered(MEM, 15)
    start = await rig.kubelet.start_container("uid-p", "main")

    assert start.env["FROM"] == MEM
    assert len(rig.kubelet.held("uid-p")["main", MEM]) == 2


async def test_devices_come_back_when_a_pod_ends_and_only_then(rig: Rig) -> None:
    """A finished pod's devices are noticed at the next admission."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=15)))
    assert not (await rig.kubelet.admit(pod("q", container(mem=15)))).is_admitted
    rig.kubelet.finish("uid-p")

    assert (await rig.kubelet.admit(pod("r", container(mem=15)))).is_admitted


async def test_a_list_before_the_sources_are_ready_takes_nothing_back(rig: Rig) -> None:
    """A kubelet that has just started knows of no pod yet, and of no pod that is gone."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    held = rig.kubelet.held("uid-p")
    rig.kubelet.sources_ready = False
    client = PodResources(rig.kubelet.pod_resources_socket)
    listed = await client.list()
    await client.close()

    assert listed == ()
    assert rig.kubelet.held("uid-p") == held


async def test_a_kubelet_that_was_started_again_lists_the_pods_that_it_has_added_so_far(
    rig: Rig,
) -> None:
    """One by one, before its sources are ready; what the others hold is theirs all the same."""
    await rig.serve()
    first, second = pod("p", container(mem=2)), pod("q", container(mem=2))
    for each in (first, second):
        await rig.kubelet.admit(each)
    held = rig.kubelet.held("uid-q")
    rig.kubelet.forget_pods()
    await rig.kubelet.admit(first)
    client = PodResources(rig.kubelet.pod_resources_socket)
    listed = await client.list()
    await client.close()

    assert [entry.pod.name for entry in listed] == ["p"]
    assert rig.kubelet.held("uid-q") == held


async def test_a_list_inside_an_allocate_can_make_it_give_a_device_twice(rig: Rig) -> None:
    """Kubernetes #137534: what a plugin must not provoke, and must notice."""
    await rig.serve(units=2)
    await rig.kubelet.admit(pod("old", container(core=1)))
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> None:
        reached.set()
        await go_on.wait()

    rig.service.before_allocate = wait
    first = asyncio.create_task(rig.kubelet.admit(pod("p", container(mem=1))))
    await reached.wait()
    rig.kubelet.finish("uid-old")
    client = PodResources(rig.kubelet.pod_resources_socket)
    await client.list()
    await client.close()
    go_on.set()
    await first
    await rig.kubelet.admit(pod("q", container(mem=2)))

    assert rig.kubelet.held("uid-p")["main", MEM] < rig.kubelet.held("uid-q")["main", MEM]


async def test_a_later_step_may_reject_a_pod_that_was_allocated(rig: Rig) -> None:
    """The plugin is not told."""
    await rig.serve()
    rig.kubelet.faults.rejections_after_allocate.append("OutOfmemory")
    admission = await rig.kubelet.admit(pod("p", container(mem=2)))

    assert (admission.is_admitted, admission.reason) == (False, "OutOfmemory")
    assert [call for call, _, _ in rig.service.calls] == ["prefer", "allocate"]
    assert rig.kubelet.active_pods() == ()


async def test_the_same_seed_gives_the_same_calls(short_dir: Path) -> None:
    """A failure that depends on chance can be seen again."""
    first = await calls_of_five_pods(short_dir / "1", seed=7)

    assert await calls_of_five_pods(short_dir / "2", seed=7) == first
    assert await calls_of_five_pods(short_dir / "3", seed=8) != first


async def calls_of_five_pods(root: Path, seed: int) -> list[PluginCall]:
    """The calls that five pods make on a kubelet of that seed."""
    kubelet = StandInKubelet(root, seed)
    rig = Rig(kubelet)
    await rig.serve()
    for i in range(5):
        await kubelet.admit(pod(f"p{i}", container(mem=2, core=5)))
    await rig.stop_endpoints()
    await kubelet.stop()
    return [call for call in kubelet.calls if call.method != "GetDevicePluginOptions"]


async def test_an_unknown_container_cannot_be_started(rig: Rig) -> None:
    """A mistake of a test shows as an error."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", StandInContainer("main", {str(Resource.MEM): 1})))
    with pytest.raises(KubeletError, match="has no container other"):
        await rig.kubelet.start_container("uid-p", "other")
