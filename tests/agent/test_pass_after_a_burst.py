"""The promise: a reconcile pass follows a burst of answers, and does not wait for ever for its end."""

import asyncio
from pathlib import Path

import pytest
from tests.held import fraction
from tools.harness.waiting import until

from gpu_device_plugin.agent.reconcile import holders
from gpu_device_plugin.agent.reconcile.holders import Holders, UnreconciledAllocations
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.domain.node.pods import PodRef


async def test_one_pass_follows_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps calls waiting while it reads."""
    monkeypatch.setattr(holders, "NOTED_SECONDS", 0.05)
    passes: list[bool] = []
    answers = UnreconciledAllocations(lambda: passes.append(bool(answers)))
    for _ in range(100):
        answers.note()

    await until(lambda: bool(passes), 10)
    assert passes == [True]


async def test_a_burst_without_end_is_read_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the holders of a node that never rests are known."""
    monkeypatch.setattr(holders, "NOTED_SECONDS", 1000.0)
    monkeypatch.setattr(holders, "BURST_SECONDS", 0.05)
    passes: list[bool] = []
    answers = UnreconciledAllocations(lambda: passes.append(True))
    async with asyncio.timeout(60):
        while len(passes) < 2:
            answers.note()
            await asyncio.sleep(0)


async def test_an_answer_is_unread_until_a_pass_that_began_after_the_kubelet_noted_it() -> None:
    """An earlier one may have missed it."""
    answers = UnreconciledAllocations(lambda: None)
    assert not answers
    answers.note()
    now = asyncio.get_running_loop().time()

    answers.were_read(now)
    assert answers
    answers.were_read(now + holders.NOTED_SECONDS)
    assert not answers


async def test_a_pass_within_a_burst_opens_no_guard_and_closes_none(tmp_path: Path) -> None:
    """A card that has left its previous configuration would go back to it for pods that are gone."""
    store = LedgerStore(GrantStore(tmp_path, "boot"), Writer())
    store.amend([fraction(f"x{n}", PodRef("a", f"b{n}", f"uid-{n}"), "main") for n in (1, 2)])
    found = Holders(store)
    found.note((), frozenset({"x1"}), frozenset({"x1"}))
    assert store.live.shown.grants.keys() == {"x2"}

    found.unreconciled_allocations.note()
    found.note((), frozenset({"x1", "x2"}), frozenset({"x1", "x2"}))
    assert store.live.shown.grants.keys() == {"x2"}
    await store.close(20)


async def test_nobody_is_known_to_hold_nothing_while_a_grant_is_written(tmp_path: Path) -> None:
    """A switch in that moment would take the card from the pod."""
    store = LedgerStore(GrantStore(tmp_path, "boot"), Writer())
    found = Holders(store)
    found.has_passed = True
    assert found.every() == ()
    writing = asyncio.create_task(store.hold(fraction("x1", PodRef("a", "b1", "uid-1"), "main")))
    await asyncio.sleep(0)
    assert found.every() is None
    await writing
    assert found.every() == ("a/b1",)
