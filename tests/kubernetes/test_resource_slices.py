"""Our node's ResourceSlice is at the API server as it is wanted, anyone who removes or changes it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web import BaseRequest, Response
from tools.harness.api_server import ApiRequest, StandInApiServer, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.claims import Capacity, OfferedDevice
from gpu_device_plugin.kubernetes.objects.resource_claims import fetch_claim, list_allocated
from gpu_device_plugin.kubernetes.objects.resource_slices import ResourceSlices

LIST = "/apis/resource.k8s.io/v1/resourceslices"
PATH = f"{LIST}/n1-gpu-device-plugin"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/p1-slice"


def device(number: int, **taints: str) -> OfferedDevice:
    """A V100 as mode core_mem offers it."""
    card = Card(
        f"GPU-{number}",
        CardNumber(number),
        CardIndex(number),
        number,
        "Tesla-V100-SXM2-16GB",
        MiB(16160),
    )
    return OfferedDevice(card, "core_mem", Capacity(MiB(15360), MiB(1024), 100, 5), taints)


@asynccontextmanager
async def at_work(
    node_uid: Callable[[], str] = lambda: "u",
) -> AsyncIterator[tuple[StandInApiServer, ResourceSlices]]:
    """The server, and the writer at work."""
    async with running() as (server, api):
        slices = ResourceSlices(api, "n1", node_uid)
        async with working(slices.run):
            yield server, slices


def names(server: StandInApiServer) -> list[str]:
    """The devices that stand at the server."""
    found = server.objects.get(PATH)
    return [each["name"] for each in found["spec"]["devices"]] if found else []


def owners(server: StandInApiServer) -> list[str]:
    """Uids of the owners of the slice that stands at the server."""
    found = server.objects.get(PATH, {"metadata": {}})
    return [owner["uid"] for owner in found["metadata"].get("ownerReferences", ())]


async def test_nothing_is_asked_of_the_server_before_something_is_offered() -> None:
    """An agent without claims costs the API server nothing."""
    async with at_work() as (server, slices):
        await asyncio.sleep(0)
        assert server.requests == []
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"])


async def test_the_slice_says_what_claims_may_divide() -> None:
    async with at_work() as (server, slices):
        slices.offer([device(0), device(1, **{"gpu-device-plugin/unhealthy": "XID 79!"})], "535.1")
        await until(lambda: names(server) == ["gpu-0", "gpu-1"])
        made: dict[str, Any] = server.objects[PATH]

    assert made["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    assert (made["spec"]["driver"], made["spec"]["nodeName"]) == ("gpu-device-plugin", "n1")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    first, second = made["spec"]["devices"]
    assert first["allowMultipleAllocations"] is True
    assert first["attributes"]["uuid"] == {"string": "GPU-0"}
    assert first["capacity"] == {
        "memory": {"value": "15360Mi", "requestPolicy": {
            "default": "15360Mi", "validRange": {"min": "1024Mi", "step": "1024Mi", "max": "15360Mi"}}},
        "cores": {"value": "100", "requestPolicy": {
            "default": "100", "validRange": {"min": "5", "step": "5", "max": "100"}}},
        "slots": {"value": "16", "requestPolicy": {
            "default": "1", "validRange": {"min": "1", "step": "1", "max": "16"}}},
    }  # fmt: skip
    assert "taints" not in first
    taint = {"key": "gpu-device-plugin/unhealthy", "value": "XID-79", "effect": "NoSchedule"}
    assert second["taints"] == [taint]


async def test_a_slice_that_is_removed_before_its_writing_is_answered_is_written_again() -> None:
    """The watch was ahead of the answer, which was believed: the slice was missing for good."""
    async with at_work() as (server, slices):

        class Late(Response):
            """The answer to a POST whose object has come and gone."""

            async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
                await server.put(PATH, server.seen("POST")[0].body)
                self.text = json.dumps(server.objects[PATH])
                await until(lambda: slices.is_written)
                await server.delete(PATH)
                await until(lambda: not slices.is_written)
                return await super().prepare(request)

        server.fault = lambda seen: (
            Late(status=201) if seen.method == "POST" and len(server.seen("POST")) == 1 else None
        )
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"] and len(server.seen("POST")) == 2)


async def test_a_kubelet_that_starts_removes_the_slice_and_it_is_written_again() -> None:
    async with at_work() as (server, slices):
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"])
        await server.delete(PATH)
        await until(lambda: names(server) == ["gpu-0"])


async def test_a_change_is_written_and_the_same_again_is_not() -> None:
    async with at_work() as (server, slices):
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"])
        slices.offer([device(0)], "535.1")
        slices.offer([device(0), device(1)], "535.1")
        await until(lambda: names(server) == ["gpu-0", "gpu-1"])
        assert (len(server.seen("POST")), len(server.seen("PUT"))) == (1, 1)
        slices.offer([], "535.1")
        await until(lambda: PATH not in server.objects)


async def test_a_slice_goes_with_its_node_and_follows_one_of_the_same_name() -> None:
    """One without an owner, or of a node that is gone, nobody would remove, or somebody at once."""
    node = {"uid": ""}

    async with at_work(lambda: node["uid"]) as (server, slices):
        slices.offer([device(0)], "535.1")
        await until(lambda: server.seen("GET", LIST))
        await until(lambda: not slices.is_written)
        for uid in ("first", "second"):
            node["uid"] = uid
            slices.node_changed()
            await until(lambda: owners(server) == [node["uid"]])
        node["uid"] = ""
        await server.delete(PATH)
        slices.node_changed()
        await until(lambda: not slices.is_written)
        slices.offer([], "535.1")
        await until(lambda: slices.is_written)
        assert len(server.seen("POST")) == 1


async def test_a_slice_of_another_name_that_an_earlier_release_left_is_removed() -> None:
    async with at_work() as (server, slices):
        spec = {"driver": "gpu-device-plugin", "nodeName": "n1"}
        server.preload(f"{LIST}/old", {"metadata": {"name": "old"}, "spec": spec})
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"] and f"{LIST}/old" not in server.objects)


@pytest.mark.parametrize("prefix", ["", "gpu-device-plugin/"])
async def test_a_claim_is_read_with_what_is_allocated_to_it_and_its_pod(prefix: str) -> None:
    """Quantities come in any notation; from Kubernetes 1.38 on capacities may have the driver's name before theirs."""
    result = {
        "driver": "gpu-device-plugin", "pool": "n1", "device": "gpu-3", "request": "slice",
        "shareID": "s-1",
        "consumedCapacity": {f"{prefix}memory": "2Gi", f"{prefix}cores": "30", "slots": "1"},
    }  # fmt: skip
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "p1", "uid": "uid-p1"}],
    }
    async with running() as (server, api):
        meta = {"name": "p1-slice", "namespace": "default", "uid": "u1"}
        owners = [{"kind": "Pod", "name": "p1", "uid": "uid-p1"}, {"kind": "Job", "uid": "uid-j"}]
        owned = {**meta, "ownerReferences": owners}
        server.preload(CLAIM, {"metadata": owned, "status": status})
        server.preload(f"{CLAIM}-new", {"metadata": {**meta, "name": "p1-slice-new"}})
        found = await fetch_claim(api, "default", "p1-slice", 5)
        new = await fetch_claim(api, "default", "p1-slice-new", 5)
        gone = await fetch_claim(api, "default", "nothing", 5)

    assert gone is None
    assert found is not None
    assert new is not None
    assert (new.pod, new.devices) == (None, ())
    assert (str(found.pod), found.ref.uid) == ("default/p1", "u1")
    assert (found.owners, new.owners) == (frozenset({"uid-p1"}), frozenset())
    (of,) = found.devices
    assert (of.device, of.memory_mib, of.core_percent, of.share_id) == ("gpu-3", 2048, 30, "s-1")


async def test_of_all_claims_those_with_devices_of_ours_are_read_page_by_page() -> None:
    """Other drivers' claims, and those that nothing is allocated to, may be many."""

    def allocated(driver: str) -> Any:
        result = {"driver": driver, "pool": "n1", "device": "gpu-3"}
        return {"allocation": {"devices": {"results": [result]}}}

    async with running() as (server, api):
        server.page_size = 2
        statuses = [{}, *map(allocated, ("gpu-device-plugin", "disks", "gpu-device-plugin")), {}]
        for number, told in enumerate(statuses):
            meta = {"name": f"c{number}", "namespace": "default"}
            server.preload(f"{CLAIM}-{number}", {"metadata": meta, "status": told})
        found = await list_allocated(api)

    assert [claim.ref.name for claim in found] == ["c1", "c3"]
    assert len(server.seen("GET")) == 3


async def test_a_server_without_such_objects_says_so_until_it_takes_one() -> None:
    async with at_work() as (server, slices):
        server.has_dra = False
        slices.offer([device(0)], "535.1")
        await until(lambda: "404" in slices.refused)
        server.has_dra = True
        await until(lambda: names(server) == ["gpu-0"])
        await until(lambda: not slices.refused)


async def test_whether_a_refused_slice_would_be_taken_is_asked_without_a_write() -> None:
    """So that the device plugin may serve meanwhile."""
    async with at_work() as (server, slices):
        server.has_dra = False
        slices.offer([device(0)], "535.1")
        await until(lambda: slices.refused)
        slices.offer([], "")
        assert not await slices.would_take()
        server.has_dra = True
        assert await slices.would_take()
        assert (server.objects, slices.was_taken) == ({}, False)


async def test_a_slice_was_taken_until_we_take_it_back() -> None:
    """Also one of an earlier run, and one that a kubelet has deleted."""
    async with at_work() as (server, slices):
        spec = {"driver": "gpu-device-plugin", "nodeName": "n1"}
        server.preload(PATH, {"metadata": {"name": "n1-gpu-device-plugin"}, "spec": spec})
        server.fault = lambda seen: status(403, "no") if seen.method in {"POST", "PUT"} else None
        slices.offer([device(0)], "535.1")
        await until(lambda: slices.refused)
        assert slices.was_taken
        await server.delete(PATH)
        await until(lambda: "POST" in slices.refused)
        assert slices.was_taken
        server.fault = lambda _: None
        await until(lambda: names(server) == ["gpu-0"])
        slices.offer([], "535.1")
        await until(lambda: PATH not in server.objects)
        await until(lambda: not slices.was_taken)


async def test_a_list_that_is_refused_for_a_moment_is_asked_for_again_at_once() -> None:
    """A server that has just started knows nobody's rights; the slice of before is found then."""
    async with at_work() as (server, slices):
        meta = {"name": "n1-gpu-device-plugin", "resourceVersion": "1"}
        spec = {"driver": "gpu-device-plugin", "nodeName": "n1", "devices": []}
        server.preload(PATH, {"metadata": meta, "spec": spec})
        refused = [LIST] * 3

        def fault(seen: ApiRequest) -> Response | None:
            is_refused = seen.method == "GET" and seen.path in refused
            if is_refused:
                refused.pop()
            return status(403, "forbidden") if is_refused else None

        server.fault = fault
        slices.offer([device(0)], "535.1")
        await until(lambda: names(server) == ["gpu-0"])
        assert not refused
