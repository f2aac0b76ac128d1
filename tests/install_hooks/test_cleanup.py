"""Cleanup removes what nothing uses, and asks the kubelet what that is."""

import asyncio
from pathlib import Path

import pytest
from tools.harness.claim_rig import allocate, claim_rig, held, kill, prepare
from tools.harness.kubelet_pods import StandInContainer, StandInPod
from tools.harness.rig import Rig, running_rig, slice_of

from gpu_device_plugin.errors import ConfigError, KubeletError
from gpu_device_plugin.install_hooks.cleanup import Outcome, Places, clean
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME


def places(rig: Rig) -> Places:
    return Places(rig.state, rig.run, rig.library, rig.root / "k", rig.root / "cdi")


def files(*directories: Path) -> set[str]:
    """Every file below these."""
    return {path.name for where in directories for path in where.rglob("*") if path.is_file()}


async def left_behind(rig: Rig, *names: str) -> None:
    """An agent that served these pods and was killed."""
    for name in names:
        await rig.admit(name, slice_of(2, 30))
    await rig.stop_agent()


async def test_a_slice_in_use_stays_with_all_it_needs_and_the_others_go() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "stays", "ends")
        stays, ends = rig.grant("stays"), rig.grant("ends")
        rig.kubelet.remove(rig.uid("ends"))
        outcome = await clean(places(rig), is_forced=False)

        assert outcome.in_use == (f"slice {stays.slice_id} of pod default/stays, container main-0",)
        assert f"slice {ends.slice_id} of pod default/ends, container main-0" in outcome.removed
        assert (rig.run / "slices" / stays.slice_id / "config" / "limits").is_file()
        assert (rig.library / stays.library_version / "libgpuslice.so").is_file()
        assert not (rig.run / "slices" / ends.slice_id).exists()
        assert [grant.pod.name for grant in rig.grants()] == ["stays"]


async def test_an_agent_that_is_installed_again_serves_what_stayed() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        grant = rig.grant("stays")
        await clean(places(rig), is_forced=False)
        await rig.serve()
        start = await rig.kubelet.start_container(rig.uid("stays"), "main-0")

        assert rig.grant("stays").slice_id == grant.slice_id
        assert any(grant.slice_id in outside for outside, _ in start.mounts.values())


async def test_without_pods_nothing_of_ours_is_left() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "ends")
        version = rig.grant("ends").library_version
        rig.kubelet.remove(rig.uid("ends"))
        outcome = await clean(places(rig), is_forced=False)

        assert outcome.in_use == ()
        assert f"library version {version}" in outcome.removed
        assert not rig.state.exists()
        assert not rig.run.exists()
        assert {path.name for path in rig.library.iterdir()} == {"0.0.1"}  # somebody else's
        assert (await clean(places(rig), is_forced=False)) == Outcome((), ())


async def test_forced_it_removes_what_is_in_use_as_well() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        outcome = await clean(places(rig), is_forced=True)
        assert outcome.in_use == ()
        assert files(rig.state, rig.run) == set()


async def test_grants_that_are_lost_do_not_make_a_running_pods_files_unused() -> None:
    """The kubelet keeps our answer, which names slice and library."""
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        grant = rig.grant("stays")
        for path in rig.state.glob("grants*"):
            path.unlink()
        outcome = await clean(places(rig), is_forced=False)
        assert outcome.in_use == (f"slice {grant.slice_id}",)
        assert (rig.library / grant.library_version / "libgpuslice.so").is_file()


async def test_a_kubelet_that_does_not_answer_is_no_reason_to_remove_anything() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        await rig.kubelet.stop()
        before = files(rig.state, rig.run)
        with pytest.raises(KubeletError, match="does not say which slices are in use"):
            await clean(places(rig), is_forced=False)
        assert files(rig.state, rig.run) == before


async def test_a_kubelet_that_lists_no_pods_yet_is_no_reason_to_remove_anything() -> None:
    """After its restart, for as long as it cannot reach the API server."""
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        before = files(rig.state, rig.run, rig.library)
        rig.kubelet.sources_ready = False
        outcome = await clean(places(rig), is_forced=False, wait_seconds=0)
        assert [text.partition(" of ")[2] for text in outcome.in_use] == [
            "pod default/stays, container main-0"
        ]
        assert before - files(rig.state, rig.run, rig.library) <= {"lock"}


async def test_without_the_kubelets_pods_its_checkpoint_counts() -> None:
    """As in a pod that was not given that directory; --force is for who knows better."""
    async with running_rig() as rig:
        await left_behind(rig, "ends")
        rig.kubelet.remove(rig.uid("ends"))
        rig.kubelet.pods_dir.rmdir()
        outcome = await clean(places(rig), is_forced=False, wait_seconds=0)
        assert len(outcome.in_use) == 1
        outcome = await clean(places(rig), is_forced=True)
        assert outcome.in_use == ()


async def test_files_that_no_grant_names_stay_while_the_kubelet_has_no_checkpoint() -> None:
    async with running_rig() as rig:
        await left_behind(rig, "stays")
        grant = rig.grant("stays")
        for path in (*rig.state.glob("grants*"), rig.kubelet.plugin_dir / FILE_NAME):
            path.unlink()
        outcome = await clean(places(rig), is_forced=False, wait_seconds=0)
        assert outcome.in_use == (f"slice {grant.slice_id}",)
        assert (rig.library / grant.library_version / "libgpuslice.so").is_file()


async def test_a_pod_that_the_kubelet_is_about_to_forget_is_waited_for() -> None:
    """It is gone from List some seconds before its directory is."""
    async with running_rig() as rig:
        await left_behind(rig, "ends")
        uid = rig.uid("ends")
        rig.kubelet.finish(uid)
        cleaning = asyncio.create_task(clean(places(rig), is_forced=False, wait_seconds=60))
        done, _ = await asyncio.wait([cleaning], timeout=1)
        assert not done
        rig.kubelet.remove(uid)
        assert (await cleaning).in_use == ()


async def test_it_keeps_away_from_a_node_that_is_served() -> None:
    async with running_rig() as rig:
        before = files(rig.state, rig.library)
        with pytest.raises(ConfigError, match="another agent serves this node"):
            await clean(places(rig), is_forced=True)
        assert files(rig.state, rig.library) == before


async def prepared(rig: Rig, *names: str) -> None:
    """Pods with claims, served by an agent that was killed."""
    for name in names:
        main = StandInContainer("main", drivers=("gpu-device-plugin",))
        await rig.kubelet.admit(StandInPod("default", f"p-{name}", f"uid-p-{name}", (main,)))
        await allocate(rig, name, 0)
        assert await prepare(rig, name) == ""
    await kill(rig)


def of_claims(rig: Rig) -> set[str]:
    """What is left for container runtimes and the kubelet: CDI files and sockets."""
    where = (rig.root / "cdi", rig.root / "k" / "plugins", rig.root / "k" / "plugins_registry")
    return {path.name for directory in where for path in directory.rglob("*")}


async def test_of_claims_those_whose_pods_are_gone_go_with_their_cdi_files() -> None:
    """And with the sockets of the killed agent; a claim's pod that is there keeps its slice."""
    async with claim_rig() as rig:
        await prepared(rig, "stays", "ends")
        assert "gpu-device-plugin-reg.sock" in of_claims(rig)
        rig.kubelet.remove("uid-p-ends")
        (_, stays), (_, ends) = (held(rig)[name] for name in ("stays", "ends"))
        outcome = await clean(places(rig), is_forced=False)

        assert outcome.in_use == (f"slice {stays} of pod default/p-stays, claim stays",)
        assert {
            f"slice {ends} of pod default/p-ends, claim ends",
            "CDI file of claim uid-ends",
        } <= set(outcome.removed)
        assert of_claims(rig) == {"gpu-device-plugin-uid-stays.json"}
        assert held(rig).keys() == {"stays"}
        rig.kubelet.remove("uid-p-stays")
        assert (await clean(places(rig), is_forced=False)).in_use == ()
        assert of_claims(rig) == set()


async def test_a_claim_is_in_use_while_it_is_not_known_that_its_pod_is_gone() -> None:
    """Without the kubelet's directories of pods, and where only the CDI file is left of it."""
    async with claim_rig() as rig:
        await prepared(rig, "a")
        (_, slice_id) = held(rig)["a"]
        rig.kubelet.remove("uid-p-a")
        rig.kubelet.pods_dir.rmdir()
        outcome = await clean(places(rig), is_forced=False, wait_seconds=0)
        assert len(outcome.in_use) == 1

        for path in rig.state.glob("grants*"):
            path.unlink()
        outcome = await clean(places(rig), is_forced=False, wait_seconds=0)
        assert outcome.in_use == (f"slice {slice_id}",)
        assert (rig.run / "slices" / slice_id / "config" / "limits").is_file()
        assert (await clean(places(rig), is_forced=True)).in_use == ()
        assert of_claims(rig) == set()
