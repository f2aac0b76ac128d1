"""Commands for upgrade and uninstall, run by the chart's hooks or by a person."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_device_plugin.cli.kubeconfig_options import KubeconfigChoice, kubeconfig_options
from gpu_device_plugin.cli.program import Number
from gpu_device_plugin.cli.setting_options import setting_option
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import EdgeError

# What these commands need is imported in them, so that the agent does not load it.
if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.objects.fleet import Fleet

NAME = "gpu-device-plugin"
_Command = TypeVar("_Command", bound=Callable[..., None])


def _installation_options(command: _Command) -> _Command:
    options = (
        click.option(
            "--namespace",
            default=NAME,
            show_default=True,
            metavar="NAMESPACE",
            help="Namespace of the agents' DaemonSet.",
        ),
        click.option(
            "--daemonset",
            default=NAME,
            show_default=True,
            metavar="NAME",
            help="Name of that DaemonSet.",
        ),
        kubeconfig_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _timeout_option(seconds: int, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--timeout",
        type=Number(1, 86400),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=text,
    )


def _with_fleet(
    work: "Callable[[Fleet], Coroutine[Any, Any, None]]",
    namespace: str,
    daemonset: str,
    cluster: KubeconfigChoice,
) -> None:
    from gpu_device_plugin.kubernetes.objects.fleet import Fleet

    cluster.ask(lambda api: work(Fleet(api, namespace, daemonset)))


@click.command()
@_timeout_option(240, "How long to wait for all nodes.")
@click.option(
    "--missing-ok",
    is_flag=True,
    help="End with 0 where there is no such DaemonSet, as the chart's hook does.",
)
@_installation_options
def uninstall(timeout: int, missing_ok: bool, **installation: Any) -> None:  # noqa: FBT001 click's
    """Make every agent withdraw from its node.

    Marks the nodes and waits until each agent has removed what no running pod needs. The
    chart's pre-delete hook runs this; with plain manifests run it before `kubectl delete`.
    """
    from gpu_device_plugin.install_hooks.uninstall import Uninstall

    needs = not missing_ok
    _with_fleet(
        lambda fleet: Uninstall(fleet, click.echo, needs_agents=needs).run(timeout), **installation
    )


@click.command("clear-nodes")
@_timeout_option(60, "How long to wait for the agents to end.")
@_installation_options
def clear_nodes(timeout: int, **installation: Any) -> None:
    """Remove what former agents left on the Node objects.

    Removes labels and annotations. Waits until the agents have ended; nodes with an agent's pod are left alone. The chart's post-delete
    hook runs this; with plain manifests run it after `kubectl delete`.
    """
    from gpu_device_plugin.install_hooks.uninstall import clear_nodes as clear
    from gpu_device_plugin.install_hooks.uninstall import left_by_controller
    from gpu_device_plugin.kubernetes.objects.survey import Survey

    async def work(fleet: "Fleet") -> None:
        cleared = await clear(Survey(fleet.api), fleet, timeout, click.echo)
        click.echo(f"labels and annotations removed from {count_noun(len(cleared), 'node')}")
        for name in cleared:
            click.echo(f"  {name}")
        click.echo(left_by_controller(installation["namespace"], installation["daemonset"]))

    _with_fleet(work, **installation)


@click.command("check-upgrade")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in NodeMode]),
    required=True,
    help="The new --mode.",
)
@click.option(
    "--memory-unit",
    type=click.Choice([unit.value for unit in MemoryUnit]),
    required=True,
    help="The new --memory-unit.",
)
@click.option("--upgrades-from", metavar="VERSION", help="Oldest release that may be upgraded.")
@click.option(
    "--without-claims",
    is_flag=True,
    help="The new agents prepare no claims: refuse while pods hold slices by claims.",
)
@_installation_options
def check_upgrade(
    mode: str,
    memory_unit: str,
    upgrades_from: str | None,
    *,
    without_claims: bool,
    **installation: Any,
) -> None:
    """Refuse settings that would change slices held by pods.

    Lists pods that hold slices on nodes whose memory unit or mode would change, and exits with 2.
    Also refuses to upgrade a release older than --upgrades-from, and to upgrade with
    --without-claims while pods hold claims. The chart's pre-upgrade hook runs this.
    """
    from gpu_device_plugin.install_hooks.upgrade import check_release
    from gpu_device_plugin.install_hooks.upgrade import check_upgrade as check

    unit = MemoryUnit(memory_unit)

    async def work(fleet: "Fleet") -> None:
        if upgrades_from:
            await check_release(fleet, upgrades_from)
        nodes = await check(fleet, NodeMode(mode), unit, has_claims=not without_claims)
        publish = "publishes" if nodes == 1 else "publish"
        click.echo(f"{count_noun(nodes, 'node')} {publish} cards; no pod prevents the upgrade")

    _with_fleet(work, **installation)


@click.command()
@setting_option("state_dir", "The agent's --state-dir.")
@setting_option("run_dir", "The agent's --run-dir.")
@setting_option("library_dir", "The agent's --library-dir.")
@setting_option("kubelet_dir", "The kubelet's directory; the kubelet knows what is in use.")
@setting_option("cdi_dir", "The agent's --cdi-dir.")
@click.option(
    "--root", default="/", show_default=True, metavar="PATH", help="Where the node's / is mounted."
)
@click.option("--force", is_flag=True, help="Also remove what is in use, or may be.")
def cleanup(root: str, *, force: bool, **directories: str) -> None:
    """Remove from this node what a former agent has left.

    Needs root, and refuses to run while an agent serves the node. Files of slices whose pods
    still exist are kept and listed; the exit code is then 1.
    """
    from gpu_device_plugin.install_hooks.cleanup import Places, clean

    paths = {key: Path(root) / path.lstrip("/") for key, path in directories.items()}
    places = Places(**{key.removesuffix("_dir"): path for key, path in paths.items()})
    outcome = asyncio.run(clean(places, is_forced=force))
    for line in outcome.removed:
        click.echo(f"removed {line}")
    if not outcome.removed:
        click.echo("there was nothing to remove" if not outcome.in_use else "everything is in use")
    if outcome.in_use:
        listed = "".join(f"\n  {line}" for line in outcome.in_use)
        raise EdgeError(
            f"in use, and kept:{listed}\nDelete these pods and run cleanup again, or give "
            f"--force: running containers keep what they have mounted, and cannot start again"
        )
