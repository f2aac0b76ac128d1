"""NVIDIA's device plugin and this one, each beside a stand-in kubelet, on one simulated node."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tools.harness.cluster.binaries import nvidia_path
from tools.harness.kubelet import StandInKubelet
from tools.harness.nvidia_plugin.machine import DRIVER_ROOT, entered, make_machine
from tools.harness.rig import Rig, running_rig

from gpu_device_plugin.simulation import driver_library
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_END_SECONDS = 120.0


class NvidiaPlugin:
    """Starts and ends NVIDIA's plugin; its log goes to a file.

    Attributes:
        kubelet: The one it registers with.
        log: What it writes.
        process: None before the first start.
    """

    def __init__(self, root: Path, cards: SimulatedNode) -> None:
        self.kubelet = StandInKubelet(root / "nvidia", seed=1)
        self.log = root / "nvidia.log"
        self.process: asyncio.subprocess.Process | None = None
        self._place = root / "machine"
        self._environment = {
            "PATH": os.environ["PATH"],
            # How long its first look at the health of its devices takes is not compared.
            "GPU_SIMULATOR_CARD_LIKE": "0",
            "LD_LIBRARY_PATH": str(cards.library.parent),
        }

    async def start(self, flags: Mapping[str, str]) -> None:
        """Start it; does not wait."""
        root = str(self._place / DRIVER_ROOT)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command("nvidia-device-plugin", {**flags, "driver-root-ctr-path": root}),
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    async def stop(self) -> int:
        """End it; its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_END_SECONDS):
            return await self.process.wait()

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self.process is not None and self.process.returncode is not None

    async def labels(self, flags: Mapping[str, str]) -> dict[str, str]:
        """The labels that its labeller, gpu-feature-discovery, would give the node."""
        once = {"oneshot": "true", "output-file": "", "no-timestamp": "true"}
        process = await asyncio.create_subprocess_exec(
            *self._command("gpu-feature-discovery", {**flags, **once}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return dict(line.split("=", 1) for line in output.decode().splitlines())

    def _command(self, program: str, flags: Mapping[str, str]) -> Sequence[str]:
        words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
        place = entered(self._place, self.kubelet.plugin_dir)
        return [*place, str(nvidia_path(program)), *words]


@asynccontextmanager
async def both(
    profile: str,
    flags: Mapping[str, str],
    cuts: Mapping[int, Sequence[str] | None] | None = None,
    fields: Sequence[str] = (),
    **ours: object,
) -> AsyncIterator[tuple[NvidiaPlugin, Rig]]:
    """NVIDIA's plugin and this one on the same cards, with the same flags, each with a kubelet.

    Args:
        profile: The simulated cards.
        flags: NVIDIA's, by name with underscores.
        cuts: Card -> its MIG instances in place of those of the profile; None: out of MIG mode.
        fields: Further fields of the simulated node, as `name=value`.
        **ours: Further settings of our agent.
    """
    with tempfile.TemporaryDirectory(prefix="side", dir="/tmp") as directory:
        async with running_rig(profile, is_started=False) as rig:
            for card, profiles in (cuts or {}).items():
                rig.cards.cut(card, profiles)
            driver_library.set_fields(rig.cards.state, list(fields))
            theirs = NvidiaPlugin(Path(directory), rig.cards)
            make_machine(Path(directory) / "machine", rig.cards)
            rig.enter = tuple(entered(Path(directory) / "machine", rig.kubelet.plugin_dir))
            await theirs.kubelet.start()
            try:
                settings = {"mode": "default", **flags, **ours}
                await asyncio.gather(theirs.start(flags), rig.start_agent(**settings))
                yield theirs, rig
            finally:
                await theirs.stop()
                await theirs.kubelet.stop()
