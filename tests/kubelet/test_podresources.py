"""What the kubelet lists is read whole, patiently, and with its reasons."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from tests.kubelet.rig import MEM, Rig, container, pod
from tools.harness.kubelet_pods import StandInContainer

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import podresources_pb2 as pb
from gpu_device_plugin.kubelet.podresources import PodResources


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[PodResources]:
    """A client of the rig's kubelet."""
    resources = PodResources(rig.kubelet.pod_resources_socket)
    yield resources
    await resources.close()


async def test_the_list_holds_every_pod_with_what_it_holds_of_ours(
    rig: Rig, client: PodResources
) -> None:
    """App containers and sidecars are named, ordinary init containers are not; and drivers of claims."""
    await rig.serve()
    await rig.kubelet.admit(
        pod(
            "p",
            container("init", mem=2, kind=ContainerKind.INIT),
            container("side", mem=1, kind=ContainerKind.SIDECAR),
            container(mem=2, core=5),
        )
    )
    claiming = StandInContainer("main", {"other.io/x": 1}, drivers=("gpu-device-plugin",))
    await rig.kubelet.admit(pod("plain", claiming))
    held = rig.kubelet.held("uid-p")
    pods = await client.list()
    listed = {str(each.pod): each.held for each in pods}

    assert set(listed) == {"default/p", "default/plain"}
    assert set(listed["default/p"]) == {"side", "main"}
    assert listed["default/p"]["main"][Resource.MEM] == held["main", MEM]
    assert len(listed["default/p"]["main"][Resource.CORE]) == 5
    assert listed["default/plain"] == {"main": {}}
    assert {str(each.pod): set(each.drivers) for each in pods} == {
        "default/p": set(),
        "default/plain": {"gpu-device-plugin"},
    }


async def test_what_was_read_before_is_read_again_where_it_or_our_resources_changed(
    rig: Rig,
) -> None:
    """What a pod held at the last List is known by its bytes; a configuration may bring resources."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2, core=5)))
    ours = {str(Resource.MEM)}
    client = PodResources(rig.kubelet.pod_resources_socket, ours)
    try:
        (before,) = await client.list()
        assert (await client.list())[0] is before
        ours.add(str(Resource.CORE))
        (after,) = await client.list()
        await rig.kubelet.admit(pod("a", container(mem=1)))
        listed = await client.list()
    finally:
        await client.close()

    assert set(before.held["main"]) == {Resource.MEM}
    assert set(after.held["main"]) == {Resource.MEM, Resource.CORE}
    assert [each.pod.name for each in listed] == ["a", "p"]
    assert [len(each.ids("main", Resource.MEM)) for each in listed] == [1, 2]


async def test_the_pod_being_admitted_is_listed_with_none_of_the_resource(
    rig: Rig, client: PodResources
) -> None:
    """Identity: asked from inside GetPreferredAllocation."""
    await rig.serve()
    await rig.kubelet.admit(pod("earlier", container(mem=1)))
    seen: dict[str, int] = {}

    async def look(available: Sequence[str], _must: Sequence[str], size: int) -> Sequence[str]:
        seen.update({p.pod.name: len(p.ids("main", Resource.MEM)) for p in await client.list()})
        return sorted(available)[:size]

    rig.service.choose = look
    await rig.kubelet.admit(pod("asking", container(mem=2)))

    assert seen == {"earlier": 1, "asking": 0}


async def test_a_burst_above_the_kubelets_limit_is_answered_all_the_same(
    rig: Rig, client: PodResources
) -> None:
    """The kubelet rejects what comes after ten at once; it is asked again."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=1)))
    answers = await asyncio.gather(*(client.list() for _ in range(25)))

    assert {answer[0].pod for answer in answers} == {PodRef("default", "p")}


async def test_get_tells_one_pod_or_none(rig: Rig, client: PodResources) -> None:
    """A pod that the kubelet does not know is no error."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    found = await client.get(PodRef("default", "p", "some-uid"))

    assert found is not None
    assert len(found.ids("main", Resource.MEM)) == 2
    assert await client.get(PodRef("default", "q")) is None


async def test_a_kubelet_too_old_for_get_is_named_as_such(rig: Rig, client: PodResources) -> None:
    """Before 1.34 the call does not exist, or is off."""
    rig.kubelet.pod_resources.has_get = False
    await rig.serve()
    with pytest.raises(KubeletError, match=r"no PodResources Get: it is older than 1\.34"):
        await client.get(PodRef("default", "p"))


async def test_a_kubelet_that_is_away_is_an_error_and_is_found_when_it_returns(
    rig: Rig, client: PodResources
) -> None:
    """The connection of before is not in the way."""
    with pytest.raises(KubeletError, match="PodResources List on"):
        await client.list()
    await rig.serve()
    await rig.kubelet.restart()

    assert await client.list() == ()


async def test_a_resource_split_over_numa_nodes_is_put_together(rig: Rig) -> None:
    """Several entries of one name: all of their ids."""
    socket = rig.kubelet.plugin_dir.parent / "split.sock"

    async def answer(_request: Any, _context: Any) -> Any:
        parts = [pb.ContainerDevices(resource_name=MEM, device_ids=[i]) for i in ("m00", "m01")]
        main = pb.ContainerResources(name="main", devices=parts)
        return pb.ListPodResourcesResponse(
            pod_resources=[pb.PodResources(name="p", namespace="n", containers=[main])]
        )

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        answer, None, pb.ListPodResourcesResponse.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    client = PodResources(socket)
    listed = await client.list()
    await client.close()
    await server.stop(0)

    assert listed[0].ids("main", Resource.MEM) == {"m00", "m01"}
