"""Files of slices are removed when it is certain that their pod is gone, and not before."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.agent_parts import settings_below
from tests.held import fraction

from gpu_device_plugin.agent.admission.container_setup import slice_spec
from gpu_device_plugin.agent.reconcile.file_keeper import FileKeeper
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.slice_files import SliceSpec
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, Mount
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.grants.lifetime import Witnesses
from gpu_device_plugin.domain.node.pods import PodRef

SLICE, VERSION = "0123456789abcdef", "0.1.0-0123456789ab"
GRANT = fraction(
    SLICE, PodRef("default", "p", "uid-p"), "main", units={Resource.MEM: ("m00",)}, cards=("GPU-a",)
)
NOBODY = Witnesses(KubeletSnapshot((), ()))


@pytest.fixture
def wiring(short_dir: Path) -> Wiring:
    """The parts of an agent whose ledger is empty, beside files of one slice and a library version."""
    wiring = Wiring(settings_below(short_dir))
    wiring.setup.files.make(SliceSpec(SLICE, "limits", ("GPU-a",)))
    (short_dir / "library_dir" / VERSION).mkdir()
    return wiring


def kept_answer(wiring: Wiring) -> CheckpointEntry:
    """What the kubelet answers with, for the life of the pod, that mounts slice and library."""
    settings = wiring.settings
    mounts = (
        Mount("/run/gpu-device-plugin/config", f"{settings.run_dir}/slices/{SLICE}/config", True),  # noqa: FBT003
        Mount("/etc/ld.so.preload", f"{settings.library_dir}/{VERSION}/ld.so.preload", True),  # noqa: FBT003
    )
    edits = ContainerEdits(mounts=mounts)
    return CheckpointEntry("uid-p", "main", Resource.MEM, frozenset({"m00"}), edits)


async def there_after(wiring: Wiring, *snapshots: Witnesses) -> tuple[bool, bool]:
    """Whether slice and library version are still there after passes 40 s apart."""
    keeper = FileKeeper(wiring.ledger_store, wiring.setup, wiring.recorder)
    for number, snapshot in enumerate(snapshots):
        keeper.find_removable(snapshot, frozenset(), 40.0 * number)
        await keeper.repair_and_remove()
    settings = wiring.settings
    is_slice = (Path(settings.run_dir) / "slices" / SLICE / "config" / "limits").is_file()
    return is_slice, (Path(settings.library_dir) / VERSION).is_dir()


async def test_files_that_nobody_names_at_two_passes_go(wiring: Wiring) -> None:
    assert await there_after(wiring, NOBODY) == (True, False)
    assert await there_after(wiring, NOBODY, NOBODY) == (False, False)


async def test_files_that_the_kubelets_answer_names_stay_although_the_ledger_is_lost(
    wiring: Wiring,
) -> None:
    """Also where no grant can be made of it, for instance while the card is away."""
    snapshot = Witnesses(KubeletSnapshot((), [kept_answer(wiring)]))
    assert await there_after(wiring, *[snapshot] * 4) == (True, True)


async def test_without_a_checkpoint_nothing_is_removed(wiring: Wiring) -> None:
    """A file that is not there says nothing about the pods that it named."""
    snapshot = Witnesses(KubeletSnapshot((), (), has_checkpoint=False))
    assert await there_after(wiring, *[snapshot] * 4) == (True, True)


async def test_files_that_nobody_names_are_in_doubt_from_the_first_pass_on(wiring: Wiring) -> None:
    """Also while the kubelet has not settled: a node is not given up beside such files."""
    keeper = FileKeeper(wiring.ledger_store, wiring.setup, wiring.recorder)
    keeper.find_removable(replace(NOBODY, is_settled=False), frozenset(), 0.0)
    assert not keeper.is_idle
    for now in (60.0, 100.0):
        keeper.find_removable(NOBODY, frozenset(), now)
    await keeper.repair_and_remove()
    assert keeper.is_idle


async def test_files_of_a_grant_that_ended_in_this_pass_go_at_once(wiring: Wiring) -> None:
    keeper = FileKeeper(wiring.ledger_store, wiring.setup, wiring.recorder)
    keeper.find_removable(NOBODY, frozenset({SLICE}), 0.0)
    await keeper.repair_and_remove()
    assert SLICE not in wiring.setup.files.present()


async def test_what_overlapping_passes_have_found_is_removed_by_one_of_them(wiring: Wiring) -> None:
    """The first forgot what the second had found, and a node was given up beside it."""
    files, keeper = (
        wiring.setup.files,
        FileKeeper(wiring.ledger_store, wiring.setup, wiring.recorder),
    )
    files.make(SliceSpec("other", "limits", ("GPU-a",)))
    keeper.find_removable(NOBODY, frozenset({SLICE, "other"}), 0.0)
    first = asyncio.create_task(keeper.repair_and_remove())
    await asyncio.sleep(0)
    assert len(files.present()) == 1  # it is in the middle

    files.make(SliceSpec("late", "limits", ("GPU-a",)))
    keeper.find_removable(NOBODY, frozenset({"late"}), 1.0)
    await first
    assert (keeper.is_idle, files.present()) == (False, frozenset({"late"}))
    await keeper.repair_and_remove()
    assert (keeper.is_idle, files.present()) == (True, frozenset())


async def test_files_that_are_granted_after_they_were_judged_stay(wiring: Wiring) -> None:
    keeper = FileKeeper(wiring.ledger_store, wiring.setup, wiring.recorder)
    keeper.find_removable(NOBODY, frozenset(), 0.0)
    keeper.find_removable(NOBODY, frozenset(), 40.0)
    await wiring.ledger_store.hold(GRANT)
    await keeper.repair_and_remove()
    assert SLICE in wiring.setup.files.present()


async def test_limits_of_a_slice_whose_size_nobody_knows_are_left_as_they_are(
    wiring: Wiring,
) -> None:
    """Its container runs by them; 0 bytes would be written in their place."""
    wiring.setup.files.make(slice_spec(GRANT))
    limits = Path(wiring.settings.run_dir) / "slices" / SLICE / "config" / "limits"
    assert limits.read_text() == "limits"
