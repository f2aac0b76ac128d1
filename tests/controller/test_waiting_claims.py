"""A pod whose claim waits is told what the cards have, where kube-scheduler says no more than that it waits."""

from pathlib import Path

from tests.controller.replica import Running, a_controller, a_replica
from tools.harness.api_server import running
from tools.harness.objects import Json, claiming, node, path
from tools.harness.waiting import until

UNALLOCATED = "0/1 nodes are available: 1 cannot allocate all claims."


def waiting(name: str, units: int, percent: int, message: str = UNALLOCATED) -> Json:
    """A pod with a claim that kube-scheduler could not place."""
    made = claiming(name, units, percent)
    refused = {"type": "PodScheduled", "status": "False", "message": message}
    made["status"] |= {"phase": "Pending", "conditions": [refused]}
    return made


def told(found: Running) -> dict[str, str]:
    """Pod -> what the controller says of it."""
    events = (each for path, each in found.server.objects.items() if "/events/" in path)
    return {
        each["involvedObject"]["name"]: each["message"]
        for each in events
        if each["reason"] == "ClaimWaits"
    }


async def test_a_claim_that_no_card_has_room_for_is_told_the_emptiest(tmp_path: Path) -> None:
    """Nothing is said of a pod that fits, or waits for something else."""
    nodes = (node("n1", 2, by_claims=(0, 1), claimed={0: (10, 60), 1: (3, 30)}), node("n2"))
    async with a_controller(tmp_path, nodes) as found:
        await found.put(waiting("fits", 12, 70))
        await found.put(waiting("cpu", 14, 75, "0/1 nodes are available: 1 Insufficient cpu."))
        await found.put(waiting("large", 13, 30))
        await until(lambda: "large" in told(found))
        assert told(found) == {
            "large": "no card of the node that gives its cards by claims has room for it: the emptiest "
            "card, card 1 of node n1, has 12 of 15 units and 70 % of its compute free; "
            "`kubectl gpu why ns/large` shows each card"
        }


async def test_a_claim_without_a_node_that_gives_cards_by_claims_is_told_the_label(
    tmp_path: Path,
) -> None:
    async with a_controller(tmp_path, (node("n1"),)) as found:
        await found.put(waiting("early", 2, 30))
        await until(lambda: told(found))
        assert "label one gpu-device-plugin/allocation-api=dra" in told(found)["early"]


async def test_a_claim_that_waited_before_anybody_led_is_told_then(tmp_path: Path) -> None:
    """kube-scheduler may not speak of it again for five minutes."""
    async with running() as (server, _):
        for each in (node("n1", 2, by_claims=(0, 1)), waiting("early", 16, 30)):
            await server.put(path(each) if "spec" in each else "/api/v1/nodes/n1", each)
        async with a_replica(server, tmp_path, "only") as found:
            await until(lambda: "early" in told(found))
