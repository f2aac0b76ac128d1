"""What tenants write into their pods does not fill the memory of those who list them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tools.harness.api_server import ApiRequest, Json, StandInApiServer, running, working
from tools.harness.objects import pod
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import TooLongError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.api_availability import RetryPace
from gpu_device_plugin.kubernetes.client.listing import list_items, pages
from gpu_device_plugin.kubernetes.client.wire import POD_ANNOTATIONS, Pod
from gpu_device_plugin.kubernetes.objects.cluster_watch import Changes, ClusterPod, ClusterWatch
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request, scheduled_request
from gpu_device_plugin.kubernetes.objects.pod_watch import PodWatch
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod

_MIB = 1 << 20
_PATH = "/api/v1/namespaces/ns/pods/"
_PAGE_BYTES = 16 * _MIB


def a_pod(name: str, *, phase: str = "Running", fat: int = 250 * 1024) -> Json:
    """A pod on node n1 whose annotations are as large as the API server takes them."""
    made = pod(name, 2, on="n1", annotations={"junk": "x" * fat, ALLOCATION: " " * (fat and 300)})
    return {**made, "status": {"phase": phase}}


def fill(server: StandInApiServer, pods: int, **chosen: Any) -> None:
    """So many such pods."""
    for number in range(pods):
        server.preload(f"{_PATH}p{number:04}", a_pod(f"p{number:04}", **chosen))


class Asked:
    """How much of each answer was taken."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self.bytes: list[int] = []
        self.refused = 0

    async def __call__(self, request: Request) -> Answer:
        try:
            answer = await self._api.call(request)
        except TooLongError:
            self.refused += 1
            raise
        self.bytes.append(len(answer.body))
        return answer


@pytest.mark.usefixtures("patient_api")
async def test_a_page_of_large_objects_is_asked_for_again_with_fewer() -> None:
    """Whatever they are, no more than 16 MiB are taken at a time, and none is left out."""
    pods = 200
    async with running() as (server, api):
        fill(server, pods)
        asked, names = Asked(api), []
        async for answer in pages(asked, "/api/v1/pods", {}):
            names += [each["metadata"]["name"] for each in json.loads(answer.body)["items"]]
    assert sorted(names) == [f"p{number:04}" for number in range(pods)]
    assert max(asked.bytes) <= _PAGE_BYTES
    assert asked.refused <= 3 + pods // 50


@pytest.mark.usefixtures("patient_api")
async def test_one_object_is_taken_however_long_it_is() -> None:
    """The API server bounds it; a server that ignored the size of a page would never be read."""
    async with running() as (server, api):
        fill(server, 2, fat=17 * _MIB)
        found = [each async for each in list_items(api, "/api/v1/pods", Pod)]
    assert len(found) == 2


@asynccontextmanager
async def followed(api: ApiServer) -> AsyncIterator[dict[str, ClusterPod]]:
    """The pods that a controller knows, by name."""
    known: dict[str, ClusterPod] = {}

    def changed(ref: PodRef, found: ClusterPod | None) -> None:
        known.pop(ref.name, None)
        if found is not None:
            known[ref.name] = found

    watch = ClusterWatch(api, Changes(lambda _name, _node: None, changed))
    async with working(watch.run_nodes, watch.run_pods):
        await until(lambda: watch.is_synced)
        yield known


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_pods_that_have_finished_are_not_listed(phase: str) -> None:
    """Neither by the controller nor by an agent; one that finishes is gone for both."""
    async with running() as (server, api):
        fill(server, 20, phase=phase)
        await server.put(_PATH + "lives", a_pod("lives"))
        watch = PodWatch(api, "n1")
        async with followed(api) as known, working(watch.run):
            await until(lambda: watch.is_synced)
            assert list(known) == [name for _, name in watch.pods] == ["lives"]
            await server.put(_PATH + "lives", a_pod("lives", phase=phase))
            await until(lambda: not known and not watch.pods)


async def test_of_a_live_pod_only_what_is_read_is_kept() -> None:
    """By the list and by the watch, and of what is read no more than anybody would write."""
    async with running() as (server, api):
        fill(server, 3)
        watch = PodWatch(api, "n1")
        async with followed(api) as known, working(watch.run):
            await until(lambda: watch.is_synced)
            await server.put(_PATH + "new", a_pod("new"))
            await until(lambda: "new" in known and ("ns", "new") in watch.pods)
            kept = [each.annotations for each in known.values()]
            kept += [found.annotations for n in known if (found := watch.watched("ns", n))]
    assert len(kept) == 8
    assert all(each == {ALLOCATION: " " * 300} for each in kept)


def decoded(made: Json) -> Pod:
    """The pod as every reader of the cluster has it."""
    return msgspec.json.decode(json.dumps(made), type=Pod)


@pytest.mark.parametrize("size", [_MIB, 2 * _MIB])
def test_what_a_pod_costs_does_not_grow_with_what_its_tenant_writes(size: int) -> None:
    """Values, names and numbers of what we read and of what we do not."""
    made = a_pod("fat", fat=0)
    text = "y" * (size // 20)
    made["metadata"]["annotations"] = dict.fromkeys([*POD_ANNOTATIONS, *"abcd"], text)
    made["metadata"]["labels"] = {f"label-{n}": "x" * 60 for n in range(size // 1000)}
    made["metadata"]["ownerReferences"] = [{"uid": text, "kind": "x", "name": "x"}] * 4
    made["spec"]["containers"][0]["env"] = [
        {"name": "CGPU_DISABLE", "value": "true"},
        *({"name": f"V{n}", "value": text} for n in range(10)),
    ]
    assert len(msgspec.json.encode(decoded(made))) < 80 * 1024
    assert pod_request(decoded(made)).containers[0].wants_no_isolation


def test_what_a_list_keeps_of_a_live_pod_is_bounded_in_each_part_that_we_read() -> None:
    """The value and the number of a variable, amounts, claims, and what an owner is called."""
    made, size = a_pod("fat", fat=0), 20_000
    (asking,) = made["spec"]["containers"]
    before = dict(asking["resources"]["limits"])
    names = {f"{domain}/{n}": "1" for domain in ("nvidia.com", "x.com") for n in range(size)}
    said = {"name": "CGPU_DISABLE", "value": "y" * size}
    asking["env"] = [said] * (size // 1000) + [{"name": "CGPU_DISABLE", "value": "true"}, said]
    asking["resources"] = {"limits": names | before, "requests": names | {"cpu": "2"}}
    made["spec"]["overhead"] = names | {"cpu": "1"}
    made["spec"]["resources"] = {"limits": names}
    made["spec"]["resourceClaims"] = [{"name": f"c{n}"} for n in range(size)]
    owner = {"uid": "u" * size, "kind": "k" * size, "name": "n" * size, "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    kept = msgspec.json.encode(decoded(made))
    assert len(kept) < 12 * 1024
    asking |= {"image": "i" * size, "command": ["c" * size] * 9}
    asking["ports"] = [{"containerPort": n, "name": f"p{n}"} for n in range(size)]
    made["spec"]["nodeSelector"] = {f"k{n}": "v" for n in range(size)}
    for_people = msgspec.json.decode(json.dumps(made), type=SurveyedPod)
    assert len(msgspec.json.encode(for_people)) < 16 * 1024
    assert scheduled_request(msgspec.json.decode(kept, type=Pod)).cpu_milli == 3000
    assert pod_request(decoded(made)).containers[0].amounts == {
        name: int(amount) for name, amount in before.items()
    }


@pytest.mark.parametrize("count", [1_000, 20_000])
def test_of_thousands_of_containers_those_that_ask_are_kept_up_to_a_bound(count: int) -> None:
    """More than 128 that ask are refused in any case; what is kept still says that they are too many."""
    made = a_pod("many", fat=0)
    (asking,) = made["spec"]["containers"]
    made["spec"]["initContainers"] = [{"name": f"c{n}"} for n in range(count)]
    assert [each.name for each in pod_request(decoded(made)).containers] == ["a"]
    made["spec"]["initContainers"] = [{**asking, "name": f"c{n}"} for n in range(count)]
    assert len(pod_request(decoded(made)).containers) == 128


async def test_a_list_that_was_asked_for_while_another_is_under_way_comes_at_once() -> None:
    """It is no failure: a new leader waits for it before it answers."""
    async with running() as (server, api):
        api.availability.pace = RetryPace(
            first_seconds=3600, longest_seconds=7200
        )  # outlasts the test
        watch = ClusterWatch(api, Changes(lambda _name, _node: None, lambda _ref, _pod: None))
        async with working(watch.run_nodes, watch.run_pods):
            await until(lambda: watch.is_synced)
            asked: list[asyncio.Future[None]] = []

            def again(_: ApiRequest) -> None:
                if len(asked) < 2:
                    asked.append(asyncio.ensure_future(watch.catch_up()))

            server.fault = again
            asked.append(asyncio.ensure_future(watch.catch_up()))
            await until(lambda: len(asked) == 2 and all(each.done() for each in asked))
