"""`gpu-device-plugin mps-daemon`: serve MPS to the replicas of this node."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from gpu_device_plugin.cli.directories import directory_option
from gpu_device_plugin.cli.kubeconfig import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.config.nvidia_settings import NvidiaSettings, nvidia_configuration
from gpu_device_plugin.config.sources import OWN_VARIABLES, LogFormat

_Command = TypeVar("_Command", bound=Callable[..., None])
_defaults = NvidiaSettings()
_FIRST_LABEL_SECONDS = 5.0


def _as_the_agents(key: str, text: str) -> Callable[[_Command], _Command]:
    """An option with the flag, the environment variable and the default of the agent's setting."""
    return click.option(
        f"--{key.replace('_', '-')}",
        envvar=OWN_VARIABLES[key][0],
        show_envvar=True,
        default=getattr(_defaults, key),
        show_default=bool(getattr(_defaults, key)),
        metavar=key.rpartition("_")[2].upper(),
        help=text,
    )


@click.command("mps-daemon")
@_as_the_agents("config_file", "NVIDIA's configuration file, as the agent's.")
@_as_the_agents(
    "config_file_srcdir", "Or a directory of such files; the node's label names the one to use."
)
@_as_the_agents("default_config", "File of that directory for nodes without such a label.")
@_as_the_agents("fallback_strategies", "Which file is used without label and default.")
@_as_the_agents("node_label", "The node label that names the file.")
@_as_the_agents(
    "mps_root", "Host directory for pipes, logs and the lock; by default flags.mpsRoot of the file."
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
@click.option(
    "--settle-seconds",
    type=click.FloatRange(min=0),
    default=4.0,
    show_default=True,
    help="Time that the agent gets to withdraw cards before their compute mode changes.",
)
@click.option(
    "--node-name",
    envvar="NODE_NAME",
    show_envvar=True,
    default="",
    metavar="NAME",
    help="With --config-file-srcdir: the name of this Node object.",
)
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
    settings = msgspec.convert(given, NvidiaSettings)
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
