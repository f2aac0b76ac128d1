"""Claims while agent, kubelet or API server are away: nothing that runs is harmed, nothing is given twice."""

from aiohttp import web
from tools.harness.api_server import ApiRequest, status
from tools.harness.claim_rig import (
    ALL,
    CARDS,
    CLAIMS,
    NOTHING,
    SLICE,
    allocate,
    claim_rig,
    devices,
    end,
    held,
    kill,
    kubelet,
    prepare,
    start,
)
from tools.harness.rig import running_rig
from tools.harness.waiting import until


def no_lists(seen: ApiRequest) -> web.Response | None:
    """The API server answers, but does not list claims."""
    return status(503, "not now") if seen.path == CLAIMS else None


async def test_a_node_that_was_labelled_while_the_agent_was_away_waits_for_allocated_claims() -> (
    None
):
    """One that is not prepared yet counts; after that the agent asks nothing about claims."""
    async with claim_rig() as rig:
        await kill(rig)
        await rig.set_labels(allocation_api="device-plugin")
        await allocate(rig, "late", 1)
        await start(rig)
        await until(lambda: "p-late" in str(rig.events("AllocationApiSwitchRefused")), 30)
        assert (rig.allocatable(), devices(rig)) == (NOTHING, CARDS)
        assert await prepare(rig, "late") == ""
        await end(rig, "late")
        await rig.until_offered(ALL, 30)
        await until(lambda: SLICE not in rig.api.objects, 30)
        await until(lambda: not kubelet(rig).registry_socket.exists(), 30)

        await rig.stop_agent()  # a killed one may not have written that all is over
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


async def test_a_kubelet_that_starts_while_the_allocation_api_waits_finds_everything_again() -> (
    None
):
    """It empties its directories and deletes the node's slice; what is prepared stays as it is."""
    async with claim_rig() as rig:
        await allocate(rig, "runs", 0)
        assert await prepare(rig, "runs") == ""
        before = held(rig)
        rig.api.fault = no_lists
        await rig.set_labels(allocation_api="device-plugin")
        await until(lambda: "p-runs" in str(rig.events("AllocationApiSwitchRefused")), 30)
        for socket in (rig.root / "k").glob("plugins*/**/*.sock"):
            socket.unlink()
        await rig.api.delete(SLICE)
        await rig.kubelet.restart()
        await until(lambda: devices(rig) == CARDS, 30)
        await until(lambda: kubelet(rig).registry_socket.exists(), 30)
        assert await prepare(rig, "runs") == ""
        assert (held(rig), rig.allocatable()) == (before, NOTHING)

        await end(rig, "runs")
        rig.api.fault = lambda _: None
        await rig.until_offered(ALL, 60)


def no_writes(seen: ApiRequest) -> web.Response | None:
    """The agent has no rights to write slices."""
    is_write = seen.method in {"POST", "PUT"} and "/resourceslices" in seen.path
    return status(403, "cannot create resourceslices") if is_write else None


async def test_where_the_api_server_takes_no_slices_the_device_plugin_serves() -> None:
    """With an Event; asked for again, after the chart has given the rights, the allocation API opens."""
    async with running_rig(is_started=False) as rig:
        rig.api.fault = no_writes
        await rig.set_labels(allocation_api="dra")
        await start(rig)
        await until(lambda: rig.events("AllocationApiNotAvailable"), 30)
        await rig.until_ready()
        await rig.until_offered(ALL, 30)
        assert (
            "cannot create resourceslices" in rig.events("AllocationApiNotAvailable")[0]["message"]
        )

        rig.api.fault = lambda _: None
        await rig.set_labels(allocation_api="device-plugin")
        await rig.set_labels(allocation_api="dra")
        await until(lambda: devices(rig) == CARDS, 30)
        await rig.until_offered(NOTHING, 30)


async def test_a_node_whose_agent_serves_no_claims_any_more_waits_for_those_that_are_held() -> None:
    """`dra.enabled=false` on a node whose label says dra. Until then no Event says that the device plugin serves."""
    async with claim_rig() as rig:
        await allocate(rig, "stays", 1)
        assert await prepare(rig, "stays") == ""
        assert await rig.stop_agent() == 0
        rig.api.fault = no_writes
        await rig.start_agent(cdi_dir="")

        await until(lambda: "stays" in str(rig.events("AllocationApiSwitchRefused")), 30)
        assert set(held(rig)) == {"stays"}
        assert rig.allocatable() == NOTHING
        await until(lambda: "dra.enabled" in str(rig.events("AllocationApiNotAvailable")), 30)
        assert "the device plugin serves" not in str(rig.events("AllocationApiNotAvailable"))
        assert not rig.events("CdiDirNotWritable")
        assert not rig.events("SliceRefused")


async def test_a_refusal_after_a_slice_was_taken_leaves_the_allocation_api_as_it_is() -> None:
    """Rights that are away for a moment, as during a helm upgrade: it is reported and asked again."""
    async with claim_rig() as rig:
        rig.api.fault = no_writes
        await rig.api.delete(SLICE)
        await until(lambda: rig.events("SliceRefused"), 30)
        assert rig.allocatable() == NOTHING
        assert not rig.events("AllocationApiNotAvailable")

        rig.api.fault = lambda _: None
        await until(lambda: devices(rig) == CARDS, 30)
