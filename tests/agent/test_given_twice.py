"""No card is given twice where pods come back under names that were known, or under new ones."""

import asyncio
import fcntl
import os
import signal
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_nvidia import GPU, SEVENTH, annotated, offered, visible
from tests.domain.nvidia.nodes import whole
from tests.domain.words import grant, pod
from tools.harness.kubelet_pods import PodAdmission
from tools.harness.kubelet_registry import CHECKPOINT_NAME
from tools.harness.rig import CORE, COUNT, MEM, Rig, running_rig, slice_of, until

from gpu_device_plugin.agent.kubelet_calls.holder_check import HolderCheck
from gpu_device_plugin.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.disk.region import REGION_BYTES
from gpu_device_plugin.domain.grants import lifetime
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ListedPod, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.errors import DoesNotFitError
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

SWITCH_SECONDS = 15


@asynccontextmanager
async def two_cards(
    *, mode: str = "default", is_hasty: bool = False, **settings: object
) -> AsyncIterator[Rig]:
    """A node of two V100."""
    async with running_rig(is_started=False, is_hasty=is_hasty) as rig:
        SimulatedNode.create("v100", rig.root / "gpu", cards=2)
        await rig.serve(mode=mode, **settings)
        names = (GPU,) if mode == "default" else (MEM, CORE)
        # Before, the kubelet admits a pod with nothing.
        await until(lambda: all(map(rig.kubelet.allocatable, names)), 20)
        yield rig


async def passes(rig: Rig, number: int = 3) -> None:
    """Wait until the agent has read the kubelet's List so often."""
    begun = rig.kubelet.pod_resources.lists
    await until(lambda: rig.kubelet.pod_resources.lists >= begun + number, 60)


async def come_back(rig: Rig, gone: Sequence[str], come: Sequence[str]) -> None:
    """Pods end, and others come at once; each gets the first card that is free."""
    for name in gone:
        await rig.delete(rig.uid(name))
    for name in come:
        assert (await rig.admit(name, {GPU: 1})).is_admitted


@pytest.mark.parametrize(
    "come", [("s-1", "s-0"), ("s-0", "s-1"), ("t-0", "t-1")], ids=["swapped", "as before", "others"]
)
@pytest.mark.parametrize("is_label_first", [True, False], ids=["label first", "label later"])
async def test_the_mode_waits_for_pods_that_came_back(
    come: Sequence[str], *, is_label_first: bool
) -> None:
    """Each holds a card whole, whichever of the grants before named its name or its card."""
    async with two_cards() as rig:
        for name in ("s-0", "s-1"):
            assert (await rig.admit(name, {GPU: 1})).is_admitted
            await annotated(rig, name)
        if is_label_first:
            await rig.set_labels(schedule="core_mem")
            await until(lambda: rig.events("ModeSwitchRefused"), 10)
        await come_back(rig, ("s-0", "s-1"), come)
        if not is_label_first:
            await passes(rig, 1)
            await rig.set_labels(schedule="core_mem")
        await until(lambda: rig.events("ModeSwitchRefused"), 10)
        for name in come:
            assert await annotated(rig, name) == {"0": await visible(rig, name)}
        await passes(rig)
        assert not rig.events("ModeSwitched")
        for name in come:
            await rig.delete(rig.uid(name))
        await rig.until_offered({MEM: 30, CORE: 200, COUNT: 2}, SWITCH_SECONDS)


async def test_a_card_whose_replica_is_held_is_not_offered_whole(tmp_path: Path) -> None:
    """The kubelet cannot object, because the ids of card and replica differ."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}")
    async with two_cards(config_file=file) as rig:
        await offered(rig, gpu=8)
        for name in ("s-0", "s-1"):
            assert (await rig.admit(name, {GPU: 1})).is_admitted
            await annotated(rig, name)
        file.write_text("version: v1")
        await offered(rig, gpu=2)
        await come_back(rig, ("s-0", "s-1"), ("s-1", "s-0"))
        await passes(rig)
        assert not (await rig.admit("third", {GPU: 1})).is_admitted
        seen = {(await visible(rig, name))[0] for name in ("s-0", "s-1")}
        assert seen == {card.uuid for card in rig.cards.view().cards}


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)], ids=["whole", "replicas"])
async def test_a_card_is_not_given_under_two_configurations_by_an_agent_that_lacks_its_holder(
    tmp_path: Path, before: int, after: int
) -> None:
    """It was killed before a pass had recorded the holder, and PodResources is still silent: the checkpoint tells."""

    def configuration(replicas: int) -> str:
        shared = f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}"
        return f"version: v1\n{shared if replicas > 1 else ''}"

    file = tmp_path / "config.yaml"
    file.write_text(configuration(before))
    async with two_cards(config_file=file) as rig:
        await offered(rig, gpu=2 * before)
        await rig.kubelet.pod_resources.stop()
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        await rig.stop_agent(signal.SIGKILL)
        file.write_text(configuration(after))
        await rig.start_agent(mode="default", config_file=file)
        await offered(rig, gpu=2 * after)
        assert (await rig.admit("second", {GPU: after})).is_admitted
        assert await visible(rig, "second") != await visible(rig, "holder")
        refused = await rig.admit("third", {GPU: 1})
        assert (
            "is not free: by the kubelet's checkpoint pod default/holder holds" in refused.message
        )


async def test_a_card_is_not_given_whole_while_a_pod_holds_it_by_a_name_of_the_file_before(
    tmp_path: Path,
) -> None:
    """The agent ended before a pass had recorded the pod; the file that it finds has that name no more."""
    file = tmp_path / "config.yaml"
    shared = "{name: gpu, rename: quarter, replicas: 4}"
    file.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{shared}]}}}}")
    async with running_rig(is_started=False) as rig:
        SimulatedNode.create("v100", rig.root / "gpu", cards=2)
        await rig.serve(mode="default", config_file=file)
        await until(lambda: rig.kubelet.allocatable("nvidia.com/quarter") == 8, 20)
        assert (await rig.admit("holder", {"nvidia.com/quarter": 1})).is_admitted
        await rig.stop_agent(signal.SIGKILL)
        file.write_text("version: v1")
        await rig.start_agent(mode="default", config_file=file)
        await until(lambda: bool(rig.kubelet.allocatable(GPU)), 20)
        assert (await rig.admit("second", {GPU: 1})).is_admitted
        assert (await visible(rig, "second"))[0] not in (await visible(rig, "holder"))[0]
        assert not (await rig.admit("third", {GPU: 1})).is_admitted


ALONE = {"ack.gpushare.placement": "require-whole-device"}


@asynccontextmanager
async def starting_kubelet(rig: Rig, *, has_checkpoint: bool = True) -> AsyncIterator[None]:
    """A kubelet that has just started: it adds and admits its first pods one by one, the oldest first.

    A pod that was bound meanwhile and is older than those that run is asked for while List has it alone.
    """
    rig.kubelet.sources_ready = False
    await rig.kubelet.stop()
    if not has_checkpoint:
        (rig.kubelet.plugin_dir / CHECKPOINT_NAME).unlink()
    await rig.kubelet.start()
    await rig.until_offered({MEM: 30, CORE: 200, COUNT: 2}, 20)
    yield
    rig.kubelet.sources_ready = True


async def test_a_card_for_one_pod_alone_stays_its_own_while_the_kubelet_starts() -> None:
    """List has only the pod that asks; the checkpoint has the others."""
    async with two_cards(mode="core_mem") as rig:
        for name in ("first", "second"):
            assert (await rig.admit(name, slice_of(2, 30), labels=ALONE)).is_admitted
        async with starting_kubelet(rig):
            late = await rig.admit("late", slice_of(2, 30))
            assert (
                "card 0: held by a pod that wants no other beside it; card 1: held" in late.message
            )
        await rig.delete(rig.uid("first"))
        assert (await rig.admit("later", slice_of(2, 30))).is_admitted


async def watched_no_more(rig: Rig) -> None:
    """The agent's watch of pods is there, and tells nothing from now on."""
    asked = rig.api.requests
    await until(lambda: any(r.path == "/api/v1/pods" and "watch" in r.query for r in asked), 10)
    rig.api.is_mute = True


async def test_a_refused_pod_is_made_again_with_another_text_while_the_watch_is_behind() -> None:
    """The text fetched of the first one was taken for the second one's."""
    async with two_cards(mode="core_mem") as rig:
        await watched_no_more(rig)
        assert (await rig.admit("other", slice_of(10, 30))).is_admitted
        assert "5 of 15 units free" in (await rig.admit("again", slice_of(16, 30))).message
        await rig.delete(rig.uid("again"))
        corrected = await rig.admit("again", slice_of(8, 30), labels=ALONE)
        assert corrected.is_admitted, corrected.message
        refused = await rig.admit("late", slice_of(6, 30))
        assert "held by a pod that wants no other beside it" in refused.message


async def answered(rig: Rig, name: str) -> PodAdmission:
    """What becomes of a small pod, once List has answered in time: a busy machine may take longer than 2 s."""
    found = await rig.admit(name, slice_of(2, 30))
    is_late = "does not say which pod this is" in found.message
    return await answered(rig, f"{name}-again") if is_late else found


@pytest.mark.parametrize("is_known", [False, True], ids=["new name", "name of one before"])
async def test_a_card_for_one_pod_alone_stays_its_own_while_the_kubelet_starts_and_the_watch_is_behind(
    *, is_known: bool
) -> None:
    """Of the others the watch has nothing, or only the pod before; the first call's List lacks them."""
    async with two_cards(mode="core_mem") as rig:
        for name in ("first", "second") if is_known else ():
            assert (await rig.admit(name, slice_of(2, 30))).is_admitted
            path = f"/api/v1/namespaces/default/pods/{name}"
            await until(partial(rig.annotations, path), 10)  # so the watch has it
        await watched_no_more(rig)
        for uid in tuple(rig.kubelet.pods):
            await rig.delete(uid)
        for name in ("first", "second"):
            assert (await rig.admit(name, slice_of(2, 30), labels=ALONE)).is_admitted
        async with starting_kubelet(rig):
            for name in ("late", "later"):
                refused = await answered(rig, name)
                assert "card 0: held by a pod that wants no other beside it" in refused.message
                assert "card 1: held" in refused.message


async def test_a_pod_gets_the_empty_card_while_the_kubelet_starts() -> None:
    """The other one seemed empty, and the kubelet had too few units there."""
    async with two_cards(mode="core_mem") as rig:
        assert (await rig.admit("first", slice_of(10, 30))).is_admitted
        async with starting_kubelet(rig):
            assert (await rig.admit("late", slice_of(8, 30))).is_admitted
        assert rig.card_of("late") != rig.card_of("first")


async def test_a_pod_keeps_its_fraction_while_a_kubelet_without_its_checkpoint_starts() -> None:
    """Such a kubelet writes an empty one when the agent registers: only the API server knows the pod."""
    async with two_cards(mode="core_mem") as rig:
        assert (await rig.admit("first", slice_of(10, 30))).is_admitted
        before = rig.grant("first").all_ids
        async with starting_kubelet(rig, has_checkpoint=False):
            assert (await rig.admit("late", slice_of(10, 30))).is_admitted
        assert rig.grant("first").all_ids == before
        assert rig.card_of("late") != rig.card_of("first")


async def test_a_card_that_its_last_pod_has_left_is_free_for_a_pod_with_an_init_container() -> None:
    """The kubelet hands on the init container's units without asking first; the dead grant counted there."""
    async with two_cards(mode="core_mem") as rig:
        for name in ("first", "second"):
            assert (await rig.admit(name, slice_of(2, 30))).is_admitted
        await rig.delete(rig.uid("first"))
        await rig.delete(rig.uid("second"))
        asked = slice_of(2, 30)
        alone = await rig.admit("alone", asked, init=[asked], labels=ALONE)
        assert alone.is_admitted, alone.message


@pytest.mark.parametrize("mode", ["default", "core_mem"])
async def test_a_card_that_leaves_mig_mode_waits_for_the_pods_that_hold_its_instances(
    mode: str,
) -> None:
    """Also over a restart of the agent; the other cards are offered, and it too when they have ended."""

    def whole(rig: Rig) -> int:
        return rig.kubelet.allocatable(GPU) or rig.kubelet.allocatable(CORE) // 100

    async with running_rig("a100-mig", is_hasty=True, is_started=False) as rig:
        for index in range(8):
            rig.cards.cut(index, ["1g.5gb"] * 2 if index == 2 else None)
        await rig.start_agent(mode=mode, mig_strategy="mixed")
        await until(lambda: (whole(rig), rig.kubelet.allocatable(SEVENTH)) == (7, 2), 20)
        assert (await rig.admit("holder", {SEVENTH: 1})).is_admitted
        await annotated(rig, "holder")
        rig.cards.cut(2, None)
        await until(lambda: rig.kubelet.allocatable(SEVENTH) < 2, 20)
        await until(lambda: rig.events("MigLeft"), 20)
        assert whole(rig) == 7
        await rig.stop_agent()
        await rig.start_agent(mode=mode, mig_strategy="mixed")
        await until(lambda: whole(rig) > 0, 20)
        await passes(rig)
        assert whole(rig) == 7
        await rig.delete(rig.uid("holder"))
        await until(lambda: whole(rig) == 8, 40)


async def test_a_pod_deleted_by_force_keeps_its_units_and_files_while_a_process_runs() -> None:
    """The kubelet forgets it at once (kubernetes #104824), and gives its units away."""
    async with two_cards(mode="core_mem", is_hasty=True) as rig:
        assert (await rig.admit("first", slice_of(10, 30))).is_admitted
        slice_id = rig.grant("first").slice_id
        region = rig.run / "slices" / slice_id / "region"
        with region.open("rb+") as file:
            slot = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, REGION_BYTES, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, slot)
            await rig.delete(rig.uid("first"))
            await until(lambda: rig.events("ProcessLeft"), 20)
            assert "default/first" in rig.events("ProcessLeft")[0]["message"]
            assert (await rig.admit("second", slice_of(8, 30))).is_admitted
            assert rig.card_of("second") != rig.card_of("first")
            refused = await rig.admit("first", slice_of(8, 30))
            assert "what default/first had is not given again" in refused.message
            await passes(rig, 4)
            assert region.exists()
        await until(lambda: not region.exists(), 60)
        assert (await rig.admit("third", slice_of(8, 30))).is_admitted


async def test_the_api_servers_first_list_ends_pods_at_the_next_call() -> None:
    """A reboot rejected them while it was away; with the next pass an exclusive card was free, up to 30 s later."""
    gone, lives, is_synced = pod("gone"), pod("lives"), False
    specs = {lives.ref.key: lives}

    async def no_pods() -> list[ListedPod]:
        return []

    reader = SnapshotReader(
        no_pods, lambda: (), lambda: specs, lambda: is_synced, lambda: 1, lambda _: False
    )
    unnamed = PodRef("", "", lives.ref.uid)  # adopted from the checkpoint
    reader.at_start = frozenset({gone.ref, lives.ref, unnamed})

    assert not reader.witnesses([], specs, frozenset()).ended
    is_synced = True
    assert reader.witnesses([], specs, frozenset()).ended == {gone.ref}


def test_a_card_of_which_only_a_cgroup_tells_that_it_is_in_use_is_given_last() -> None:
    """Whole cards have no region. A pod of which the kubelet shows no unit, and that has a process, was lost."""
    gone, lives = grant("gone", "m00"), replace(grant("lives", "m01"), slice_id="second")
    specs = {spec.ref.key: spec for spec in (pod("lives"),)}
    elsewhere = ListedPod(gone.pod, {"main": {GPU: frozenset({"m09"})}})

    async def nobody(*_: object) -> Any:
        return None

    async def other_units(_: PodRef) -> ListedPod:
        return elsewhere

    def check(*running: Grant, get: Any = nobody) -> HolderCheck:
        reader = SnapshotReader(
            nobody, lambda: (), lambda: specs, lambda: True, lambda: None, running.__contains__
        )
        return HolderCheck(get, reader, lambda: False)

    ledger, free = Ledger({g.slice_id: g for g in (gone, lives)}), frozenset({"m00", "m01", "m02"})
    sizes = (1, 2, 3)
    found = [check(gone).least_used(ledger, free, size) for size in sizes]
    assert found == [{"m02"}, {"m01", "m02"}, free]
    assert check().least_used(ledger, free, 2) == {"m00", "m02"}
    call = Call(GPU, 1, frozenset({"m00"}))
    asyncio.run(check().check_chosen(call, frozenset(), [gone], []))
    with pytest.raises(DoesNotFitError, match="what default/gone had is not given again"):
        asyncio.run(check(gone).check_chosen(call, frozenset(), [gone], []))
    with pytest.raises(DoesNotFitError, match="what default/gone had"):  # others have its name
        asyncio.run(check(gone, get=other_units).check_chosen(call, frozenset(), [gone], []))
    call = Call(GPU, 1, frozenset({"m01"}))
    asyncio.run(check(lives, get=other_units).check_chosen(call, frozenset(), [lives], []))


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "starting"])
async def test_the_checkpoint_tells_of_a_card_under_an_earlier_configuration_while_the_ledger_may_be_behind(
    monkeypatch: pytest.MonkeyPatch, *, is_settled: bool
) -> None:
    """A pod that has ended by the API server holds nothing; before that has shown any, a uid is enough.

    The List of a starting kubelet may be short, and with it the pass that read it.
    """
    monkeypatch.setattr(lifetime, "KUBELET_SETTLE_SECONDS", 0.0 if is_settled else 1e9)
    holder, other = pod("holder"), pod("other")
    entry = CheckpointEntry(holder.ref.uid, "main", GPU, frozenset({"GPU-0::0"}), ContainerEdits())

    async def nobody(*_: object) -> Any:
        return None

    def kept(*known: PodRequest, is_behind: bool = True) -> dict[str, str]:
        specs = {spec.ref.key: spec for spec in known}
        reader = SnapshotReader(
            nobody, lambda: [entry], lambda: specs, lambda: True, lambda: 1, lambda _: False
        )
        check = HolderCheck(nobody, reader, lambda: is_behind)
        node = NodeState("n", cards=tuple(whole(2)), mode=NodeMode.DEFAULT)
        found = check.held_otherwise(NvidiaScheme(Configuration), node)
        return {unit: pod.text for unit, pod in found.items()}

    assert kept(holder, other) == {"GPU-0": "default/holder"}
    assert kept() == {"GPU-0": f"uid {holder.ref.uid}"}
    assert not kept(other)
    assert not kept(replace(holder, is_finished=True), other)
    assert bool(kept(holder, is_behind=False)) is not is_settled
