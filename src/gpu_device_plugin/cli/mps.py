"""`gpu-device-plugin mps-daemon`: serve MPS to the replicas of this node."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gpu_device_plugin.cli.kubeconfig import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.cli.setting_options import setting_option
from gpu_device_plugin.config.nvidia_configuration import nvidia_configuration
from gpu_device_plugin.config.nvidia_settings import NvidiaSettings
from gpu_device_plugin.config.setting import LogFormat, load

_FIRST_LABEL_SECONDS = 5.0


@click.command("mps-daemon")
@setting_option("config_file", "NVIDIA's configuration file, as the agent's.")
@setting_option(
    "config_file_srcdir", "Or a directory of such files; the node's label names the one to use."
)
@setting_option("default_config", "File of that directory for nodes without such a label.")
@setting_option("fallback_strategies", "Which file is used without label and default.")
@setting_option("node_label", "The node label that names the file.")
@setting_option(
    "mps_root", "Host directory for pipes, logs and the lock; by default flags.mpsRoot of the file."
)
@setting_option("nvml_library", "Path of libnvidia-ml.so.1; by default the system's.")
@click.option(
    "--mps-control",
    default="nvidia-cuda-mps-control",
    show_default=True,
    metavar="PATH",
    help="NVIDIA's MPS control daemon.",
)
@setting_option("kubelet_dir", "The kubelet's directory; the kubelet knows who holds a GPU.")
@click.option(
    "--settle-seconds",
    type=click.FloatRange(min=0),
    default=4.0,
    show_default=True,
    help="Time that the agent gets to withdraw cards before their compute mode changes.",
)
@setting_option("node_name", "With --config-file-srcdir: the name of this Node object.")
@kubeconfig_options
def mps_daemon(  # noqa: PLR0913 - one for each option
    *,
    nvml_library: str,
    mps_control: str,
    kubelet_dir: str,
    settle_seconds: float,
    node_name: str,
    kubeconfig: Path | None,
    context: str,
    **given: str,
) -> None:
    """Serve MPS to the replicas of `sharing.mps`, until SIGTERM.

    Sets the compute mode EXCLUSIVE_PROCESS on their cards and undoes it at the end; after a
    SIGKILL at the next start. Starts one control daemon for each resource, with limits of memory
    and threads, and then holds a lock, without which the agent offers no replica. Waits while
    somebody uses a card. Follows the configuration as the agent does, once no pod holds a
    replica. Needs root.

    Exit codes: 0 ended on request, 2 wrong settings or a second daemon on this node.
    """
    from gpu_device_plugin.apps.cards.mps_daemon import MpsPlaces

    configure_logs("info", LogFormat.JSON)
    settings, _ = load(NvidiaSettings, given, {})
    if bool(settings.config_file) == bool(settings.config_file_srcdir):
        raise click.UsageError("give either --config-file or --config-file-srcdir")
    if settings.config_file_srcdir and not node_name:
        raise click.UsageError("--config-file-srcdir needs --node-name (NODE_NAME)")
    root = nvidia_configuration(settings).mps_root
    if not root:
        raise click.UsageError("--mps-root (MPS_ROOT) or flags.mpsRoot of the file is needed")
    places = MpsPlaces(
        Path(root),
        nvml_library,
        mps_control,
        Path(kubelet_dir),
        settle_seconds=settle_seconds,
    )
    asyncio.run(_run(places, settings, node_name, KubeconfigChoice(kubeconfig, context)))


async def _run(places: Any, settings: NvidiaSettings, node: str, access: KubeconfigChoice) -> None:
    from gpu_device_plugin.apps.cards.mps_daemon import MpsDaemon
    from gpu_device_plugin.apps.cards.node_label import ChosenConfiguration, NodeLabel

    api = access.api() if settings.config_file_srcdir else None
    label = NodeLabel(api, node, settings.node_label) if api is not None else None
    following = asyncio.ensure_future(label.run()) if label is not None else None
    if label is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LABEL_SECONDS):
                await label.changed.wait()
    daemon = asyncio.ensure_future(MpsDaemon(places, ChosenConfiguration(settings, label)).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, daemon.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await daemon
    finally:
        if following is not None:
            following.cancel()
        if api is not None:
            await api.close()
