"""Our node is seen as the API holds it, and another plugin on the same cards is noticed."""

from typing import Any

from tools.harness.api_server import running, working
from tools.harness.waiting import until

from gpu_device_plugin.kubernetes.objects.node_object import NodeWatch

NODE = "/api/v1/nodes/n1"
SLICE = "/apis/resource.k8s.io/v1/resourceslices/n1-gpu"


def node(**status: Any) -> Any:
    """The node n1 with this status."""
    return {"metadata": {"name": "n1", "uid": "node-uid", "labels": {"a": "b"}}, "status": status}


def resource_slice(driver: str = "gpu.nvidia.com", node_name: str = "n1") -> Any:
    """A ResourceSlice."""
    return {
        "metadata": {"name": "n1-gpu"},
        "spec": {"driver": driver, "nodeName": node_name, "devices": [{"name": "gpu-0"}]},
    }


def foreign(watch: NodeWatch) -> str:
    """The text about another plugin, empty without one."""
    return watch.foreign_plugin()


async def test_the_view_follows_the_node_and_calls_back_only_for_changes_that_matter() -> None:
    """Labels, boot id and resources show; a heartbeat does not."""
    changes: list[None] = []
    async with running() as (server, api):
        await server.put(NODE, node(capacity={"cpu": "4"}))
        watch = NodeWatch(api, "n1", on_change=lambda: changes.append(None))
        async with working(watch.run):
            await until(lambda: watch.view)
            await server.put(NODE, node(capacity={"cpu": "4"}, conditions=[{"type": "Ready"}]))
            changed = node(capacity={"cpu": "4"})
            changed["metadata"]["labels"]["ack.node.gpu.schedule"] = "cgpu"
            await server.put(NODE, changed)
            await until(lambda: "ack.node.gpu.schedule" in watch.view.labels)  # type: ignore[union-attr]

            assert watch.view is not None
            assert watch.view.uid == "node-uid"
            assert watch.view.capacity == {"cpu": "4"}
            assert len(changes) == 2
            assert not foreign(watch)


async def test_an_absent_node_is_synced_and_has_no_view() -> None:
    """With `--register-node=false` the node may come later."""
    async with running() as (server, api):
        watch = NodeWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: watch.is_synced)
            assert watch.view is None
            await server.put(NODE, node())
            await until(lambda: watch.view)


async def test_nvidia_resources_that_are_not_zero_are_a_foreign_plugin() -> None:
    """Whole GPUs and MIG slices count; zeroes that the kubelet keeps after removal do not."""
    async with running() as (server, api):
        zeroes = {"nvidia.com/gpu": "0"}
        await server.put(NODE, node(capacity=zeroes, allocatable=zeroes))
        watch = NodeWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: watch.view)
            assert not foreign(watch)

            await server.put(
                NODE, node(capacity={"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "7"})
            )
            await until(lambda: foreign(watch))
            assert "nvidia.com/gpu: 4, nvidia.com/mig-1g.5gb: 7" in foreign(watch)

            await server.put(NODE, node(capacity={"nvidia.com/gpu": "0"}))
            await until(lambda: not foreign(watch))


async def test_a_resource_slice_of_nvidias_driver_on_this_node_is_a_foreign_plugin() -> None:
    """Other drivers' slices and other nodes' slices are not."""
    async with running() as (server, api):
        await server.put(NODE, node())
        await server.put(SLICE + "-far", resource_slice(node_name="n2"))
        await server.put(SLICE + "-other", resource_slice(driver="gpu.example.com"))
        watch = NodeWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: any("resourceslices" in s.path for s in server.requests))
            await until(lambda: watch.view)
            assert not foreign(watch)

            await server.put(SLICE, resource_slice())
            await until(lambda: foreign(watch))
            assert "gpu.nvidia.com: n1-gpu" in foreign(watch)
            await server.delete(SLICE)
            await until(lambda: not foreign(watch))


async def test_a_server_without_dra_is_asked_once_and_has_no_slices() -> None:
    """resource.k8s.io/v1 is absent before 1.34: no error, no hammering."""
    async with running() as (server, api):
        server.has_dra = False
        await server.put(NODE, node())
        watch = NodeWatch(api, "n1")
        async with working(watch.run):
            await until(lambda: watch._resource_slices.is_synced)
            await until(lambda: len(server.seen("GET", "/nodes")) == 2)  # a list, a watch
            await server.drop_watches()
            await until(lambda: len(server.seen("GET", "/nodes")) == 3)

        assert len(server.seen("GET", "resourceslices")) == 1
        assert not foreign(watch)
