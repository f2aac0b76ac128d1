"""The stand-in kubelet has the habits of the real one, the inconvenient ones too: `tests/golden/kubelet` is what a real one did.

`tests/e2e/test_kubelet.py` plays the same script on a real kubelet. What that cannot have happen is here.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.golden_files import same_as_golden_file
from tests.kubelet.rig import MEM, Rig, container, pod, until
from tests.kubelet.script import UNITS, A, Plugin, Script
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import ContainerStart, KubeletTimes, PluginCall, StandInPod

from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet.podresources import PodResources


class StandInPlayer:
    """The stand-in kubelet for the script."""

    def __init__(self, kubelet: StandInKubelet) -> None:
        self.plugin_dir = kubelet.plugin_dir
        self.pod_resources_socket = kubelet.pod_resources_socket
        self._kubelet = kubelet
        self._starts: dict[tuple[str, str], ContainerStart] = {}

    async def run(self, pod: StandInPod) -> str:
        admission = await self._kubelet.admit(pod)
        if admission.is_admitted:
            for each in pod.containers:
                start = await self._kubelet.start_container(pod.uid, each.name)
                self._starts[pod.name, each.name] = start
        return admission.message

    async def reject_later(self, pod: StandInPod) -> str:
        self._kubelet.faults.rejections_after_allocate.append("NodeAffinity")
        return (await self._kubelet.admit(pod)).reason

    async def start_again(self, pod: str) -> str:
        try:
            await self._kubelet.start_container(self.uid(pod), "main")
        except KubeletError as error:
            return str(error)
        return ""

    async def finish(self, pod: str) -> None:
        self._kubelet.finish(self.uid(pod))

    async def end_soon(self, pod: str) -> Callable[[], None]:
        return partial(self._kubelet.finish, self.uid(pod))

    async def remove(self, *pods: str) -> None:
        for each in pods:
            self._kubelet.remove(self.uid(each))

    async def restart(self) -> None:
        await self._kubelet.restart()

    async def environment(self, pod: str, container: str) -> str:
        return self._starts[pod, container].env["FROM"]

    def uid(self, pod: str) -> str:
        return f"uid-{pod}"

    async def capacity(self, resource: str, allocatable: int) -> int:
        await until(lambda: self._kubelet.allocatable(resource) == allocatable)
        return self._kubelet.capacity(resource)


async def test_it_does_what_a_real_kubelet_did(short_dir: Path) -> None:
    kubelet = StandInKubelet(short_dir, times=KubeletTimes(dial=1.0))
    await kubelet.start()
    try:
        transcript = await Script(StandInPlayer(kubelet)).play()
    finally:
        await kubelet.stop()
    same_as_golden_file("kubelet/script.txt", transcript)


async def test_a_newer_one_tells_plugins_of_one_name_apart(kubelet: StandInKubelet) -> None:
    """From #135437 on; the others: `tests/golden/kubelet`."""
    kubelet.registry.keys_by_socket = True
    await kubelet.start()
    older, newer = (Plugin(A, [], kubelet.plugin_dir, f"{age}.sock") for age in ("old", "new"))
    await older.start(UNITS[A])
    await until(lambda: kubelet.allocatable(A) == UNITS[A])
    await newer.start()
    await until(lambda: kubelet.allocatable(A) == 1)
    older.list.withdraw()
    await until(lambda: len(kubelet.registry._tasks) == 1)

    assert kubelet.allocatable(A) == 1
    await older.stop()
    await newer.stop()


async def test_a_pod_admitted_again_keeps_what_it_has_without_a_call(rig: Rig) -> None:
    """Re-admission asks nothing; a changed amount is an error."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    calls = len(rig.kubelet.calls)

    assert (await rig.kubelet.admit(pod("p", container(mem=2)))).is_admitted
    assert len(rig.kubelet.calls) == calls
    assert "changed request" in (await rig.kubelet.admit(pod("p", container(mem=3)))).message


async def test_a_plugin_that_is_gone_leaves_capacity_for_five_minutes(short_dir: Path) -> None:
    """Allocatable is 0 at once; pods are told there is no healthy device."""
    now = [1000.0]
    kubelet = StandInKubelet(short_dir, clock=lambda: now[0])
    rig = Rig(kubelet)
    await rig.serve()
    await rig.stop_endpoints()
    await rig.offered(MEM, 0)
    during = kubelet.capacity(MEM)
    now[0] += 301
    after = kubelet.capacity(MEM)
    await kubelet.stop()

    assert (during, after) == (15, 0)


async def test_a_list_before_the_sources_are_ready_takes_nothing_back(rig: Rig) -> None:
    """A kubelet that has just started knows of no pod yet, and of no pod that is gone."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=2)))
    held = rig.kubelet.held("uid-p")
    rig.kubelet.sources_ready = False
    client = PodResources(rig.kubelet.pod_resources_socket)
    listed = await client.list()
    await client.close()

    assert listed == ()
    assert rig.kubelet.held("uid-p") == held


async def test_a_kubelet_that_was_started_again_lists_the_pods_that_it_has_added_so_far(
    rig: Rig,
) -> None:
    """One by one, before its sources are ready; what the others hold is theirs all the same."""
    await rig.serve()
    first, second = pod("p", container(mem=2)), pod("q", container(mem=2))
    for each in (first, second):
        await rig.kubelet.admit(each)
    held = rig.kubelet.held("uid-q")
    rig.kubelet.forget_pods()
    await rig.kubelet.admit(first)
    client = PodResources(rig.kubelet.pod_resources_socket)
    listed = await client.list()
    await client.close()

    assert [entry.pod.name for entry in listed] == ["p"]
    assert rig.kubelet.held("uid-q") == held


async def test_the_same_seed_gives_the_same_calls(short_dir: Path) -> None:
    """A failure that depends on chance can be seen again."""
    first = await calls_of_five_pods(short_dir / "1", seed=7)

    assert await calls_of_five_pods(short_dir / "2", seed=7) == first
    assert await calls_of_five_pods(short_dir / "3", seed=8) != first


async def calls_of_five_pods(root: Path, seed: int) -> list[PluginCall]:
    """The calls that five pods make on a kubelet of that seed."""
    kubelet = StandInKubelet(root, seed)
    rig = Rig(kubelet)
    await rig.serve()
    for i in range(5):
        await kubelet.admit(pod(f"p{i}", container(mem=2, core=5)))
    await rig.stop_endpoints()
    await kubelet.stop()
    return [call for call in kubelet.calls if call.method != "GetDevicePluginOptions"]


async def test_a_socket_that_its_plugin_removes_meanwhile_is_no_matter_to_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that sees its list end cleans up while the next kubelet does."""
    kubelet = StandInKubelet(tmp_path)
    kubelet.plugin_dir.mkdir(parents=True)
    (kubelet.plugin_dir / "p.sock").touch()

    def gone_once_seen(path: Path) -> bool:
        path.unlink()
        return True

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_socket", gone_once_seen)
        await kubelet.start()
    await kubelet.stop()
