"""`gpu-device-plugin mig`: cut the cards of this node into MIG instances."""

import asyncio
from pathlib import Path
from typing import Any

import click

from gpu_device_plugin.cli.directories import directory_option
from gpu_device_plugin.cli.kubeconfig import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.logs import configure_logs
from gpu_device_plugin.config.sources import LogFormat
from gpu_device_plugin.errors import EdgeError


@click.group()
def mig() -> None:
    """Cut this node's cards into MIG instances; agents never do."""


@mig.command("apply")
@click.argument("profile", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be destroyed and made.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--watch",
    is_flag=True,
    help="Follow the node's label gpu-device-plugin/mig-profile instead of PROFILE, until SIGTERM.",
)
@directory_option("nvml_library", "Path of libnvidia-ml.so.1; by default the system's.")
@directory_option("kubelet_dir", "The kubelet's directory; the kubelet knows who holds a GPU.")
@directory_option("node_name", "With --watch: the name of this Node object. Also NODE_NAME.")
@kubeconfig_options
def apply_profile(
    profile: str | None, *, watch: bool, dry_run: bool, yes: bool, **places: Any
) -> None:
    """Cut every card into PROFILE: MIG1g to MIG7g, or a profile's own name such as 3g.20gb.

    Prints what would be destroyed, and asks. Nothing is changed while a pod of the node holds a
    GPU, or a process uses a card. Cards that are cut so already stay as they are. Needs root.

    Exit codes: 0 the cards are cut so, 1 somebody uses a card or NVML refused, 2 no such profile.
    """
    if watch == bool(profile):
        raise click.UsageError("give either PROFILE or --watch")
    if watch:
        asyncio.run(_watch(**places))
    else:
        _apply(profile or "", places, is_dry=dry_run, is_sure=yes)


def _apply(profile: str, places: dict[str, Any], *, is_dry: bool, is_sure: bool) -> None:
    from gpu_device_plugin.apps.cards.mig_apply import apply

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


async def _watch(
    node_name: str, nvml_library: str, kubelet_dir: str, kubeconfig: Path | None, context: str
) -> None:
    import os

    from gpu_device_plugin.apps.cards.mig_apply import MigWatch, Place

    name = node_name or os.environ.get("NODE_NAME", "")
    if not name:
        raise click.UsageError("--watch needs --node-name (NODE_NAME)")
    configure_logs("info", LogFormat.JSON)
    api = KubeconfigChoice(kubeconfig, context).api()
    try:
        await MigWatch(api, Place(name, nvml_library, Path(kubelet_dir))).run()
    finally:
        await api.close()
