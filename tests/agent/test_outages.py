"""The API server away, a full disk, files that vanish: pods are served or refused for a reason."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, node_at
from tests.hostile.small_disk import fill, small_tmpfs
from tools.harness.api_server import status
from tools.harness.rig import CORE, COUNT, FOUR_CARDS, MEM, Rig, running_rig, slice_of, until

from gpu_device_plugin.agent.kubelet_calls.caller_lookup import Sources
from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodKey,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.errors import ClusterError, KubeletError, RefusalError, StateError


async def test_with_the_api_away_a_pod_is_served_from_what_the_kubelet_says() -> None:
    """Identity: the only pod in List that was never seen before."""
    async with running_rig() as rig:
        await rig.admit("before", slice_of(2, 30))
        await rig.api.stop()
        pod = rig.pod("during", slice_of(3, 20))
        assert (await rig.kubelet.admit(pod)).is_admitted
        start = await rig.kubelet.start_container(pod.uid, "main-0")

        assert start.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
        assert (fraction_of(rig.grant("during")).mem_units, rig.grant("during").core_percent) == (
            3,
            20,
        )
        assert rig.grant("during").pod.uid == pod.uid
        limits = rig.run / "slices" / rig.grant("during").slice_id / "config" / "limits"
        assert (
            limits.read_text()
            .splitlines()[3]
            .endswith(f"memory_bytes={16160 * 3 // 15 * 1024**2} core_percent=20")
        )


async def test_a_rule_that_needs_the_pods_text_is_checked_at_its_start() -> None:
    """Memory only on a core_mem node: unknown at Allocate with the API away, refused at start."""
    async with running_rig() as rig:
        await rig.api.stop()
        pod = rig.pod("memory-only", slice_of(2))
        assert (await rig.kubelet.admit(pod)).is_admitted

        with pytest.raises(Exception, match="core_mem"):
            await rig.kubelet.start_container(pod.uid, "main-0")


async def test_a_kubelet_that_tells_what_its_pods_ask_does_for_the_api_server() -> None:
    """As one of 1.37 does: an agent that starts during the outage decides by the pod's own text."""
    async with running_rig() as rig:
        await rig.api.stop()
        await rig.stop_agent()
        rig.kubelet.has_pods_api = True
        await rig.kubelet.restart()
        await rig.serve()
        two = rig.pod("two", slice_of(2, 30), slice_of(3, 20))
        assert (await rig.kubelet.admit(two)).is_admitted
        refused = await rig.kubelet.admit(rig.pod("memory-only", slice_of(2)))

        boxed = replace(rig.pod("boxed", slice_of(2, 30)), runtime_class="kata")
        sandboxed = await rig.kubelet.admit(boxed)

        assert "runtimeClassName kata is of a sandbox" in sandboxed.message
        assert rig.grant("two", "main-0").is_checked
        assert fraction_of(rig.grant("two", "main-1")).mem_units == 3
        assert "core_mem" in refused.message


async def test_without_its_text_a_pod_is_named_once_and_its_refused_start_is_told_by_why() -> None:
    """The kubelet tries the start again and again; `why` has it once."""
    async with running_rig() as rig:
        await rig.api.stop()
        odd = await rig.kubelet.admit(rig.pod("odd", slice_of(2, 7)))
        half = rig.pod("half", slice_of(2))
        assert (await rig.kubelet.admit(half)).is_admitted
        for _ in range(3):
            with pytest.raises(KubeletError, match="core_mem"):
                await rig.kubelet.start_container(half.uid, "main-0")
        told = await ask(
            rig.run / "agent.sock", {"command": "why", "namespace": "default", "name": "half"}
        )

        assert odd.message.count("on node n1") == 1
        assert told.count("[MemoryOnly]") == 1


async def test_grants_of_an_outage_get_their_annotations_when_the_api_is_back() -> None:
    """Caught up within seconds of its return."""
    async with running_rig() as rig:
        await rig.admit("before", slice_of(1, 5))
        await rig.api.stop()
        pod = rig.pod("during", slice_of(3, 20))
        await rig.kubelet.admit(pod)
        await rig.kubelet.start_container(pod.uid, "main-0")
        path = "/api/v1/namespaces/default/pods/during"
        await rig.api.put(path, rig.object_of(pod))
        await rig.api.start()
        key = "scheduler.framework.gpushare.allocation"
        await until(lambda: key in rig.annotations(path), 20)

        assert rig.annotations(path)[key] == '{"0":{"0":3}}'


async def test_standalone_serves_without_any_api() -> None:
    """Two pods one after the other, without a Kubernetes API in the world."""
    async with running_rig(is_started=False) as rig:
        await rig.api.stop()
        await rig.serve(standalone=True, kubeconfig=None)
        for name in ("one", "two"):
            pod = rig.pod(name, slice_of(2, 30))
            assert (await rig.kubelet.admit(pod)).is_admitted
            await rig.kubelet.start_container(pod.uid, "main-0")

        assert rig.card_of("one") == rig.card_of("two")
        assert not set(rig.grant("one").ids(Resource.MEM)) & set(rig.grant("two").ids(Resource.MEM))


async def test_a_start_makes_missing_files_of_the_slice_again() -> None:
    """PreStart is the second guard: what somebody removed is there when the container starts."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        limits = rig.run / "slices" / rig.grant("p").slice_id / "config" / "limits"
        text = limits.read_text()
        limits.unlink()
        await rig.kubelet.start_container(rig.uid("p"), "main-0")

        assert limits.read_text() == text


async def test_a_full_disk_refuses_with_a_reason_and_heals_without_a_restart() -> None:
    """The old grants stay whole; the node's cards are out until the disk takes a write."""
    async with running_rig(is_started=False) as rig:
        with small_tmpfs(rig.state, 256):
            try:
                await rig.serve()
                await rig.admit("before", slice_of(2, 30))
                filler = rig.state / "filler"
                fill(filler)
                # Some go into blocks that the grants have already; then one needs a new block.
                tried = [await rig.admit(f"unlucky-{n}", slice_of(1, 5)) for n in range(16)]
                refused = next(admission for admission in tried if not admission.is_admitted)
                assert "No space left on device" in refused.message
                await until(lambda: rig.kubelet.allocatable(MEM) == 0, 10)
                assert fraction_of(rig.grant("before")).mem_units == 2
                filler.unlink()
                await rig.until_offered(FOUR_CARDS, 20)

                assert (await rig.admit("lucky", slice_of(2, 30))).is_admitted
            finally:
                await rig.stop_agent()


async def test_files_that_a_container_has_grown_are_cut_back_and_reported() -> None:
    """A container could fill the host's tmpfs through them; no wait for the next reconcile pass."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        grant = rig.grant("p")
        region = rig.run / "slices" / grant.slice_id / "region"
        activity = rig.run / "cards" / grant.devices[0] / grant.slice_id
        region.write_bytes(bytes(20 << 20))
        activity.write_bytes(bytes(20 << 20))

        await until(lambda: (region.stat().st_size, activity.stat().st_size) == (1 << 20, 4096), 40)
        await until(lambda: len(rig.events("RegionGrown")) == 2, 10)
        messages = " ".join(event["message"] for event in rig.events("RegionGrown"))
        assert "its region file had grown" in messages
        assert f"its activity file of card {grant.devices[0]} had grown" in messages


async def test_cgpu_disable_counts_only_where_the_operator_allows_it() -> None:
    """R-507: ignored with an Event by default, honoured with --honor-cgpu-disable."""
    for honored in (False, True):
        async with running_rig(honor_cgpu_disable=honored) as rig:
            await rig.admit("p", slice_of(2, 30), env={"CGPU_DISABLE": "true"})
            start = await rig.kubelet.start_container(rig.uid("p"), "main-0")

            assert ("/etc/ld.so.preload" in start.mounts) is not honored
            if not honored:
                await until(lambda: rig.events("IsolationKept"), 10)


def is_removed(directory: Path, *, leaving: str | None = None) -> bool:
    """Removes it, and leaves a file of this text; False where the agent wrote in between."""
    try:
        shutil.rmtree(directory)
        if leaving is not None:
            directory.write_text(leaving)
    except OSError:  # not empty any more, or there again
        return False
    return True


def has_on_disk(rig: Rig, grants: list[Grant]) -> bool:
    """Whether the file is whole and holds these; the agent may be writing it."""
    try:
        return rig.grants() == grants
    except StateError:
        return False


async def test_a_state_directory_that_is_removed_under_the_agent_comes_back() -> None:
    """Grants are written again, and there is still one agent a node."""
    async with running_rig() as rig:
        await rig.admit("kept", slice_of(2, 30))
        before = rig.grants()
        await until(lambda: is_removed(rig.state), 20)
        await until(lambda: (rig.state / "lock").exists() and has_on_disk(rig, before), 20)
        for name in ("cards", "node"):
            await until(lambda name=name: list(rig.state.glob(f"{name}*")), 20)
        await until(lambda: rig.events("StateFileBad"), 20)
        await rig.until_ready()
        first, rig.process = rig.process, None
        await rig.start_agent()
        second = await rig.exit_code()
        rig.process = first

        assert second == 2
        assert rig.is_running


async def test_where_the_state_directory_cannot_come_back_the_agent_ends() -> None:
    """As in a pod, where it is a mount that only a container made again gets again."""
    async with running_rig() as rig:
        await until(lambda: is_removed(rig.state, leaving="in its place"), 20)

        assert await rig.exit_code() == 1
        assert f"{rig.state}/lock: cannot be opened" in rig.log.read_text()


async def test_units_of_a_finished_pod_are_given_again_though_an_old_kubelet_lists_it() -> None:
    """Before 1.34 List names pods until they are deleted; the API server says which have ended."""
    async with running_rig() as rig:
        rig.kubelet.pod_resources.has_get = False
        rig.kubelet.pod_resources.lists_finished = True
        node = {"metadata": {"name": "n1"}, "status": {"nodeInfo": {"kubeletVersion": "v1.33.9"}}}
        await rig.api.put("/api/v1/nodes/n1", node)
        for number in range(4):
            assert (await rig.admit(f"job-{number}", slice_of(15, 30))).is_admitted
        refused = await rig.admit("too-early", slice_of(15, 30))
        for number in range(4):
            uid = rig.uid(f"job-{number}")
            ended = {**rig.object_of(rig.kubelet.pods[uid]), "status": {"phase": "Succeeded"}}
            await rig.api.put(f"/api/v1/namespaces/default/pods/job-{number}", ended)
            rig.kubelet.finish(uid)

        messages: list[str] = []

        async def is_given() -> bool:
            """As soon as the agent's watch has heard of the end."""
            admission = await rig.admit("next", slice_of(15, 30))
            if not admission.is_admitted:
                await rig.delete(rig.uid("next"))
            messages.append(admission.message)
            return admission.is_admitted

        assert not refused.is_admitted
        await rig.delete(rig.uid("too-early"))
        await until(is_given, 3, lambda: messages[-1])

        def is_reported() -> bool:
            events = [v for v in rig.api.objects.values() if v.get("reason") == "KubeletTooOld"]
            return any("the kubelet of this node is v1.33.9" in v["message"] for v in events)

        await until(is_reported, 5)


async def test_a_pod_made_again_under_its_name_during_an_outage_gets_its_own_uid() -> None:
    """Granted under the old text, corrected from what the kubelet says, before it looks gone."""
    async with running_rig() as rig:
        await rig.admit("web", slice_of(2, 30))
        await rig.api.stop()
        old = rig.uid("web")
        rig.kubelet.remove(old)
        pod = rig.pod("web", slice_of(2, 30))
        assert (await rig.kubelet.admit(pod)).is_admitted
        await rig.kubelet.start_container(pod.uid, "main-0")
        await rig.restart_agent()

        def has_its_own() -> bool:
            return [g.pod.uid for g in rig.grants() if g.pod.uid != old] == [pod.uid]

        await until(has_its_own, 20, rig.grants)


async def test_stray_files_in_the_run_directory_kill_nobody() -> None:
    """What somebody else put there is left alone; a directory in the socket's place too."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        (rig.run / "cards" / "stray").write_text("x")
        (rig.run / "slices" / "orphan").mkdir()
        await rig.restart_agent()

        assert (rig.run / "cards" / "stray").exists()
        assert (rig.run / "slices" / "orphan").exists()  # nobody knows yet whose it is
        assert (await rig.admit("q", slice_of(2, 30))).is_admitted


async def test_the_agent_can_be_asked_again_after_its_run_directory_was_wiped() -> None:
    """`why` and `recover` come back by themselves."""
    async with running_rig() as rig:
        (rig.run / "agent.sock").unlink()

        await until((rig.run / "agent.sock").is_socket, 20)


@pytest.mark.parametrize("node", ["missing", "forbidden"])
async def test_readyz_says_what_keeps_the_labels_away(node: str) -> None:
    """A missing Node object and missing rights are not an API server that does not answer."""
    async with running_rig(is_started=False) as rig:
        if node == "missing":
            await rig.api.delete("/api/v1/nodes/n1")
        else:
            rig.api.fault = lambda seen: status(403, "forbidden") if "/nodes" in seen.path else None
        await rig.start_agent()

        await rig.until_page("no node n1" if node == "missing" else "403")


async def test_another_plugin_is_remembered_over_a_restart_without_the_api() -> None:
    """What was kept from being offered is not offered because nobody can say so again."""
    async with running_rig() as rig:
        node = rig.api.objects["/api/v1/nodes/n1"]
        foreign = {**node, "status": {"capacity": {"nvidia.com/gpu": "4"}, "nodeInfo": {}}}
        await rig.api.put("/api/v1/nodes/n1", foreign)
        await rig.until_offered({MEM: 0, CORE: 0, COUNT: 0})
        await rig.stop_agent()
        await rig.api.stop()
        await rig.start_agent()
        await rig.until_page("OtherPlugin")
        await rig.until_page("nvidia.com/gpu: 4")

        assert rig.allocatable() == {MEM: 0, CORE: 0, COUNT: 0}


async def test_a_grant_made_without_the_api_server_ends_when_a_pod_of_its_name_gets_its_units(
    short_dir: Path,
) -> None:
    """Both stayed for good, each counted, where the kubelet had rejected the first pod."""
    wiring = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN).wiring
    specs: dict[PodKey, PodRequest] = {}

    async def listed() -> Sequence[ListedPod]:
        return [ListedPod(PodRef("default", "p"))]

    async def fetch(namespace: str, name: str) -> PodRequest | None:
        if not specs:
            raise ClusterError("nobody answers")
        return specs[namespace, name]

    async def admit(*resources: Resource) -> None:
        for resource in resources:
            size = {Resource.MEM: 2, Resource.CORE: 30}[resource]
            free = unit_ids(resource, 0, 15 if resource is Resource.MEM else 100)
            given = await wiring.fraction_calls.prefer(resource, free, (), size)
            await wiring.fraction_calls.allocate(resource, given)

    witnesses = wiring.snapshots.witnesses
    wiring.caller_lookup.sources = Sources(listed, lambda: specs, fetch, witnesses)
    await admit(Resource.MEM)
    (first,) = wiring.live.ledger.grants.values()
    assert not first.pod.uid
    ref = PodRef("default", "p", "uid-p")
    amounts = {str(Resource.MEM): 2, str(Resource.CORE): 30}
    specs[ref.key] = PodRequest(ref, (ContainerRequest("main", ContainerKind.APP, 0, amounts),))
    with pytest.raises(RefusalError):  # so the kubelet rejects the pod
        await wiring.fraction_calls.prefer(Resource.CORE, [], (), 30)
    wiring.caller_lookup.remember_too([], [])
    await admit(Resource.MEM, Resource.CORE)

    assert [grant.pod for grant in wiring.live.ledger.grants.values()] == [ref]
