"""The limit keeper proves limits, and sets those of running containers, asked by the slice's id alone.

A process with the slice's directory mounted, in a cgroup of the machine, stands for a container.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.conftest import MakeNode
from tests.isolation.test_limit_hook import cgroup_tree
from tools.harness.cluster.waiting import wait_for
from tools.harness.waiting import until

from gpu_device_plugin.agent.node_checks import admin_socket
from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.cards_tools import limit_keeper
from gpu_device_plugin.cards_tools.limit_keeper import LimitKeeper
from gpu_device_plugin.disk.mounts import place_of
from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.simulation.driver_library import set_fields
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_SLICE = "00000000000022aa"
_MIB = 1 << 20
_HIDES = """
import os, signal
ended, mine = os.pipe()
if os.fork():
    os.close(ended)
    os.chroot("/proc/self/fdinfo")
    signal.pause()
os.close(mine)
os.read(ended, 1)
"""


class Container:
    """A process in a cgroup of its own that has a slice's directory mounted somewhere."""

    def __init__(self, leaf: Path, source: Path, place: Path, *, hides: bool = False) -> None:
        leaf.mkdir()
        place.mkdir()
        program = place.parent / "hides.py"
        program.write_text(_HIDES)
        first = f"{sys.executable} {program}" if hides else "sleep 600"
        mount = f"mount --bind '{source}' {place} && echo up && exec {first}"
        into = f'echo $$ >{leaf}/cgroup.procs && exec unshare --mount sh -c "{mount}"'
        self.leaf = leaf
        self.process = subprocess.Popen(["sh", "-c", into], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        with self.process.stdout:
            assert self.process.stdout.readline() == "up\n"

    def end(self) -> None:
        """Neither process nor cgroup is left."""
        self.process.kill()
        self.process.wait()
        wait_for("its processes have ended", lambda: not self._processes(), 20)
        self.leaf.rmdir()

    def _processes(self) -> str:
        return (self.leaf / "cgroup.procs").read_text()


class Place:
    """A node, a run directory with one slice of it, and its containers."""

    def __init__(self, node: SimulatedNode, directory: Path) -> None:
        self.node, self.directory, self.tree = node, directory, cgroup_tree()
        self.run = directory / "run"
        self.slice = self.run / "slices" / _SLICE
        (self.slice / "config").mkdir(parents=True)
        uuid = node.view().cards[0].uuid
        text = (
            f"version=1\nslice={_SLICE}\npolicy=fixed\ndevice={uuid} memory_bytes={2154 * _MIB}\n"
        )
        (self.slice / "config" / "limits").write_text(text)
        self.made: list[Container] = []

    def container(self, source: Path | None = None, *, hides: bool = False) -> Container:
        """One more; by default of the slice."""
        leaf = self.tree / f"keeper-{os.getpid()}-{len(self.made)}"
        place = self.directory / f"in-{len(self.made)}"
        self.made.append(Container(leaf, source or self.slice / "config", place, hides=hides))
        return self.made[-1]

    @asynccontextmanager
    async def keeper(
        self, young_seconds: float = 0
    ) -> AsyncIterator[Callable[..., Awaitable[object]]]:
        """One that has probed and answers."""
        root = str(self.node.library.parent)
        running = asyncio.ensure_future(
            LimitKeeper(self.run, root, str(self.tree), young_seconds=young_seconds).run()
        )
        socket = self.run / "limits.sock"

        async def told(command: str, *slices: str) -> object:
            return json.loads(await ask(socket, {"command": command, "slices": slices}))

        try:
            await until(socket.is_socket, 20)
            yield told
        finally:
            running.cancel()


@pytest.fixture
def place(make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """On driver 615; an answer waits for its hook, however busy the machine is."""
    monkeypatch.setattr(limit_keeper, "_ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(admin_socket, "_ANSWER_SECONDS", 120.0)
    place = Place(make_node("v100", cards=2, driver_version="615.71.09"), tmp_path)
    yield place
    for each in place.made:
        each.end()


async def test_a_running_container_without_its_limit_gets_it_and_the_mark_says_by_whom(
    place: Place,
) -> None:
    """Again after a reload of the driver; what holds is not set twice."""
    async with place.keeper() as told:
        mark = place.slice / "driver-limit"
        assert await told("limit", _SLICE) == {_SLICE: "none"}
        leaf = place.container().leaf
        assert await told("limit", _SLICE) == {_SLICE: "set"}
        assert mark.read_text() == f"cgroup={leaf}\nby=repair\n"
        assert await told("limit", _SLICE) == {_SLICE: "held"}
        mark.write_text(f"cgroup={leaf}\n")
        place.node.upgrade_driver("615.71.09")
        assert await told("limit", _SLICE) == {_SLICE: "set"}
        assert mark.read_text() == f"cgroup={leaf}\n"


async def test_a_slice_that_was_resized_gets_what_its_limits_file_says_now(place: Place) -> None:
    """And the revision that holds stands beside the mark, which stays the hook's."""
    limits, mark = place.slice / "config" / "limits", place.slice / "driver-limit"
    async with place.keeper() as told:
        leaf = place.container().leaf
        assert await told("limit", _SLICE) == {_SLICE: "set"}
        assert not (place.slice / "driver-revision").exists()
        mark.write_text(f"cgroup={leaf}\n")
        larger = limits.read_text().replace(str(2154 * _MIB), str(8618 * _MIB))
        limits.write_text(larger.replace("policy=", "revision=1\npolicy="))
        assert await told("limit", _SLICE) == {_SLICE: "set"}
        assert (place.slice / "driver-revision").read_text() == "1\n"
        assert mark.read_text() == f"cgroup={leaf}\n"
        assert await told("limit", _SLICE) == {_SLICE: "held"}


async def test_a_container_that_has_just_begun_is_left_to_its_own_hooks(place: Place) -> None:
    """What the runtime is about to limit needs no repair, and is none that ran without a limit."""
    async with place.keeper(young_seconds=3600) as told:
        place.container()
        assert await told("limit", _SLICE) == {_SLICE: "under way"}
        assert not (place.slice / "driver-limit").exists()


async def test_a_container_does_not_hide_by_a_first_process_with_another_root(place: Place) -> None:
    """Which sees none of the mounts that its other processes see."""
    async with place.keeper() as told:
        root = Path(f"/proc/{place.container(hides=True).process.pid}/root")
        await until(lambda: root.readlink() != Path("/"), 20)
        assert await told("limit", _SLICE) == {_SLICE: "set"}


async def test_two_questions_at_once_are_both_answered(place: Place) -> None:
    """As when an agent starts again while its question is under way."""
    async with place.keeper() as told:
        place.container()
        both = await asyncio.gather(told("limit", _SLICE), told("limit", _SLICE))
        assert {_SLICE: "set"} in both


async def test_a_hook_that_cannot_be_started_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not taken for a slice that nobody uses."""
    async with place.keeper() as told:
        place.container()
        (place.directory / "gpu-limit-hook").write_text("no program")
        monkeypatch.setenv("GPU_DEVICE_PLUGIN_NATIVE", str(place.directory))
        assert "gpu-limit-hook was not started: " in str(await told("limit", _SLICE))


async def test_only_slices_of_this_node_are_named_and_only_root_asks(place: Place) -> None:
    """No path, no size; a directory that only looks like a slice's is none."""
    other = place.directory / "slices" / _SLICE / "config"
    other.mkdir(parents=True)
    async with place.keeper() as told:
        assert (place.run / "limits.sock").stat().st_mode & 0o777 == 0o600
        place.container(place.directory / "run" / "slices" / _SLICE)
        assert await told("limit", "..", f"../slices/{_SLICE}", "/etc") == {}
        assert await told("limit", _SLICE) == {_SLICE: "none"}


async def test_nothing_is_written_through_a_link(place: Place, tmp_path: Path) -> None:
    """Who can write the run directory makes no privileged program write elsewhere."""
    other = tmp_path / "other"
    other.write_text("precious")
    async with place.keeper() as told:
        (place.slice / "driver-limit.new").symlink_to(other)
        place.container()
        assert await told("limit", _SLICE) == {_SLICE: "set"}
    assert other.read_text() == "precious"


async def test_what_cannot_be_set_is_told_in_the_hooks_words(place: Place) -> None:
    """The agent reports it."""
    async with place.keeper() as told:
        place.container()
        set_fields(place.node.state, ["memory_accounting=2"])
        assert "answers 3 (Not Supported)" in str(await told("limit", _SLICE))


async def test_a_hook_that_hangs_holds_up_neither_the_answer_nor_other_questions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did is told when the agent asks again."""
    stand_in = place.directory / "hook"
    stand_in.mkdir()
    (stand_in / "gpu-limit-hook").write_text(
        f'#!/bin/sh\n[ "$1" = --probe ] && exit\nuntil [ -e {stand_in}/go ]; do sleep 0.1; done\necho set\n'
    )
    (stand_in / "gpu-limit-hook").chmod(0o755)
    monkeypatch.setenv("GPU_DEVICE_PLUGIN_NATIVE", str(stand_in))
    monkeypatch.setattr(limit_keeper, "_ANSWER_SECONDS", 0.2)
    async with place.keeper() as told:
        place.container()
        assert await told("limit", _SLICE) == {_SLICE: "under way"}
        assert await told("probe") == {}
        assert await told("limit", _SLICE) == {_SLICE: "under way"}
        (stand_in / "go").touch()
        found: list[object] = []
        while {_SLICE: "set"} not in found:
            found.append(await told("limit", _SLICE))
            assert found[-1] in ({_SLICE: "set"}, {_SLICE: "under way"})


async def test_no_mount_that_only_reads_like_the_slices_makes_a_container_its_user(
    place: Place,
) -> None:
    """A name may hold what some take for a line's end or a blank; a path that ends alike is another."""
    async with place.keeper() as told:
        device, root = place_of(place.slice / "config")
        odd = Path(f"{place.directory}/odd\x0c1\x1f2\x1f{device}\x1f{root}\x1fx")
        odd.mkdir(parents=True)
        place.container(odd)
        alike = place.directory / "other/run/slices" / _SLICE / "config"
        alike.mkdir(parents=True)
        place.container(alike)
        assert await told("limit", _SLICE) == {_SLICE: "none"}
        leaf = place.container().leaf
        assert await told("limit", _SLICE) == {_SLICE: "set"}
        assert (place.slice / "driver-limit").read_text().startswith(f"cgroup={leaf}\n")


def test_a_pid_that_has_become_anothers_limits_nobody(place: Place) -> None:
    """The hook reads the cgroup of the process that was found, or none."""
    container = place.container()
    process = os.open(f"/proc/{container.process.pid}", os.O_RDONLY)
    hook = [str(native_library("gpu-limit-hook")), f"--slice={place.slice}", "--repair"]
    roots = [f"--driver-root={place.node.library.parent}", f"--cgroup-root={place.tree}"]
    try:
        container.process.kill()
        container.process.wait()
        done = subprocess.run(
            [*hook, "--process", f"/proc/self/fd/{process}", *roots],
            pass_fds=(process,),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(process)
    assert (done.returncode, "No such process" in done.stderr) == (1, True)
    assert not (place.slice / "driver-limit").exists()


async def test_it_probes_at_its_start_and_when_it_is_asked(place: Place) -> None:
    """The report is for the agent; the log has it in fields."""
    report = place.run / "driver-limits"
    uuids = {card.uuid for card in place.node.view().cards}
    with capture_logs() as logs:
        async with place.keeper() as told:
            probed = logs[0]
            assert probed["event"] == "driver limits probed"
            assert (probed["backends"].keys(), probed["missing"]) == (uuids, "")
            assert report.read_text().startswith("driver=615.71.09\ndevice=GPU-")
            place.node.upgrade_driver("620.10")
            assert await told("probe") == {}
            assert report.read_text().startswith("driver=620.10\n")


async def test_it_ends_where_its_library_is_of_another_driver(place: Place) -> None:
    """A container that is started again gets the new one."""
    report = place.run / "driver-limits"
    keeper = LimitKeeper(place.run, str(place.directory), str(place.tree), young_seconds=0)
    stand_in = place.directory / "hook"
    stand_in.mkdir()
    text = f"#!/bin/sh\necho 'reason=/: nvmlInit_v2 answers 18 (x)' >{report}\n"
    (stand_in / "gpu-limit-hook").write_text(text)
    (stand_in / "gpu-limit-hook").chmod(0o755)
    os.environ["GPU_DEVICE_PLUGIN_NATIVE"] = str(stand_in)
    try:
        with pytest.raises(EdgeError, match="for the new driver's library"):
            await asyncio.wait_for(keeper.run(), 60)
    finally:
        del os.environ["GPU_DEVICE_PLUGIN_NATIVE"]
