"""Claims while agent, kubelet or API server are away: nothing that runs is harmed, nothing is given twice.

The real agent process; the claims are allocated as kube-scheduler does it.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from tests.apps.agent.rig import CORE, COUNT, MEM, NODE, Rig, running_rig
from tests.fakes.api_server import Seen, status
from tests.kubelet.claim_kubelet import ClaimKubelet
from tests.waiting import until

GROUP = "/apis/resource.k8s.io/v1"
SLICE = f"{GROUP}/resourceslices/{NODE}-gpu-device-plugin"
CLAIMS = f"{GROUP}/resourceclaims"
ALL, THREE, NOTHING = ({MEM: 15 * n, CORE: 100 * n, COUNT: n} for n in (4, 3, 0))
TAINTED = {f"gpu-{n}": "device-plugin" for n in range(4)}


@asynccontextmanager
async def claim_rig() -> AsyncIterator[Rig]:
    """A node whose label says dra, with four cards offered for claims."""
    async with running_rig(is_started=False) as rig:
        await rig.set_labels(door="dra")
        await start(rig)
        await until(lambda: len(devices(rig)) == 4, 30)
        yield rig


async def start(rig: Rig) -> None:
    await rig.start_agent(cdi_dir=rig.root / "cdi")


async def kill(rig: Rig) -> None:
    assert await rig.stop_agent(signal.SIGKILL) == -signal.SIGKILL


def kubelet(rig: Rig) -> ClaimKubelet:
    """The kubelet's side of claims, on the directory of the stand-in kubelet."""
    return ClaimKubelet(rig.root / "k")


def devices(rig: Rig) -> dict[str, str]:
    """Device -> value of the taint for its door, or "", as the scheduler sees it."""
    of = rig.api.objects.get(SLICE, {"spec": {"devices": []}})["spec"]["devices"]
    return {each["name"]: next((t["value"] for t in each.get("taints", ())), "") for each in of}


async def allocate(rig: Rig, name: str, card: int) -> None:
    """What the scheduler writes into a claim of 2 units and 30 %."""
    result = {
        "driver": "gpu-device-plugin", "pool": NODE, "device": f"gpu-{card}", "request": "slice",
        "consumedCapacity": {"memory": "2Gi", "cores": "30"},
    }  # fmt: skip
    content = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"p-{name}", "uid": f"uid-p-{name}"}],
        },
    }
    await rig.api.put(claim_path(name), content)


def claim_path(name: str) -> str:
    return f"{GROUP}/namespaces/default/resourceclaims/{name}"


async def prepare(rig: Rig, name: str) -> str:
    """The kubelet prepares it; the error, or ""."""
    return str((await kubelet(rig).prepare(name))[f"uid-{name}"].error)


async def end(rig: Rig, name: str) -> None:
    """The pod's containers have ended, and its claim is deleted."""
    assert not (await kubelet(rig).unprepare(name))[f"uid-{name}"].error
    if claim_path(name) in rig.api.objects:
        await rig.api.delete(claim_path(name))


def held(rig: Rig) -> dict[str, tuple[str, Any]]:
    """Claim -> card and slice of its grant on disk, where its CDI file names the slice."""
    found = {}
    for grant in rig.grants():
        path = rig.root / "cdi" / f"gpu-device-plugin-{grant.holder.claim}.json"
        assert (
            json.loads(path.read_text())["annotations"]["gpu-device-plugin/slice"] == grant.slice_id
        )
        found[grant.holder.claim.removeprefix("uid-")] = (grant.devices[0], grant.slice_id)
    return found


def no_lists(seen: Seen) -> web.Response | None:
    """The API server answers, but does not list claims."""
    return status(503, "not now") if seen.path == CLAIMS else None


async def test_killed_while_cards_go_back_the_next_agent_withholds_them_as_well() -> None:
    """A claim that is allocated and not prepared yet gets its card; the others go back."""
    async with claim_rig() as rig:
        await allocate(rig, "late", 0)
        rig.api.fault = no_lists
        await rig.set_labels(door="device-plugin")
        await until(lambda: devices(rig) == TAINTED, 30)
        await kill(rig)
        rig.api.requests.clear()
        await start(rig)
        await until(lambda: kubelet(rig).registry_socket.exists(), 30)
        await kubelet(rig).register()
        await rig.until_ready()
        await until(lambda: rig.api.seen("GET", CLAIMS), 30)
        assert rig.allocatable() == NOTHING

        rig.api.fault = lambda _: None
        await rig.until_offered(THREE, 30)
        assert await prepare(rig, "late") == ""
        assert rig.allocatable() == THREE
        await end(rig, "late")
        await rig.until_offered(ALL, 30)


async def test_a_door_that_changed_while_the_agent_was_away_is_handed_over_first() -> None:
    """The old slice is tainted, then removed; the agent after that asks nothing about claims."""
    async with claim_rig() as rig:
        await kill(rig)
        await rig.set_labels(door="device-plugin")
        await allocate(rig, "late", 1)
        await start(rig)
        await rig.until_offered(THREE, 30)
        await until(lambda: devices(rig) == {"gpu-1": "device-plugin"}, 30)
        assert await prepare(rig, "late") == ""
        await end(rig, "late")
        await rig.until_offered(ALL, 30)
        await until(lambda: SLICE not in rig.api.objects, 30)
        await until(lambda: not kubelet(rig).registry_socket.exists(), 30)

        await kill(rig)
        rig.api.requests.clear()
        await start(rig)
        await rig.until_ready()
        await rig.until_offered(ALL)
        ours = "driver=gpu-device-plugin"
        assert not [s for s in rig.api.requests if ours in s.query.get("fieldSelector", "")]


async def test_without_the_api_server_claims_end_and_stay_and_only_new_ones_wait() -> None:
    """Also over a kill -9 of the agent meanwhile."""
    async with claim_rig() as rig:
        for card, name in enumerate(("stays", "leaves", "new")):
            await allocate(rig, name, card)
        for name in ("stays", "leaves"):
            assert await prepare(rig, name) == ""
        before = held(rig)
        await rig.api.stop()
        assert (await kubelet(rig).unprepare("leaves"))["uid-leaves"].error == ""
        assert held(rig) == {"stays": before["stays"]}
        assert "cannot reach" in await prepare(rig, "new")

        await kill(rig)
        await start(rig)
        assert "cannot reach" in await prepare(rig, "new")
        assert held(rig) == {"stays": before["stays"]}
        await rig.api.start()
        await rig.until_ready()
        assert await prepare(rig, "new") == ""
        assert await prepare(rig, "stays") == ""
        assert held(rig)["stays"] == before["stays"]
        assert rig.allocatable() == NOTHING


async def test_a_kubelet_that_starts_while_the_door_changes_finds_everything_again() -> None:
    """It empties its directories and deletes the node's slice; what is prepared stays as it is."""
    async with claim_rig() as rig:
        await allocate(rig, "runs", 0)
        assert await prepare(rig, "runs") == ""
        before = held(rig)
        rig.api.fault = no_lists
        await rig.set_labels(door="device-plugin")
        await until(lambda: devices(rig) == TAINTED, 30)
        for socket in (rig.root / "k").glob("plugins*/**/*.sock"):
            socket.unlink()
        await rig.api.delete(SLICE)
        await rig.kubelet.restart()
        await until(lambda: devices(rig) == TAINTED, 30)
        await until(lambda: kubelet(rig).registry_socket.exists(), 30)
        assert await prepare(rig, "runs") == ""
        assert (held(rig), rig.allocatable()) == (before, NOTHING)

        rig.api.fault = lambda _: None
        await rig.until_offered(THREE, 30)
        await end(rig, "runs")
        await rig.until_offered(ALL, 30)
