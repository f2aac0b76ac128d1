"""`gpu-device-plugin mig`, `mps-daemon` and `limit-keeper`: the commands that change this node's cards."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import structlog

from gpu_device_plugin import __version__
from gpu_device_plugin.cli.kubeconfig_options import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.program import Number, until_sigterm
from gpu_device_plugin.cli.setting_options import setting_option
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.settings.nvidia_configuration import nvidia_configuration
from gpu_device_plugin.settings.nvidia_settings import NvidiaSettings
from gpu_device_plugin.settings.setting import load

_FIRST_LABEL_SECONDS = 5.0
_library = setting_option("nvml_library", "Path of libnvidia-ml.so.1; by default the system's.")
_kubelet = setting_option(
    "kubelet_dir", "The kubelet's directory; the kubelet knows who holds a GPU."
)


@click.group()
def mig() -> None:
    """Cut this node's cards into MIG instances; agents never do."""


@mig.command("apply")
@click.argument("profile", required=False)
@click.option("--dry-run", is_flag=True, help="Only print what would be destroyed and made.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--watch",
    is_flag=True,
    help="Follow the node's label gpu-device-plugin/mig-profile instead of PROFILE, until SIGTERM.",
)
@_library
@_kubelet
@setting_option("node_name", "With --watch: the name of this Node object.")
@kubeconfig_options
def apply_profile(
    profile: str | None, *, watch: bool, dry_run: bool, yes: bool, **places: Any
) -> None:
    """Cut every card of this node into MIG instances of PROFILE.

    PROFILE is MIG1g to MIG7g, or a profile's own name such as 3g.20gb. The command prints what
    it would destroy, and asks. It changes nothing while a pod of the node holds a GPU or a process
    uses a card. Cards that have these instances already stay as they are. Needs root.

    Exit codes: 0 every card has these instances, 1 a card is in use or NVML refused, 2 there is no
    such profile.
    """
    if watch == bool(profile):
        raise click.UsageError("give either PROFILE or --watch")
    if watch:
        _watch_label(**places)
    else:
        _apply(profile or "", places, is_dry=dry_run, is_sure=yes)


def _apply(profile: str, places: dict[str, Any], *, is_dry: bool, is_sure: bool) -> None:
    from gpu_device_plugin.cards_tools.mig_apply import apply

    def agree() -> bool:
        if is_dry:
            return False
        return is_sure or click.confirm("Cut the cards now?")

    kubelet = Path(places["kubelet_dir"])
    library = places["nvml_library"]
    is_cut = asyncio.run(apply(profile, library, kubelet, say=click.echo, agree=agree))
    if is_dry and not is_cut:
        click.echo("nothing was changed (--dry-run)")
    elif not is_cut:
        raise EdgeError("nothing was changed")


def _watch_label(
    node_name: str, nvml_library: str, kubelet_dir: str, cluster: KubeconfigChoice
) -> None:
    from gpu_device_plugin.cards_tools.mig_apply import MigWatch, NodeToCut

    if not node_name:
        raise click.UsageError("--watch needs --node-name (NODE_NAME)")
    _begin("mig_apply", node=node_name)
    node = NodeToCut(node_name, nvml_library, Path(kubelet_dir))
    cluster.ask(lambda api: MigWatch(api, node).run())


@click.command("mps-daemon")
@setting_option("config_file", "NVIDIA's configuration file, as the agent's.")
@setting_option(
    "config_file_srcdir",
    "A directory of such files instead; the node's label names the one to use.",
)
@setting_option("default_config", "File of that directory for nodes without such a label.")
@setting_option("fallback_strategies", "Which file is used without label and default.")
@setting_option("node_label", "The node label that names the file.")
@setting_option(
    "mps_root", "Host directory for pipes, logs and the lock; by default flags.mpsRoot of the file."
)
@_library
@click.option(
    "--mps-control",
    default="nvidia-cuda-mps-control",
    show_default=True,
    metavar="PATH",
    help="NVIDIA's MPS control daemon.",
)
@_kubelet
@click.option(
    "--settle-seconds",
    type=Number(0, kind=float),
    metavar="SECONDS",
    default=4.0,
    show_default=True,
    help="Time for the agent to withdraw cards before their compute mode changes.",
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
    cluster: KubeconfigChoice,
    **given: str,
) -> None:
    """Serve MPS to the replicas of `sharing.mps`, until SIGTERM.

    Sets the compute mode EXCLUSIVE_PROCESS on their cards, and undoes it at the end (after a
    SIGKILL: at the next start). Starts one control daemon for each resource, with limits of memory
    and threads. It then holds a lock, without which the agent offers no replica. Waits while a
    card is in use. Follows the configuration as the agent does, once no pod holds a replica. Needs
    root.

    Exit codes: 0 ended on request, 2 wrong settings or a second daemon on this node.
    """
    from gpu_device_plugin.cards_tools.mps_daemon import MpsPlaces

    settings, _ = load(NvidiaSettings, given, {})
    if bool(settings.config_file) == bool(settings.config_file_srcdir):
        raise click.UsageError("give either --config-file or --config-file-srcdir")
    if settings.config_file_srcdir and not node_name:
        raise click.UsageError("--config-file-srcdir needs --node-name (NODE_NAME)")
    root = nvidia_configuration(settings).mps_root
    if not root:
        raise click.UsageError("--mps-root (MPS_ROOT) or flags.mpsRoot of the file is needed")
    places = MpsPlaces(
        Path(root), nvml_library, mps_control, Path(kubelet_dir), settle_seconds=settle_seconds
    )
    _begin("mps_daemon", node=node_name, mps_root=root)
    asyncio.run(_serve_mps(places, settings, node_name, cluster))


@click.command("limit-keeper")
@setting_option("run_dir", "The --run-dir of the agent on this node.")
@click.option(
    "--driver-root",
    default="/",
    show_default=True,
    metavar="PATH",
    help="Directory below which libnvidia-ml.so.1 is found.",
)
@click.option("--cgroup-root", default="", hidden=True)
def limit_keeper(run_dir: str, driver_root: str, cgroup_root: str) -> None:
    """Keep the driver's memory limits of slices, until SIGTERM.

    Proves that NVIDIA's driver limits memory here, and writes the proof into the run directory.
    Sets limits again that slices have lost, when the agent asks: the agent itself may not. Needs
    root, CAP_SYS_ADMIN, the host's processes and its tree of cgroup v2 at /sys/fs/cgroup.

    Exit codes: 0 ended on request, 1 the kernel has another driver than this container's library.
    """
    from gpu_device_plugin.cards_tools.limit_keeper import LimitKeeper

    _begin("limit_keeper", run_dir=run_dir, driver_root=driver_root)
    asyncio.run(until_sigterm(LimitKeeper(Path(run_dir), driver_root, cgroup_root).run()))


def _begin(program: str, **fields: str) -> None:
    structlog.get_logger(program).info("starting", version=__version__, **fields)


async def _serve_mps(
    places: Any, settings: NvidiaSettings, node: str, cluster: KubeconfigChoice
) -> None:
    from gpu_device_plugin.cards_tools.mps_daemon import MpsDaemon
    from gpu_device_plugin.cards_tools.node_label import ChosenConfiguration, NodeLabel

    api = cluster.api() if settings.config_file_srcdir else None
    label = NodeLabel(api, node, settings.node_label) if api is not None else None
    following = asyncio.ensure_future(label.run()) if label is not None else None
    if label is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_LABEL_SECONDS):
                await label.changed.wait()
    try:
        await until_sigterm(MpsDaemon(places, ChosenConfiguration(settings, label)).run())
    finally:
        if following is not None:
            following.cancel()
        if api is not None:
            await api.close()
