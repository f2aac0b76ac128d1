"""Replicas of MPS are offered only while a daemon serves them, and every card is given back as it was.

The shipped daemon and agent on simulated cards, with a stand-in for NVIDIA's control daemon.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.small_disk import fill, small_tmpfs
from tests.simulator.programs import hear, run, started
from tools.harness import forked
from tools.harness.rig import HASTY, NODE, Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.disk.mps_serving import ServingLock, read_served, waits_for
from gpu_device_plugin.errors import ConfigError, StorageError

GPU = "nvidia.com/gpu"
CONFIG = """
version: v1
flags: {mpsRoot: %s}
sharing:
  mps:
    resources: [{name: nvidia.com/gpu, replicas: 4, devices: all}]
"""
TWO = """
version: v1
flags: {mpsRoot: %s}
sharing:
  mps:
    resources:
      - {name: nvidia.com/gpu, replicas: 4, devices: [0, 1], rename: nvidia.com/gpu.big}
      - {name: nvidia.com/gpu, replicas: 10, devices: [2], rename: nvidia.com/gpu.small}
"""
USE = """
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = ctypes.c_void_p()
say(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
"""
EXCLUSIVE, DEFAULT = 3, 0


class Mps:
    """The daemon of one rig."""

    def __init__(self, rig: Rig, text: str = CONFIG) -> None:
        self.rig = rig
        self.root = rig.root / "mps"
        self.config = rig.root / "nvidia.yaml"
        self.config.write_text(text % self.root)
        self.choice = [f"--config-file={self.config}"]
        self.control = Path(rig.cards.library).with_name("nvidia-cuda-mps-control")
        self.log = rig.root / "mps.log"

    def choose_by_label(self, directory: Path) -> dict[str, Any]:
        """Write the files four, two and whole, and serve the one that the label names, else four."""
        for name, replicas in (("four", 4), ("two", 2)):
            text = CONFIG.replace("replicas: 4", f"replicas: {replicas}")
            (directory / name).write_text(text % self.root)
        (directory / "whole").write_text("version: v1\n")
        where = {"config_file_srcdir": directory, "default_config": "four", "mps_root": self.root}
        self.choice = [f"--{key.replace('_', '-')}={value}" for key, value in where.items()]
        self.choice += [f"--node-name={NODE}", f"--kubeconfig={self.rig.root / 'kubeconfig'}"]
        return where

    @asynccontextmanager
    async def running(self, settle_seconds: float = 1) -> AsyncIterator[forked.ForkedProcess]:
        """The daemon, killed afterwards if it is still there."""
        with self.log.open("ab") as log:
            words = (
                "mps-daemon",
                f"--settle-seconds={settle_seconds}",
                *self.choice,
                f"--nvml-library={self.rig.cards.library}",
                f"--mps-control={self.control}",
                f"--kubelet-dir={self.rig.root / 'k'}",
            )
            process = forked.start(HASTY, words, os.environ, log)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.wait()

    async def kill(self, daemon: forked.ForkedProcess) -> None:
        """Kill it; the agent, where there is one, then offers nothing that it served."""
        daemon.kill()
        await daemon.wait()
        await allocatable(self, 0)

    async def says(self, words: str) -> None:
        """Wait until the daemon's log has these words."""
        await until(lambda: words in self.log.read_text(), 60, lambda: self.log.read_text()[-3000:])

    def modes(self) -> list[int]:
        """The compute mode of each card."""
        return [card.compute_mode for card in self.rig.cards.view().cards]

    def kill_control(self) -> None:
        """Kill the control daemon of nvidia.com/gpu."""
        pid = (self.root / GPU / "pipe" / "nvidia-cuda-mps-control.pid").read_text()
        os.kill(int(pid), signal.SIGKILL)

    def told(self, resource: str = GPU) -> list[str]:
        """What the resource's control daemon was told, its cards first."""
        return (self.root / resource / "log" / "commands").read_text().splitlines()


def quit_control(mps: Mps) -> None:
    """End control daemons that a killed daemon left behind."""
    for pid in mps.root.glob("*/*/pipe/nvidia-cuda-mps-control.pid"):
        os.kill(int(pid.read_text()), signal.SIGKILL)


async def allocatable(mps: Mps, amount: int, resource: str = GPU) -> None:
    """Wait until the kubelet shows so many."""
    rig = mps.rig
    await until(
        lambda: rig.kubelet.allocatable(resource) == amount,
        30,
        lambda: rig.log.read_text()[-2000:] + mps.log.read_text()[-2000:],
    )


async def test_replicas_are_offered_while_the_daemon_serves_with_their_limits() -> None:
    """R-308, R-704, R-705: and at its end the cards have the mode that they had."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        await rig.start_agent(mode="default", config_file=mps.config)
        await rig.until_page(f"the MPS daemon of {mps.root} does not serve yet")
        assert rig.kubelet.allocatable(GPU) == 0
        async with mps.running() as daemon:
            await allocatable(mps, 16)
            assert mps.modes() == [EXCLUSIVE] * 4
            assert mps.told() == [
                ",".join(card.uuid for card in rig.cards.view().cards),
                *(f"set_default_device_pinned_mem_limit {i} 4040M" for i in range(4)),
                "set_default_active_thread_percentage 25",
            ]
            daemon.send_signal(signal.SIGTERM)
            assert await daemon.wait() == 0
        await allocatable(mps, 0)
        assert mps.modes() == [DEFAULT] * 4
        assert not (mps.root / "compute-modes.json").exists()


async def test_containers_become_clients_and_share_a_card_that_is_exclusive() -> None:
    """R-705: by the pipe directory and shared memory; who is no client gets no context."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        await rig.start_agent(mode="default", config_file=mps.config)
        async with mps.running():
            await allocatable(mps, 16)
            assert (await rig.admit("client", {GPU: 1})).is_admitted
            options = await rig.kubelet.start_container(rig.uid("client"), "main-0")
            assert options.env["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe"
            mounts = {path: host for path, (host, _) in options.mounts.items()}
            assert mounts["/dev/shm"] == str(mps.root / "shm")  # noqa: S108
            pipe = mounts[f"/mps/{GPU}/pipe"]
            assert pipe == str(mps.root / GPU / "pipe")
            with started(
                rig.cards, USE + "sys.stdin.read()", CUDA_MPS_PIPE_DIRECTORY=pipe
            ) as client:
                assert hear(client) == 0
                assert run(rig.cards, USE, CUDA_MPS_PIPE_DIRECTORY=pipe) == 0
                assert run(rig.cards, USE) == 46


async def test_the_daemon_follows_the_nodes_label_when_no_pod_holds_a_replica(
    tmp_path: Path,
) -> None:
    """R-730: agent and daemon take the same file of a directory; a bad choice leaves it in force."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        where = mps.choose_by_label(tmp_path)
        await rig.start_agent(mode="default", **where)
        async with mps.running():
            await allocatable(mps, 16)
            for name in ("first", "last"):
                assert (await rig.admit(name, {GPU: 1})).is_admitted
            await rig.set_labels(config="two")
            await mps.says('"default/first holds GPUs, default/last holds GPUs"')
            await rig.until_page(
                "while pods hold its replicas: default/first holds GPUs, default/last"
            )
            await rig.delete(rig.uid("first"))
            await mps.says('"default/last holds GPUs"')
            assert mps.told()[-1] == "set_default_active_thread_percentage 25"
            await rig.delete(rig.uid("last"))
            await allocatable(mps, 8)
            assert mps.told()[-1] == "set_default_active_thread_percentage 50"
            await rig.set_labels(config="none")
            await mps.says("specified config none does not exist")
            assert mps.modes() == [EXCLUSIVE] * 4
            await rig.set_labels(config="whole")
            await allocatable(mps, 4)
            assert mps.modes() == [DEFAULT] * 4
            await mps.says("the configuration shares no card by MPS")


async def test_after_a_kill_nothing_is_offered_and_the_next_start_undoes_the_mode() -> None:
    """The kernel releases the lock; a mode that the operator had set comes back, not the daemon's.

    Before that no card is offered, under whatever configuration.
    """
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        set_mode = "nvml.nvmlInit(); say(nvml.nvmlDeviceSetComputeMode(nvml.nvmlDeviceGetHandleByIndex(1), 2))"
        run(rig.cards, set_mode)
        await rig.start_agent(mode="default", config_file=mps.config)
        async with mps.running() as daemon:
            await allocatable(mps, 16)
            await mps.kill(daemon)
            assert mps.modes() == [EXCLUSIVE] * 4
        mps.config.write_text(f"version: v1\nflags: {{mpsRoot: {mps.root}}}\n")
        await until(lambda: bool(rig.events("ConfigurationWaits")), 60)
        assert rig.kubelet.allocatable(GPU) == 0
        async with mps.running():
            await allocatable(mps, 4)
            assert mps.modes() == [DEFAULT, 2, DEFAULT, DEFAULT]
        quit_control(mps)


async def test_a_lost_card_keeps_no_other_from_its_servers_or_from_its_mode() -> None:
    """It is lost while it is served: the end comes on request, and the next start serves the others."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        async with mps.running() as daemon:
            await mps.says("MPS served")
            rig.cards.lose(3)
            daemon.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await daemon.wait() == 0
        assert mps.modes()[:3] == [DEFAULT] * 3
        async with mps.running() as daemon:
            await mps.says('"unreadable": "3 (GPU_IS_LOST)"')
            assert mps.told()[0].count("GPU-") == 3
            rig.cards.restore(3)
            daemon.send_signal(signal.SIGTERM)
            assert await daemon.wait() == 0
        assert mps.modes() == [DEFAULT] * 4


async def test_the_mode_of_a_card_that_was_away_at_a_new_start_of_its_server_is_known_still() -> (
    None
):
    """It comes back exclusive, and has its mode before at the end."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        async with mps.running() as daemon:
            await mps.says("MPS served")
            rig.cards.unplug(3)
            mps.kill_control()
            await until(lambda: mps.log.read_text().count("MPS served") == 2, 60)
            rig.cards.plug(3)
            daemon.send_signal(signal.SIGTERM)
            assert await daemon.wait() == 0
        assert mps.modes() == [DEFAULT] * 4
        assert not (mps.root / "compute-modes.json").exists()


async def test_a_card_that_comes_is_served_too() -> None:
    """By new servers, once no pod holds a replica; until then the others are offered as before."""
    async with running_rig(is_started=False) as rig:
        rig.cards.unplug(3)
        mps = Mps(rig)
        await rig.start_agent(mode="default", config_file=mps.config)
        async with mps.running():
            await allocatable(mps, 12)
            assert mps.modes() == [EXCLUSIVE] * 3 + [DEFAULT]
            assert (await rig.admit("client", {GPU: 1})).is_admitted
            rig.cards.plug(3)
            await until(lambda: bool(rig.events("ConfigurationWaits")), 60)
            (event,) = rig.events("ConfigurationWaits")
            assert event["message"].startswith("card 3 (GPU-")
            await mps.says("serve a new card")
            assert rig.kubelet.allocatable(GPU) == 12
            await rig.delete(rig.uid("client"))
            await allocatable(mps, 16)
            await until(lambda: mps.log.read_text().count("MPS served") == 2, 60)
            assert mps.told()[0].count("GPU-") == 4
            assert mps.modes() == [EXCLUSIVE] * 4


async def test_a_pod_that_came_while_the_cards_were_announced_keeps_its_card() -> None:
    """An agent that has not read the changed configuration yet offers whole cards still."""
    async with running_rig(mode="default") as rig:
        mps = Mps(rig)
        async with mps.running(settle_seconds=15):
            await until(lambda: read_served(mps.root).startswith("GPU-"), 60)
            assert (await rig.admit("late", {GPU: 1})).is_admitted
            await mps.says("default/late holds GPUs")
            assert mps.modes() == [DEFAULT] * 4
            assert read_served(mps.root) == ""
            assert "default/late holds GPUs" in waits_for(mps.root)


async def test_control_daemons_that_outlived_a_killed_daemon_are_ended_at_the_next_start() -> None:
    """Also those of a resource that is shared no more: their servers have contexts on the cards."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig, TWO)
        async with mps.running() as daemon:
            await mps.says("MPS served")
            await mps.kill(daemon)
        left = list(mps.root.glob("*/*/pipe/nvidia-cuda-mps-control.pid"))
        assert len(left) == 2
        mps.config.write_text(CONFIG % mps.root)
        async with mps.running():
            await until(lambda: mps.log.read_text().count("MPS served") == 2, 60)
            assert not any(pid.exists() for pid in left)
            assert waits_for(mps.root) == ""


async def test_a_card_that_somebody_uses_is_not_taken() -> None:
    """Neither one with a process, nor while a pod holds a whole card; then it is."""
    async with running_rig(mode="default") as rig:
        mps = Mps(rig)
        # The kubelet admits what asks for a resource that nobody has registered yet, and gives nothing.
        await until(lambda: rig.kubelet.allocatable(GPU) > 0, 60)
        assert (await rig.admit("holder", {GPU: 1})).is_admitted
        async with mps.running():
            await mps.says("default/holder holds GPUs")
            with started(rig.cards, USE + "sys.stdin.read()") as user:
                assert hear(user) == 0
                await mps.says(f"process {user.pid} uses card 0")
                assert mps.modes() == [DEFAULT] * 4
            await rig.delete(rig.uid("holder"))
            await mps.says("MPS served")
            assert mps.modes() == [EXCLUSIVE] * 4


async def test_each_resource_has_a_server_with_its_own_cards_and_limits() -> None:
    """A card that is not shared keeps its mode."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig, TWO)
        async with mps.running():
            await mps.says("MPS served")
            uuids = [card.uuid for card in rig.cards.view().cards]
            assert mps.modes() == [EXCLUSIVE] * 3 + [DEFAULT]
            assert mps.told("nvidia.com/gpu.big")[0] == ",".join(uuids[:2])
            assert mps.told("nvidia.com/gpu.small") == [
                uuids[2],
                "set_default_device_pinned_mem_limit 0 1616M",
                "set_default_active_thread_percentage 10",
            ]
            async with mps.running() as second:
                assert await second.wait() == 2
            await mps.says("another MPS daemon holds")


async def test_a_server_that_ends_is_started_again() -> None:
    """Its cards have their mode back in between, and nothing is offered."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        async with mps.running():
            await mps.says("MPS served")
            mps.kill_control()
            await mps.says("ended with -9")
            await until(lambda: mps.log.read_text().count("MPS served") == 2, 60)
            assert mps.modes() == [EXCLUSIVE] * 4


@pytest.mark.parametrize(
    ("profile", "replicas", "words"),
    [
        ("v100", 17, "maximum allowed replicas exceeded: 17 > 16"),
        ("a100", 49, "maximum allowed replicas exceeded: 49 > 48"),
    ],
)
async def test_what_the_node_cannot_serve_is_not_ready_in_nvidias_words(
    profile: str, replicas: int, words: str
) -> None:
    """R-704: at the agent; the daemon waits and changes no card."""
    async with running_rig(profile, is_started=False) as rig:
        mps = Mps(rig, CONFIG.replace("replicas: 4", f"replicas: {replicas}"))
        await rig.start_agent(mode="default", config_file=mps.config)
        await rig.until_page(words)
        async with mps.running():
            await mps.says(words)
            assert set(mps.modes()) == {DEFAULT}


def test_the_lock_tells_what_a_living_daemon_serves_and_nothing_of_a_dead_one(
    tmp_path: Path,
) -> None:
    """Also while the text of an ended one is still in the file."""
    program = (
        "import sys, pathlib; from gpu_device_plugin.disk.mps_serving import ServingLock; "
        "lock = ServingLock(pathlib.Path(sys.argv[1])); lock.take(); lock.serve('x'); "
        "print('on', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        assert read_served(tmp_path) == "x"
        holder.kill()
    assert read_served(tmp_path) == ""
    assert read_served(tmp_path / "missing") == ""
    ServingLock(tmp_path).take()
    assert read_served(tmp_path) == ""


def test_a_text_that_cannot_be_written_whole_leaves_the_one_before(tmp_path: Path) -> None:
    """On a full disk nothing was served any more, though the daemon went on."""
    with small_tmpfs(tmp_path / "mps", 64) as root:
        lock = ServingLock(root)
        lock.take()
        lock.serve("before")
        fill(root / "filler")
        with pytest.raises(StorageError, match="cannot be written: No space left"):
            lock.serve("after")
        assert read_served(root) == "before"
        (root / "filler").unlink()
        lock.serve("after")
        assert read_served(root) == "after"


def test_a_reader_sees_one_text_or_the_other_and_never_none(tmp_path: Path) -> None:
    """While the daemon writes again and again; a text cut short would be another list of cards."""
    lock = ServingLock(tmp_path)
    lock.take()
    texts = {size: "GPU-a\n" * size for size in (1, 10_000)}
    lock.serve(texts[1])
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            for text in texts.values():
                lock.serve(text)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {read_served(tmp_path) for _ in range(2000)} <= set(texts.values())
    finally:
        is_over.set()
        writer.join()
    with pytest.raises(ConfigError, match="another MPS daemon holds"):
        ServingLock(tmp_path).take()
