"""Whatever the driver does, the agent hears of it in time and is never held up itself."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.nvml.conftest import Start
from tests.nvml.watch import HURRIED, PATIENT, is_alive
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.nvml_reports import (
    Answered,
    DriverChanged,
    DriverMissing,
    Inventory,
    Probe,
    Stalled,
    Xid,
)
from gpu_device_plugin.nvml.nvml_source import KernelModule
from gpu_device_plugin.simulation.simulated_node import SimulatedNode


async def test_every_card_is_reported_with_what_nvml_knows(
    node: SimulatedNode, start: Start
) -> None:
    inventory = await start(node.library, PATIENT).seen(Inventory)
    assert (inventory.driver_version, inventory.cuda_version) == ("450.102.04", "11.0")
    shown = node.view().cards
    assert [card.uuid for card in inventory.cards] == [card.uuid for card in shown]
    assert [(card.index, card.minor) for card in inventory.cards] == [(i, i) for i in range(4)]
    assert {(card.model, card.memory_mib) for card in inventory.cards} == {
        ("Tesla-V100-SXM2-16GB", 16160)
    }


async def test_an_unchanged_inventory_is_told_once(node: SimulatedNode, start: Start) -> None:
    watch = start(node.library, PATIENT)
    await watch.seen(Inventory)
    for _ in range(20):
        assert not isinstance(await watch.seen(object), Inventory)


async def test_cards_in_mig_mode_say_so(tmp_path: Path, start: Start, node: SimulatedNode) -> None:
    (tmp_path / "mig").mkdir()
    mig = SimulatedNode.create("a100-mig", tmp_path / "mig")
    for simulated, is_mig in ((mig, True), (node, False)):
        inventory = await start(simulated.library, PATIENT).seen(Inventory)
        assert {card.is_mig for card in inventory.cards} == {is_mig}


async def test_an_xid_arrives_with_its_card(node: SimulatedNode, start: Start) -> None:
    watch = start(node.library, PATIENT)
    await watch.seen(Probe)
    node.xid(2, 48)
    node.xid(0, 13)
    uuids = [card.uuid for card in node.view().cards]
    assert await watch.seen(Xid) == Xid(uuids[2], 48)
    assert await watch.seen(Xid) == Xid(uuids[0], 13)


async def test_an_xid_in_a_mig_instance_arrives_with_that_instance(
    make_node: Callable[..., SimulatedNode], start: Start
) -> None:
    """It named the card alone, and so took out every instance of it."""
    mig = make_node("a100-mig")
    watch = start(mig.library, PATIENT)
    await watch.seen(Inventory)
    card = mig.view().cards[1]
    mig.xid(1, 8, instance=2)
    mig.xid(1, 48)
    assert await watch.seen(Xid) == Xid(card.uuid, 8, (card.instances[2].uuid,))
    assert await watch.seen(Xid) == Xid(card.uuid, 48)


async def test_the_recovery_action_follows_the_card(node: SimulatedNode, start: Start) -> None:
    watch = start(node.library, PATIENT)
    await watch.seen(Inventory)
    node.xid(1, 48)
    asked = await watch.seen(Probe, lambda probe: bool(probe.recovery_action))
    assert asked.uuid == node.view().cards[1].uuid
    node.restore(1)
    await watch.seen(Probe, lambda p: p.uuid == asked.uuid and p.recovery_action == 0)


async def test_a_lost_card_is_found_and_the_others_stay(node: SimulatedNode, start: Start) -> None:
    # Counted again, the card would be one that cannot be opened; and a child that is replaced
    # for its slowness would miss the event.
    watch = start(node.library, replace(PATIENT, reopen_seconds=600))
    await watch.seen(Inventory)
    lost, *others = (card.uuid for card in node.view().cards)
    node.lose(0)
    assert (await watch.seen(Xid)).code == 79
    await watch.seen(Probe, lambda probe: probe == Probe(lost, "GPU_IS_LOST"))
    for uuid in others:
        await watch.seen(Probe, Probe(uuid, recovery_action=0).__eq__)


async def test_a_card_that_cannot_be_opened_is_named_by_its_index_and_comes_back(
    node: SimulatedNode, start: Start
) -> None:
    node.lose(1)
    watch = start(node.library, PATIENT)
    inventory = await watch.seen(Inventory)
    assert [(slot.index, slot.error) for slot in inventory.unreadable] == [(1, "GPU_IS_LOST")]
    assert [card.index for card in inventory.cards] == [0, 2, 3]
    node.restore(1)
    assert len((await watch.seen(Inventory)).cards) == 4


async def test_cards_unplugged_and_plugged_in_are_followed_by_uuid(
    node: SimulatedNode, start: Start
) -> None:
    watch = start(node.library, PATIENT)
    before = {card.uuid: card.index for card in (await watch.seen(Inventory)).cards}
    first, second, third, fourth = before
    node.unplug(1)
    less = await watch.seen(Inventory, lambda inventory: not inventory.unreadable)
    assert {card.uuid: card.index for card in less.cards} == {first: 0, third: 1, fourth: 2}
    node.plug(1)
    again = await watch.seen(Inventory)
    assert {card.uuid: card.index for card in again.cards} == before
    assert second in before


async def test_a_driver_upgrade_is_told_with_both_versions(
    node: SimulatedNode, start: Start
) -> None:
    watch = start(node.library, PATIENT)
    await watch.seen(Inventory)
    node.upgrade_driver("535.309.01")
    assert (await watch.seen(Inventory)).driver_version == "535.309.01"
    assert await watch.seen(DriverChanged) == DriverChanged("450.102.04", "535.309.01")


async def test_a_missing_library_is_named_and_its_appearance_told(
    node: SimulatedNode, tmp_path: Path, start: Start
) -> None:
    library = node.library
    hidden = library.rename(tmp_path / "hidden")
    watch = start(library, PATIENT)
    missing = await watch.seen(DriverMissing)
    assert (str(library) in missing.reason, missing.is_unloaded) == (True, False)
    hidden.rename(library)
    await watch.seen(Inventory)
    assert await watch.seen(DriverChanged) == DriverChanged("", "450.102.04")
    assert watch.source.restarts == 0


async def test_a_driver_that_is_not_loaded_is_told_once(
    node: SimulatedNode, tmp_path: Path, start: Start
) -> None:
    state = node.state.rename(tmp_path / "hidden")
    watch = start(node.state.parent / "libnvidia-ml.so.1", PATIENT)
    assert (await watch.seen(DriverMissing)).is_unloaded
    state.rename(node.state)
    await watch.seen(Inventory)
    assert watch.reports == [] or not isinstance(watch.reports[0], DriverMissing)


async def test_without_a_library_a_kernel_driver_that_appears_calls_for_injection(
    tmp_path: Path, start: Start
) -> None:
    version = tmp_path / "version"
    watch = start(None, PATIENT, kernel=KernelModule(driver=version))
    missing = await watch.seen(object)
    if isinstance(missing, Inventory):  # a machine with a driver: nothing can appear
        return
    assert isinstance(missing, DriverMissing)
    version.write_text("NVRM version: 535.309.01\n", encoding="utf-8")
    assert await watch.seen(DriverChanged) == DriverChanged("", "NVRM version: 535.309.01")


async def test_a_hang_is_a_stall_until_nvml_answers_again(
    node: SimulatedNode, start: Start
) -> None:
    watch = start(node.library, HURRIED)
    await watch.seen(Inventory)
    node.hang()
    assert await watch.seen(Stalled) == Stalled(HURRIED.stall_seconds)
    assert watch.source.restarts >= 1
    node.unhang()
    await watch.seen(Answered)
    assert len((await watch.seen(Inventory)).cards) == 4


async def test_a_child_that_dies_is_replaced_without_news(
    node: SimulatedNode, start: Start
) -> None:
    watch = start(node.library, PATIENT)
    await watch.seen(Probe)
    first = watch.source.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: watch.source.pid not in {None, first}, 40)
    watch.reports.clear()
    await watch.seen(Probe)
    assert watch.source.restarts == 1
    assert not any(isinstance(report, Inventory | Stalled) for report in watch.reports)


async def test_of_children_that_cannot_be_killed_there_is_one_at_most(
    node: SimulatedNode, start: Start
) -> None:
    killed: list[int] = []
    watch = start(node.library, HURRIED, kill=killed.append)
    await watch.seen(Inventory)
    stuck = watch.source.pid
    assert stuck is not None
    node.hang()
    # By then another child would long have been started: no pause is as long as a stall.
    await watch.seen(Stalled)
    assert (watch.source.pid, set(killed), watch.source.restarts) == (stuck, {stuck}, 0)
    assert is_alive(stuck)
    node.unhang()
    os.kill(stuck, signal.SIGKILL)  # the call came back, so the kernel can end it
    await watch.seen(Answered)
    assert watch.source.pid != stuck


async def test_stopping_ends_the_child_even_while_it_hangs(
    node: SimulatedNode, start: Start
) -> None:
    watch = start(node.library, HURRIED)
    await watch.seen(Inventory)
    pid = watch.source.pid
    assert pid is not None
    node.hang()
    await watch.stop()
    await until(lambda: not is_alive(pid), 2)
