"""Nothing is lost and nothing is given twice, wherever the agent dies and whatever comes back."""

import asyncio
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from tools.harness.rig import FOUR_CARDS, MEM, Rig, running_rig, slice_of, until

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.failpoints import POINTS, VARIABLE
from gpu_device_plugin.disk.grant_file import KIND, VERSION
from gpu_device_plugin.domain.fractions.units import Resource

IN_ADMISSION = [
    point for point in POINTS if point.startswith(("prefer.", "allocate.", "durable.", "slices."))
]


def assert_no_unit_twice(rig: Rig) -> None:
    """No unit id stands in the grants of two pods that the kubelet has."""
    alive = {pod.uid for pod in rig.kubelet.active_pods()}
    held = Counter(
        unit
        for g in rig.grants()
        if g.pod.uid in alive
        for unit in (*g.ids(Resource.MEM), *g.ids(Resource.CORE))
    )
    assert [unit for unit, times in held.items() if times > 1] == []


def assert_agreement(rig: Rig) -> None:
    """What the kubelet counts as held is what the grants say, container by container."""
    for pod in rig.kubelet.active_pods():
        for (container, resource), ids in rig.kubelet.held(pod.uid).items():
            grant = next(
                g for g in rig.grants() if g.pod.uid == pod.uid and g.container == container
            )
            assert ids == frozenset(
                grant.ids(Resource.MEM) if resource == MEM else grant.ids(Resource.CORE)
            )


@pytest.mark.parametrize("point", IN_ADMISSION)
async def test_killed_in_the_middle_of_an_admission_no_unit_is_lost_or_given_twice(
    point: str,
) -> None:
    """Kill -9 at a named point, start again: the pod may fail, the books may not."""
    async with running_rig() as rig:
        assert (await rig.admit("before", slice_of(2, 30))).is_admitted
        await rig.stop_agent()
        rig.environment[VARIABLE] = point
        await rig.start_agent()
        await until_serving_or_dead(rig)
        if rig.process is not None and rig.process.returncode is None:
            await rig.admit("victim", slice_of(2, 30))
        assert await rig.stop_agent() == -signal.SIGKILL
        rig.environment.clear()
        await rig.serve()

        assert (await rig.admit("after", slice_of(2, 30))).is_admitted
        assert_no_unit_twice(rig)
        assert_agreement(rig)
        assert rig.grant("before").ids(Resource.MEM) == tuple(
            sorted(rig.kubelet.held(rig.uid("before"))["main-0", MEM])
        )


async def until_serving_or_dead(rig: Rig) -> None:
    """A point may lie on the way to readiness as well."""
    ready = asyncio.create_task(rig.until_ready(20))
    await until(lambda: ready.done() or not rig.is_running, 20)
    ready.cancel()
    await asyncio.gather(ready, return_exceptions=True)


async def test_a_kubelet_restart_finds_the_agent_again_and_keeps_the_grants() -> None:
    """The kubelet wipes our sockets; registration comes back by itself."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        before = rig.grants()
        await rig.kubelet.restart()
        await rig.until_offered(FOUR_CARDS)

        assert rig.grants() == before
        assert (await rig.admit("q", slice_of(2, 30))).is_admitted


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign", "empty"])
async def test_a_damaged_grants_file_is_set_aside_and_rebuilt_from_the_kubelet(damage: str) -> None:
    """Checkpoint, List and API know enough: same units, same cards, same slice; an Event tells."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        before = rig.grant("p")
        await rig.stop_agent()
        path = rig.state / KIND
        (rig.state / f"{KIND}.other").unlink()
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(
            {
                "truncated": path.read_bytes()[:-7],
                "flipped": bytes(content),
                "foreign": b"hello\n",
                "empty": b"",
            }[damage]
        )
        await rig.serve()
        await until(rig.grants, 20)
        after = rig.grant("p")

        assert (
            after.slice_id,
            after.ids(Resource.MEM),
            after.ids(Resource.CORE),
            after.devices,
        ) == (before.slice_id, before.ids(Resource.MEM), before.ids(Resource.CORE), before.devices)
        assert list(rig.state.glob("grants.bad-*"))
        await until(lambda: rig.events("StateFileBad"), 10)


@pytest.mark.parametrize("name", [KIND, f"{KIND}.other"])
async def test_where_one_of_two_files_is_damaged_nothing_is_missing_from_the_grants(
    name: str,
) -> None:
    """One of them knows of the pod's first resource only; the other one is the kubelet's to tell."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        before = rig.grant("p")
        await rig.stop_agent()
        content = bytearray((rig.state / name).read_bytes())
        content[200] ^= 1
        (rig.state / name).write_bytes(content)
        await rig.serve()

        await until(lambda: rig.grants() == [before], 20, rig.grants)
        assert list(rig.state.glob("grants.bad-*"))
        await until(lambda: rig.events("StateFileBad"), 10)


async def lose_grants(rig: Rig) -> Path:
    """Stop the agent and remove its grants; the limits file of the one running container."""
    (grant,) = rig.grants()
    await rig.stop_agent()
    for path in rig.state.glob("grants*"):
        path.unlink()
    return rig.run / "slices" / grant.slice_id / "config" / "limits"


async def test_with_the_grants_lost_and_the_kubelet_silent_running_containers_keep_their_files() -> (
    None
):
    """Nobody can say whose they are, so nobody removes them; the grant comes back in time."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        before, limits = rig.grant("p"), await lose_grants(rig)
        text = limits.read_text()
        await rig.kubelet.stop()
        await rig.start_agent()

        async def is_prepared() -> bool:
            code, page = await rig.page("readyz")
            return code != 0 and "gpu-mem: " in page and "still comparing" not in page

        await until(is_prepared, 30)
        assert limits.read_text() == text
        assert (rig.library / before.library_version / "libgpuslice.so").is_file()
        await rig.kubelet.start()
        await until(rig.grants, 60)

        assert rig.grant("p").slice_id == before.slice_id
        assert limits.read_text() == text


async def test_with_the_grants_lost_and_the_card_away_a_running_containers_files_stay() -> None:
    """No grant can be made of what the kubelet says; what it says is enough to keep them."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        limits = await lose_grants(rig)
        text = limits.read_text()
        rig.cards.unplug(0)
        await rig.serve()

        assert rig.grants() == []
        assert limits.read_text() == text


async def test_a_pod_that_only_a_stale_checkpoint_names_is_not_brought_back() -> None:
    """On a quiet node the kubelet's checkpoint names pods that are long gone."""
    async with running_rig() as rig:
        await rig.admit("gone", slice_of(2, 30))
        await rig.stop_agent()
        await rig.delete(rig.uid("gone"))
        shutil.rmtree(rig.state)
        assert b"uid-gone" in (rig.kubelet.plugin_dir / "kubelet_internal_checkpoint").read_bytes()
        await rig.serve()

        assert rig.grants() == []


async def test_after_a_reboot_every_file_of_a_slice_is_there_before_the_first_register() -> None:
    """/run is empty, and the runtime may have put a directory where a file was mounted from."""
    async with running_rig() as rig:
        await rig.admit("p", slice_of(2, 30))
        grant = rig.grant("p")
        await rig.stop_agent()
        kept = SealedFile(rig.state / KIND, KIND, VERSION)
        sealed = kept.read()
        assert sealed is not None
        kept.write([sealed.payload], "another-boot")
        slices = rig.run / "slices" / grant.slice_id
        limits = (slices / "config" / "limits").read_text()
        (slices / "region").unlink()
        (slices / "region").mkdir()
        (slices / "config" / "limits").unlink()
        await rig.serve()

        assert (slices / "config" / "limits").read_text() == limits
        assert (slices / "region").stat().st_size == 1 << 20
        assert (slices / "region").stat().st_mode & 0o777 == 0o666
        assert not list(rig.state.glob("grants*.bad-*"))
        assert rig.grant("p") == grant


async def test_a_second_agent_ends_and_names_the_first() -> None:
    """One agent a node: the second says whose pid holds the lock, exit code 2."""
    async with running_rig() as rig:
        first = rig.process
        assert first is not None
        await rig.start_agent(metrics_address="127.0.0.1:0")
        code = await rig.exit_code()
        rig.process = first

        assert code == 2
        assert f"pid {first.pid}" in rig.log.read_text()


async def test_sigterm_ends_the_agent_with_exit_code_0() -> None:
    """A rolling update waits for nothing; the kubelet shows no card any more."""
    async with running_rig() as rig:
        assert await rig.stop_agent() == 0
        await until(lambda: rig.kubelet.allocatable(MEM) == 0, 5)
