"""The promise: what a later release wrote of a grant goes with its pod, and never before."""

import json
from dataclasses import replace
from pathlib import Path

from tests.held import fraction

from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, VERSION, GrantStore
from gpu_device_plugin.domain.node.pods import PodRef


def of_later(slice_id: str, uid: str) -> dict[str, object]:
    """A grant of which this release cannot read a value."""
    holder = {"namespace": "a", "pod": "b", "uid": uid}
    return {"id": slice_id, "holder": holder, "compute_policy": "of-later"}


def on_disk(path: Path) -> list[str]:
    """The ids of the slices in the file."""
    sealed = SealedFile(path / KIND, KIND, VERSION).read()
    assert sealed is not None
    return [entry["id"] for entry in json.loads(sealed.payload)["grants"]]


async def test_an_unread_grant_ends_when_the_last_grant_of_its_pod_does(tmp_path: Path) -> None:
    """A pod of which another container holds something is still there."""
    odd = [of_later("first", "uid-1"), of_later("second", "uid-2"), of_later("third", "uid-3")]
    file = SealedFile(tmp_path / KIND, KIND, VERSION)
    file.write([json.dumps({"grants": odd}).encode()], "boot")
    store = LedgerStore(GrantStore(tmp_path, "boot"), Writer())
    await store.load(1.0)
    one = fraction("x1", PodRef("a", "b", "uid-1"), "main")
    two = [fraction(f"x{n}", PodRef("a", "c", "uid-2"), f"c{n}") for n in (2, 3)]
    store.amend([one, *two])
    await store.close(20)
    assert sorted(on_disk(tmp_path)) == ["first", "second", "third", "x1", "x2", "x3"]

    store.amend([], ended=["x1", "x2"])
    await store.close(20)
    assert sorted(on_disk(tmp_path)) == ["second", "third", "x3"]


async def test_a_grant_that_changed_or_ended_meanwhile_is_not_put_back(tmp_path: Path) -> None:
    """What was decided of it is decided again."""
    store = LedgerStore(GrantStore(tmp_path, "boot"), Writer())
    await store.load(1.0)
    before = fraction("x1", PodRef("a", "b", "uid-1"), "main")
    store.amend([before])
    after = replace(before, library_version="2")
    assert await store.exchange(before, after)
    assert store.ledger.grants["x1"] == after
    assert GrantStore(tmp_path, "boot").read().grants["x1"] == after

    assert not await store.exchange(before, replace(before, library_version="3"))
    store.amend([], ended=["x1"])
    assert not await store.exchange(after, before)
    assert store.ledger.grants == {}
    await store.close(20)
    assert on_disk(tmp_path) == []
