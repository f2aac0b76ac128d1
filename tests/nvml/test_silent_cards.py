"""A card whose calls take long is one sick card: the others are asked on, and its XIDs are read."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.nvml.conftest import Start
from tests.nvml.watch import HURRIED

from gpu_device_plugin.domain.cards.nvml_reports import (
    NO_ANSWER,
    Answered,
    Inventory,
    Probe,
    Stalled,
    Xid,
)
from gpu_device_plugin.simulation import driver_library
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

MEMORY = "nvmlDeviceGetMemoryInfo"
# Nothing but the child's rounds decides how soon it looks at a changed node.
STEADY = replace(HURRIED, answer_seconds=3, stall_seconds=20)


def uuids(node: SimulatedNode) -> list[str]:
    return [card.uuid for card in node.view().cards]


@pytest.mark.parametrize("card", [0, 3])
@pytest.mark.parametrize("call", [MEMORY, ""])
async def test_a_card_that_hangs_is_named_and_the_others_answer_on(
    node: SimulatedNode, start: Start, card: int, call: str
) -> None:
    """Its XIDs are read meanwhile, and no other child is needed."""
    names = uuids(node)
    watch = start(node.library, STEADY)
    await watch.seen(Inventory)
    await watch.seen(Probe)
    node.slow(card, 3600, call)
    await watch.seen(Probe, Probe(names[card], NO_ANSWER).__eq__)
    node.xid(card, 8)
    assert await watch.seen(Xid) == Xid(names[card], 8)
    for uuid in (name for name in names if name != names[card]):
        for _ in range(3):
            await watch.seen(Probe, Probe(uuid, recovery_action=0).__eq__)
    node.slow(card, 0)
    await watch.seen(Probe, Probe(names[card], recovery_action=0).__eq__)
    assert (watch.source.restarts, watch.ever(Stalled)) == (0, False)
    assert not any(probe.error for probe in watch.reports if isinstance(probe, Probe))


async def test_calls_that_take_long_each_time_are_told_each_time(
    node: SimulatedNode, start: Start
) -> None:
    """Also when the call has come back: so clean probes are counted from there."""
    names = uuids(node)
    watch = start(node.library, STEADY)
    await watch.seen(Probe)
    node.slow(1, 5, MEMORY)
    for _ in range(5):
        await watch.seen(Probe, Probe(names[1], NO_ANSWER).__eq__)
    assert not watch.ever(Stalled)


@pytest.mark.parametrize("card", [0, 3])
@pytest.mark.parametrize("call", [MEMORY, "nvmlDeviceGetUUID"])
async def test_an_agent_that_starts_beside_a_card_that_hangs_has_the_others(
    node: SimulatedNode, start: Start, card: int, call: str
) -> None:
    """It waited for all of them, without end. The card is shown when it answers, and said to be slow."""
    names = uuids(node)
    node.slow(card, 3600, call)
    watch = start(node.library, STEADY)
    shown = await watch.seen(Inventory)
    assert [each.uuid for each in shown.cards] == [name for name in names if name != names[card]]
    (missing,) = shown.unreadable
    assert (missing.index, missing.error) == (card, NO_ANSWER)
    assert missing.uuid == (names[card] if call == MEMORY else "")
    node.slow(card, 0)
    shown = await watch.seen(Inventory)
    assert [each.uuid for each in shown.cards] == names
    assert not watch.ever(Stalled)


async def test_cards_that_all_hang_are_a_driver_that_hangs(
    node: SimulatedNode, start: Start
) -> None:
    """No card is named, because none answers that could tell."""
    watch = start(node.library, HURRIED)
    await watch.seen(Probe)
    slow = [f"cards.{card}.slow_seconds" for card in range(4)]
    driver_library.set_fields(node.state, [f"{field}=3600" for field in slow])
    await watch.seen(Stalled)
    driver_library.set_fields(node.state, [f"{field}=0" for field in slow])
    assert len((await watch.seen(Inventory)).cards) == 4
    assert not any(report.error for report in watch.reports if isinstance(report, Probe))


async def test_a_driver_that_hangs_beside_a_card_that_was_slow_before_is_a_stall(
    node: SimulatedNode, start: Start
) -> None:
    """The slow card was named in each round, and kept the others in the list for as long as the driver hung."""
    names = uuids(node)
    watch = start(node.library, HURRIED)
    await watch.seen(Probe)
    node.slow(0, 3600)
    await watch.seen(Probe, Probe(names[0], NO_ANSWER).__eq__)
    driver_library.set_fields(
        node.state, [f"cards.{card}.slow_seconds=3600" for card in range(1, 4)]
    )
    await watch.seen(Stalled)


async def test_cards_that_all_take_long_are_out_for_that_when_the_stall_is_over(
    node: SimulatedNode, start: Start
) -> None:
    """No witness tells a late answer from a slow driver: each counts by its own time.

    The stall lasts until all have answered: a sign of life before that would offer them for a moment.
    """
    watch = start(node.library, HURRIED)
    await watch.seen(Probe)
    slow = [f"cards.{card}.slow_seconds" for card in range(4)]
    driver_library.set_fields(node.state, [f"{field}=3600" for field in slow])
    await watch.seen(Stalled)
    calls = [f"cards.{card}.slow_call={MEMORY}" for card in range(4)]
    driver_library.set_fields(node.state, [*calls, *(f"{field}=3" for field in slow)])
    await watch.seen(Answered)
    (shown, *_) = watch.reports
    assert isinstance(shown, Inventory)
    assert [card.is_silent for card in shown.cards] == [True] * 4


async def test_a_card_that_was_slow_once_is_not_told_so_with_each_later_one(
    node: SimulatedNode, start: Start
) -> None:
    """Each of them began its fault again, although its calls were fast since."""
    names = uuids(node)
    for card in (1, 2):
        node.slow(card, 3600, MEMORY)
    watch = start(node.library, STEADY)
    await watch.seen(Inventory)
    node.slow(1, 0)
    late = await watch.seen(Inventory)
    assert [each.is_silent for each in late.cards] == [False, True, False]
    await watch.seen(Probe, Probe(names[1], recovery_action=0).__eq__)
    node.slow(2, 0)
    later = await watch.seen(Inventory)
    assert [each.is_silent for each in later.cards] == [False, False, True, False]


@pytest.mark.parametrize(("lost", "silent"), [(0, 1), (1, 0)])
async def test_a_card_that_hangs_beside_one_that_is_lost_is_named(
    make_node: Callable[..., SimulatedNode], start: Start, lost: int, silent: int
) -> None:
    """A lost card is asked once: who waits for its next answer calls it a driver that hangs."""
    node = make_node("v100", cards=2)
    node.lose(lost)
    watch = start(node.library, STEADY)
    await watch.seen(Probe)
    node.slow(silent, 3600, MEMORY)
    await watch.seen(Probe, Probe(uuids(node)[silent], NO_ANSWER).__eq__)
    later = start(node.library, STEADY)
    shown = await later.seen(Inventory)
    told = {slot.index: slot.error for slot in shown.unreadable}
    assert told == {lost: "GPU_IS_LOST", silent: NO_ANSWER}
    assert not watch.ever(Stalled)
    assert not later.ever(Stalled)
