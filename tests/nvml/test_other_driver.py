"""A driver that is no simulation is opened once, and again only beside the child that watches.

Whether it is a simulation is said by the library, not by where it lies: these are given by path,
as `driverRoot` of the chart does.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.nvml.conftest import Start
from tests.nvml.other_driver import FIRST, SECOND, OtherDriver
from tests.nvml.watch import HURRIED, PATIENT
from tools.harness.waiting import until

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.cards.nvml_reports import (
    NO_ANSWER,
    DriverChanged,
    DriverMissing,
    Inventory,
    Probe,
    Stalled,
    UnreadableCard,
    Xid,
)

CLEAN = Probe(FIRST).__eq__


@pytest.fixture
def driver(tmp_path: Path) -> OtherDriver:
    """Two cards, a loaded module."""
    return OtherDriver(tmp_path)


async def test_a_library_given_by_path_is_not_opened_again_and_again(
    driver: OtherDriver, start: Start
) -> None:
    watch = start(driver.library, replace(PATIENT, reopen_seconds=0.1), kernel=driver.kernel)
    for _ in range(10):
        await watch.seen(Probe, CLEAN)
    assert driver.opened == 1


async def test_a_module_that_was_loaded_again_is_seen(driver: OtherDriver, start: Start) -> None:
    watch = start(driver.library, PATIENT, kernel=driver.kernel)
    before = await watch.seen(Inventory)
    driver.load_module()
    after = await watch.seen(Inventory)
    assert (after.driver_version, after.cards) == (before.driver_version, before.cards)
    assert "" != before.driver_load != after.driver_load != ""


async def test_a_card_of_which_nvml_gives_no_xids_is_told(
    driver: OtherDriver, start: Start
) -> None:
    """As on WSL2; one that is lost says nothing of that."""
    driver.put("noxids1")
    watch = start(driver.library, PATIENT, kernel=driver.kernel)
    assert [card.gives_xids for card in (await watch.seen(Inventory)).cards] == [True, False]


async def test_a_card_that_is_switched_to_mig_is_seen(driver: OtherDriver, start: Start) -> None:
    watch = start(driver.library, PATIENT, kernel=driver.kernel)
    assert [card.is_mig for card in (await watch.seen(Inventory)).cards] == [False, False]
    driver.put("mig1")
    assert [card.is_mig for card in (await watch.seen(Inventory)).cards] == [False, True]


async def test_no_stall_is_reported_while_a_healthy_driver_is_opened_slowly(
    driver: OtherDriver, start: Start
) -> None:
    """Without the persistence daemon a node of eight cards takes longer than a stall."""
    hidden = driver.library.rename(driver.library.with_name("hidden"))
    watch = start(driver.library, replace(PATIENT, stall_seconds=3), kernel=driver.kernel)
    await watch.seen(DriverMissing)
    driver.put("slow", "4500000")
    hidden.rename(driver.library)
    await watch.seen(Inventory)
    assert not watch.ever(Stalled)


async def test_a_card_that_holds_up_every_call_of_a_process_is_out_alone(
    driver: OtherDriver, start: Start
) -> None:
    """A child that is silent is followed by one that leaves that card for last, and so on."""
    patience = replace(HURRIED, answer_seconds=3, stall_seconds=25)
    watch = start(driver.library, patience, kernel=driver.kernel)
    await watch.seen(Probe)
    driver.put("stuck1")
    shown = await watch.seen(Inventory)
    assert [card.uuid for card in shown.cards] == [FIRST]
    assert shown.unreadable == (UnreadableCard(CardIndex(1), NO_ANSWER, SECOND),)
    before = watch.source.restarts
    await until(lambda: watch.source.restarts >= before + 2, 60)
    driver.remove("stuck1")
    shown = await watch.seen(Inventory, lambda inventory: len(inventory.cards) == 2)
    assert not watch.ever(Stalled)


async def test_a_driver_that_was_too_slow_to_open_is_given_more_time(
    driver: OtherDriver, start: Start
) -> None:
    """Else a node that needs 31 s would never serve."""
    driver.put("hold")
    patience = replace(PATIENT, start_seconds=2, backoff_seconds=0.1)
    watch = start(driver.library, patience, kernel=driver.kernel)
    await until(lambda: watch.source.restarts >= 2, 40)
    assert watch.source.start_seconds > 2
    driver.remove("hold")
    await watch.seen(Inventory)
    assert watch.source.start_seconds == 2


async def test_neighbours_of_a_lost_card_are_watched_while_nvml_is_opened_again(
    driver: OtherDriver, start: Start
) -> None:
    """However long that takes; what the lost card does is then seen, and its return."""
    watch = start(driver.library, PATIENT, kernel=driver.kernel)
    await watch.seen(Inventory)
    driver.put("hold")
    driver.put("lost1")
    await watch.seen(Probe, Probe(SECOND, "GPU_IS_LOST").__eq__)
    await until(lambda: driver.opened == 2, 40)
    watch.reports.clear()
    for _ in range(5):
        await watch.seen(Probe, CLEAN)
    driver.xid(0, 48)
    assert await watch.seen(Xid) == Xid(FIRST, 48)

    driver.remove("hold")
    inventory = await watch.seen(Inventory)
    assert [(slot.index, slot.error) for slot in inventory.unreadable] == [(1, "GPU_IS_LOST")]
    driver.remove("lost1")
    assert len((await watch.seen(Inventory)).cards) == 2
    assert watch.source.restarts == 0
    assert not watch.ever(Stalled)


async def test_a_child_that_hangs_while_its_successor_opens_nvml_is_a_stall_in_the_usual_time(
    driver: OtherDriver, start: Start
) -> None:
    """Opening may take longer; that is no reason to wait longer for the child that watches."""
    watch = start(driver.library, replace(HURRIED, reopen_seconds=0.3), kernel=driver.kernel)
    await watch.seen(Inventory)
    driver.put("hold")
    driver.put("lost1")
    await until(lambda: driver.opened == 2, 40)
    driver.put("hang")
    assert await watch.seen(Stalled) == Stalled(HURRIED.stall_seconds)


async def test_no_xid_is_lost_while_successors_take_over(driver: OtherDriver, start: Start) -> None:
    driver.put("lost1")
    watch = start(driver.library, replace(PATIENT, reopen_seconds=0.05), kernel=driver.kernel)
    await watch.seen(Inventory)
    code = 100
    while driver.opened < 5:
        code += 1
        driver.xid(0, code)
        await watch.seen(Xid, Xid(FIRST, code).__eq__)


async def test_a_successor_that_cannot_open_nvml_leaves_the_child_at_work(
    driver: OtherDriver, start: Start
) -> None:
    """It is tried again."""
    watch = start(
        driver.library, replace(PATIENT, start_seconds=5, reopen_seconds=0.1), kernel=driver.kernel
    )
    first = await watch.seen(Inventory)
    restarts = watch.source.restarts
    driver.put("hold")
    driver.load_module()
    await until(lambda: driver.opened >= 3, 40)
    await watch.seen(Probe, CLEAN)
    driver.remove("hold")
    assert (await watch.seen(Inventory)).driver_load != first.driver_load
    assert watch.source.restarts == restarts
    assert not watch.ever(Stalled)


async def test_a_library_that_is_missing_where_the_kernel_has_a_driver_calls_for_injection(
    driver: OtherDriver, start: Start, tmp_path: Path
) -> None:
    """A directory of the node that was mounted too early shows no library until a restart."""
    watch = start(tmp_path / "nowhere.so", PATIENT, kernel=driver.kernel)
    await watch.seen(object)
    driver.kernel.driver.write_text("NVRM version: 535.1\n", encoding="utf-8")
    assert await watch.seen(DriverChanged) == DriverChanged("", "NVRM version: 535.1")
