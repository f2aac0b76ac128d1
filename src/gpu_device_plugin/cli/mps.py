"""`gpu-device-plugin mps-daemon`: serve MPS to the replicas of this node."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import click

from gpu_device_plugin.cli.directories import directory_option
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.config.nvidia_settings import NvidiaSettings, nvidia_configuration
from gpu_device_plugin.config.sources import LogFormat


@click.command("mps-daemon")
@click.option(
    "--config-file",
    envvar="CONFIG_FILE",
    show_envvar=True,
    required=True,
    metavar="PATH",
    help="NVIDIA's configuration file, as the agent's.",
)
@click.option(
    "--mps-root",
    envvar="MPS_ROOT",
    show_envvar=True,
    metavar="PATH",
    help="Host directory for pipes, logs and the lock; by default flags.mpsRoot of the file.",
)
@directory_option("nvml_library", "Path of libnvidia-ml.so.1; by default the system's.")
@click.option(
    "--mps-control",
    default="nvidia-cuda-mps-control",
    show_default=True,
    metavar="PATH",
    help="NVIDIA's MPS control daemon.",
)
@directory_option("kubelet_dir", "The kubelet's directory; the kubelet knows who holds a GPU.")
def mps_daemon(
    config_file: str, mps_root: str | None, nvml_library: str, mps_control: str, kubelet_dir: str
) -> None:
    """Serve MPS to the replicas of `sharing.mps`, until SIGTERM.

    Sets the compute mode EXCLUSIVE_PROCESS on their cards and undoes it at the end; after a
    SIGKILL at the next start. Starts one control daemon for each resource, with limits of memory
    and threads, and then holds a lock, without which the agent offers no replica. Waits while
    somebody uses a card. Needs root.
    """
    from gpu_device_plugin.apps.cards.mps_daemon import MpsDaemon, MpsPlaces

    configure_logs("info", LogFormat.JSON)
    settings = NvidiaSettings(config_file=config_file, mps_root=mps_root)
    root = nvidia_configuration(settings).mps_root
    if not root:
        raise click.UsageError("--mps-root (MPS_ROOT) or flags.mpsRoot of the file is needed")
    places = MpsPlaces(Path(root), nvml_library, mps_control, Path(kubelet_dir))

    async def run() -> None:
        task = asyncio.ensure_future(
            MpsDaemon(places, lambda: nvidia_configuration(settings)).run()
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
