"""ConfigMaps of unhealthy cards (R-542): operators' entries stay, ours follow the agents."""

from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from tests.controller.replica import Running, a_controller
from tools.harness.api_server import ApiRequest, StandInApiServer, status
from tools.harness.objects import Json, node, pod
from tools.harness.waiting import until

from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import WRITTEN, WRITTEN_BY

_PATH = "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n1"


def listed(server: StandInApiServer) -> str | None:
    """The cards that the ConfigMap names; None where there is none."""
    found = server.objects.get(_PATH)
    return found["data"]["gpus"] if found else None


def operators(cards: str) -> Json:
    """A ConfigMap that an operator wrote."""
    return {"metadata": {"namespace": "kube-system"}, "data": {"gpus": cards, "why": "fan"}}


async def put_node(found: Running, *sick: int, cards: int = 3) -> None:
    """The agent of n1 tells its cards' health."""
    await found.server.put("/api/v1/nodes/n1", node("n1", cards, sick=sick))


def cut_off(path: str) -> Callable[[ApiRequest], web.Response | None]:
    """The list by labels is forbidden."""

    def fault(seen: ApiRequest) -> web.Response | None:
        return status(403, "no") if seen.path == path and "labelSelector" in seen.query else None

    return fault


async def test_a_card_that_an_operator_takes_out_gets_no_pod_and_no_entry_of_ours(
    tmp_path: Path,
) -> None:
    """Its agent tells it: with the entry gone, ours would keep the card listed (R-542)."""
    async with a_controller(tmp_path, (node("n1", 2, sick=(1,), out=(0,)),)) as found:
        await until(lambda: listed(found.server) == "1")
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == []
        await found.server.put("/api/v1/nodes/n1", node("n1", 2, sick=(1,)))

        async def is_offered() -> bool:
            return bool((await found.filter(pod("new", 2, 30), "n1"))["NodeNames"])

        await until(is_offered)


async def test_what_an_agent_finds_is_listed_until_it_is_over(tmp_path: Path) -> None:
    """Nothing is written for a healthy node (R-542)."""
    async with a_controller(tmp_path, (node("n1", 3),)) as found:
        await put_node(found, 2, 0)
        await until(lambda: listed(found.server) == "0,2")
        await put_node(found, 2)
        await until(lambda: listed(found.server) == "2")
        await put_node(found)
        await until(lambda: listed(found.server) == "")
        assert found.controller.ledger.offers["n1"].healthy == {0, 1, 2}


async def test_an_operators_entries_and_keys_stay(tmp_path: Path) -> None:
    """Beside ours, and after ours are over; also one that the agent confirms."""
    async with a_controller(tmp_path, (node("n1", 3),)) as found:
        await found.server.put(_PATH, operators("1"))
        await put_node(found, 1, 2)
        await until(lambda: listed(found.server) == "1,2")
        assert found.server.objects[_PATH]["metadata"]["annotations"][WRITTEN] == "2"
        await put_node(found)
        await until(lambda: listed(found.server) == "1")
        assert found.server.objects[_PATH]["data"]["why"] == "fan"


async def test_ranges_and_uuids_of_an_operator_stay_as_they_are(tmp_path: Path) -> None:
    """What they name is not listed once more; a text that names no card is theirs too."""
    async with a_controller(tmp_path, (node("n1", 5),)) as found:
        await found.server.put(_PATH, operators("0-1,GPU-n1-2,x"))
        await put_node(found, 0, 2, 4, cards=5)
        await until(lambda: listed(found.server) == "0-1,GPU-n1-2,x,4")
        await put_node(found, cards=5)
        await until(lambda: listed(found.server) == "0-1,GPU-n1-2,x")


async def test_of_the_namespace_only_what_we_wrote_is_read(tmp_path: Path) -> None:
    """It has ConfigMaps of 150 MB in some clusters."""
    async with a_controller(tmp_path, (node("n1", sick=(0,)),)) as found:
        await until(lambda: listed(found.server) == "0")
        asked = [s.query for s in found.server.seen("GET") if s.path == _PATH.rpartition("/")[0]]
        mine = {"labelSelector": f"{WRITTEN}={WRITTEN_BY}"}
        assert all(query.items() >= mine.items() or query["fieldSelector"] for query in asked)
        # Written before there was the label, or taken off by a `kubectl replace`.
        await found.server.put(_PATH, operators("0"))
        await until(lambda: found.server.objects[_PATH]["metadata"].get("labels"))


async def test_a_refused_list_of_them_is_told_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The cards that are out are known from the agents."""
    refuse = cut_off(_PATH.rpartition("/")[0])
    async with a_controller(tmp_path, (node("n1", 1, out=(0,)),), fault=refuse) as found:
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == []

        async def is_told() -> bool:
            page = await found.get("/readyz", port=found.controller.pages.port)
            return page[0] == 200 and "configmaps: 403 no" in page[1]

        await until(is_told)


async def test_a_node_of_which_nothing_is_known_keeps_its_entries(tmp_path: Path) -> None:
    """Its agent was removed, or its annotation cannot be read."""
    async with a_controller(tmp_path, (node("n1", 3, sick=(1,)), node("n2"))) as found:
        await until(lambda: listed(found.server) == "1")
        await found.server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})
        await until(lambda: "n1" not in found.controller.ledger.offers)
        # A fence: the next node is written after the first one would have been.
        await found.server.put("/api/v1/nodes/n2", node("n2", sick=(0,)))
        other = _PATH.replace("n1", "n2")
        await until(lambda: other in found.server.objects)
        assert listed(found.server) == "1"
