"""`kubectl gpu resize`: another size for a container that runs."""

import math
from functools import partial

import click

from gpu_device_plugin.cli.kubeconfig_options import Listing, Seconds, listing
from gpu_device_plugin.cli.pod_argument import PODS, parse_pod
from gpu_device_plugin.cli.program import Number
from gpu_device_plugin.errors import ConfigError


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=PODS)
@click.option(
    "-c",
    "--container",
    metavar="NAME",
    default="",
    help="Default: the only container with a slice.",
)
@click.option(
    "--mem", type=Number(1, 100_000), metavar="UNITS", help="Memory, in units of the node."
)
@click.option("--core", type=Number(5, 100), metavar="PERCENT", help="Compute, a multiple of 5.")
@click.option(
    "--within",
    "within_seconds",
    type=Seconds(),
    metavar="TIME",
    help="Give up after this time, such as 60s.",
)
@click.option("--wait", "is_waited_for", is_flag=True, help="Wait until it is in effect.")
@listing("-n", usual="that of the context")
def resize(  # noqa: PLR0913, PLR0917 - each is an option
    pod: str,
    container: str,
    mem: int | None,
    core: int | None,
    within_seconds: float | None,
    is_waited_for: bool,  # noqa: FBT001
    listing: Listing,
) -> None:
    """Give a running container another size.

    What is not named stays as it is. A slice grows only into what is free on its card, as far as
    the operator allows its namespace. It waits where nothing is free, and shrinks when less is in use.

    With --wait the exit code is 0 when it is in effect, and 1 with the reason when it cannot be.
    """
    from gpu_device_plugin.overview.resizing import WantedResize, run_resize

    if mem is None and core is None:
        raise ConfigError("name --mem, --core or both")
    where, name = parse_pod(pod, listing.namespace or None, listing.cluster.namespace)
    within = None if within_seconds is None else math.ceil(within_seconds)
    wanted = WantedResize(where, name, container, mem, core, within)
    tell = partial(click.echo, err=True)
    click.echo(
        listing.cluster.ask(lambda api: run_resize(api, wanted, tell, is_waited_for=is_waited_for))
    )
