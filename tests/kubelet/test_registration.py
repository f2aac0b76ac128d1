"""Whatever the kubelet or an operator does to a socket, the resource comes back."""

import asyncio
import shutil
import socket
from contextlib import suppress

import pytest
from tests.kubelet.rig import (
    CORE,
    MEM,
    Rig,
    container,
    group,
    mem_cards,
    pod,
    until,
    until_the_moment,
)
from tools.harness.kubelet import StandInKubelet

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.kubelet.registration import EndpointPhase


async def test_both_resources_become_allocatable(rig: Rig) -> None:
    """What is published is what the kubelet may give away (R-301)."""
    await rig.serve(units=15, cards=4)

    assert (rig.kubelet.capacity(MEM), rig.kubelet.allocatable(MEM)) == (60, 60)
    assert (rig.kubelet.capacity(CORE), rig.kubelet.allocatable(CORE)) == (400, 400)
    assert rig.mem.is_ready
    assert rig.mem.state.detail == ""


async def test_nothing_is_registered_before_something_is_published(rig: Rig) -> None:
    """The first Register waits for the first list."""
    await rig.kubelet.start()
    rig.run(rig.mem, rig.core)
    rig.core.publish([group(Resource.CORE, 0, 100)])
    await rig.offered(CORE, 100)

    assert rig.mem.state.phase is EndpointPhase.WITHDRAWN
    assert not rig.mem.is_ready
    assert {call.resource for call in rig.kubelet.calls} == {CORE}


async def test_options_are_answered_from_inside_register(rig: Rig) -> None:
    """The kubelet learns of both wishes before it answers, and sends what they ask for."""
    await rig.serve()
    link = rig.kubelet.registry.links[MEM]

    assert link.options is not None
    assert link.options.pre_start_required
    assert link.options.get_preferred_allocation_available


async def test_a_resource_whose_starts_are_not_checked_says_so_in_both_calls(rig: Rig) -> None:
    """Kubelets read GetDevicePluginOptions; Register says the same."""
    rig.mem.checks_start = False
    await rig.serve()
    link = rig.kubelet.registry.links[MEM]

    assert link.options is not None
    assert not link.options.pre_start_required
    assert link.options.get_preferred_allocation_available
    assert link.registered_options == link.options


async def test_an_endpoint_that_ends_while_it_starts_is_closed(rig: Rig) -> None:
    """A server of gRPC whose start was cut off can be stopped no more."""
    await rig.kubelet.start()
    rig.mem.publish(mem_cards(15))
    task = asyncio.create_task(rig.mem.run())
    await until_the_moment(rig.sockets)
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert rig.sockets() == set()


async def test_a_kubelet_that_comes_later_is_waited_for(rig: Rig) -> None:
    """No kubelet.sock, not even its directory: not ready, and the reason says so."""
    rig.mem.publish(mem_cards(15))
    rig.run(rig.mem)
    await until(lambda: "is not there" in rig.mem.state.detail)
    await rig.kubelet.start()
    await rig.offered(MEM, 15)

    assert rig.mem.state.registrations == 1


async def test_a_refused_registration_is_tried_again(rig: Rig) -> None:
    """For instance because GetDevicePluginOptions failed; the kubelet's words are kept."""
    rig.kubelet.faults.register_errors = ["failed to get device plugin options: no"] * 2
    seen: list[str] = []
    rig.mem.on_change = lambda state: seen.append(state.detail)
    await rig.kubelet.start()
    rig.mem.publish(mem_cards(15))
    rig.run(rig.mem)
    await rig.offered(MEM, 15)

    assert any("failed to get device plugin options: no" in detail for detail in seen)
    assert rig.mem.state.registrations == 1


async def test_a_registration_without_a_list_counts_as_failed(rig: Rig) -> None:
    """Register may succeed although the kubelet then fails to open the stream, in silence."""
    rig.kubelet.faults.unopened_lists = 1
    await rig.kubelet.start()
    rig.mem.publish(mem_cards(15))
    rig.run(rig.mem)
    await until(lambda: rig.mem.state.phase is EndpointPhase.REGISTERED)

    assert not rig.mem.is_ready

    await rig.offered(MEM, 15)

    assert rig.mem.state.registrations == 2


async def test_a_card_that_falls_ill_leaves_allocatable_and_comes_back(rig: Rig) -> None:
    """The open stream hears of it; capacity and registration stay."""
    await rig.serve(units=15, cards=4)
    ill = [group(Resource.MEM, card, 15, is_healthy=card != 2) for card in range(4)]
    assert rig.mem.publish(ill)
    await rig.offered(MEM, 45)

    assert rig.kubelet.capacity(MEM) == 60

    assert rig.mem.publish(mem_cards(15, 4))
    await rig.offered(MEM, 60)

    assert not rig.mem.publish(mem_cards(15, 4))
    assert rig.mem.state.registrations == 1


async def test_an_empty_list_is_a_list(rig: Rig) -> None:
    """The last card is gone: neither capacity nor allocatable, and still registered."""
    await rig.serve()
    rig.mem.publish([])
    await rig.offered(MEM, 0)

    assert rig.kubelet.capacity(MEM) == 0
    assert rig.mem.is_ready


async def test_a_stream_that_ends_is_registered_again(rig: Rig) -> None:
    """The kubelet never dials twice; a new name is used, and the old socket is gone."""
    await rig.serve()
    before = rig.sockets()
    await rig.kubelet.registry.links[MEM].close()
    await rig.registered_again(rig.mem, before=1)
    await rig.offered(MEM, 15)
    await rig.wait_settled(sockets=2)

    assert len(rig.sockets() & before) == 1
    assert rig.core.state.registrations == 1


async def test_kubelet_restarts_are_survived(rig: Rig) -> None:
    """Twenty of them in a row, on both resources; the last kubelet sees everything (R-708)."""
    await rig.serve()
    for _ in range(20):
        await rig.kubelet.restart()
    await rig.offered(MEM, 15)
    await rig.offered(CORE, 100)
    await rig.wait_settled(sockets=2)


async def test_a_newer_kubelet_that_keys_by_socket_is_served_alike(rig: Rig) -> None:
    """From #135437 on."""
    rig.kubelet.registry.keys_by_socket = True
    await rig.serve()
    await rig.kubelet.restart()
    await rig.offered(MEM, 15)

    assert rig.mem.state.registrations == 2


async def test_a_missed_file_event_is_made_up_for(rig: Rig) -> None:
    """Without any event, the look every second finds the kubelet's new socket."""
    await rig.serve(with_events=False)
    await rig.kubelet.restart()
    await rig.offered(MEM, 15)
    await rig.offered(CORE, 100)

    assert rig.mem.state.registrations == 2


@pytest.mark.parametrize("with_events", [True, False])
async def test_a_wiped_directory_is_moved_into_again(rig: Rig, *, with_events: bool) -> None:
    """Our sockets are removed under a kubelet that goes on, with or without a file event."""
    await rig.serve(with_events=with_events)
    for name in rig.sockets():
        (rig.directory.path / name).unlink()
    await rig.registered_again(rig.mem, before=1)
    await rig.registered_again(rig.core, before=1)
    await rig.offered(MEM, 15)
    await rig.wait_settled(sockets=2)


async def test_a_directory_that_is_removed_whole_is_followed(rig: Rig) -> None:
    """The kubelet makes it again when it starts; a watch on the old one would see nothing."""
    await rig.serve()
    await rig.kubelet.stop()
    # The endpoint may just be removing its socket itself.
    shutil.rmtree(rig.directory.path, ignore_errors=True)
    assert not rig.directory.path.exists()
    await until(lambda: rig.mem.state.phase is EndpointPhase.UNREGISTERED)
    await rig.kubelet.start()
    await rig.offered(MEM, 15)

    assert len(rig.sockets()) >= 1


async def test_stale_sockets_are_removed_at_start_and_foreign_files_are_not(rig: Rig) -> None:
    """Those of an agent that was killed go; another plugin's stay."""
    await rig.kubelet.start()
    for name in ("gpudp-m-abcdef.sock", "nvidia-gpu.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(rig.directory.path / name))
    rig.mem.publish(mem_cards(15))
    rig.run(rig.mem)
    await rig.offered(MEM, 15)

    assert "gpudp-m-abcdef.sock" not in rig.sockets()
    assert "nvidia-gpu.sock" in rig.sockets()


async def test_a_withdrawn_resource_cannot_be_given_away_and_returns(rig: Rig) -> None:
    """Withdrawn: allocatable 0, capacity kept for a while, not ready, and no new attempt."""
    await rig.serve()
    rig.mem.withdraw()
    await rig.offered(MEM, 0)
    await until(lambda: rig.mem.state.phase is EndpointPhase.WITHDRAWN)

    assert rig.kubelet.capacity(MEM) == 15
    assert rig.kubelet.allocatable(CORE) == 100

    rig.mem.publish(mem_cards(14))
    await rig.offered(MEM, 14)

    assert rig.mem.is_ready


async def test_the_end_of_the_agent_ends_the_list_and_removes_the_sockets(rig: Rig) -> None:
    """SIGTERM: nothing more is given away, and no socket is left behind."""
    await rig.serve()
    await rig.stop_endpoints()
    await rig.offered(MEM, 0)

    assert rig.sockets() == set()
    assert rig.kubelet.capacity(MEM) == 15


async def test_the_end_of_the_agent_is_not_lost_when_the_kubelet_ends_with_it(rig: Rig) -> None:
    """In Python 3.11 gRPC loses a cancellation that comes as the old server's last call ends."""
    await rig.serve()
    reached = asyncio.Event()
    stop = rig.mem._server.stop

    async def losing(grace: float) -> None:
        reached.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await stop(grace)

    rig.mem._server.stop = losing
    await rig.kubelet.stop()
    await until(reached.is_set)
    ending = asyncio.ensure_future(rig.stop_endpoints())
    try:
        await until(ending.done)
    finally:
        rig.mem._list.withdraw()
        ending.cancel()

    assert rig.sockets() == set()


async def test_an_agent_that_comes_back_serves_what_the_kubelet_remembers(
    rig: Rig, kubelet: StandInKubelet
) -> None:
    """A second agent on the same directory, after the first: pods keep what they hold."""
    await rig.serve()
    assert (await kubelet.admit(pod("p", container(mem=2)))).is_admitted
    held = kubelet.held("uid-p")
    await rig.stop_endpoints()
    second = Rig(kubelet)
    second.mem.publish(mem_cards(15))
    second.run(second.mem)
    await second.offered(MEM, 15)
    again = await kubelet.admit(pod("p", container(mem=2)))
    await second.stop_endpoints()

    assert again.is_admitted
    assert kubelet.held("uid-p") == held
    assert second.service.calls == []


async def test_an_old_kubelets_habit_of_cutting_the_new_stream_is_survived(rig: Rig) -> None:
    """Up to 1.36.2 the end of an old stream takes the newest registration with it."""
    await rig.serve()
    other = Rig(rig.kubelet)
    other.mem.publish(mem_cards(15))
    other.run(other.mem)  # removes our socket as a stale one, and takes the slot
    await until(lambda: other.mem.is_ready or rig.mem.state.registrations > 1)
    await other.stop_endpoints()
    await rig.registered_again(rig.mem, before=1)
    await rig.offered(MEM, 15)
    await asyncio.gather(*(rig.kubelet.admit(pod(f"p{i}", container(mem=1))) for i in range(5)))

    # The other's stream may end only now, and take the newest registration with it once more.
    await rig.offered(MEM, 15)
