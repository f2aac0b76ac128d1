"""ConfigMaps of unhealthy cards (R-542): operators' entries count and stay, ours follow the agents."""

from pathlib import Path

from tests.controller.replica import Running, a_controller
from tools.harness.api_server import StandInApiServer
from tools.harness.objects import Json, node, pod
from tools.harness.waiting import until

from gpu_device_plugin.controller.unhealthy_cards import WRITTEN

_PATH = "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n1"


def listed(server: StandInApiServer) -> str | None:
    """The cards that the ConfigMap names; None where there is none."""
    found = server.objects.get(_PATH)
    return found["data"]["gpus"] if found else None


def operators(cards: str) -> Json:
    """A ConfigMap that an operator wrote."""
    return {"metadata": {"namespace": "kube-system"}, "data": {"gpus": cards, "why": "fan"}}


async def put_node(found: Running, *sick: int) -> None:
    """The agent of n1 tells its cards' health."""
    await found.server.put("/api/v1/nodes/n1", node("n1", 3, sick=sick))


async def test_a_card_that_an_operator_takes_out_is_given_to_nobody(tmp_path: Path) -> None:
    """Until the entry is gone (R-542)."""
    async with a_controller(tmp_path, (node("n1", 1),)) as found:

        def healthy() -> frozenset[int]:
            return found.controller.ledger.offers["n1"].healthy

        await found.server.put(_PATH, operators(" 0, x"))
        await until(lambda: healthy() == frozenset())
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == []
        await found.server.delete(_PATH)
        await until(lambda: healthy() == {0})
        assert (await found.filter(pod("new", 2, 30), "n1"))["NodeNames"] == ["n1"]


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
        assert found.controller.ledger.offers["n1"].healthy == {0, 2}


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
