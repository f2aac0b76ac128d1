"""`gpu-device-plugin simulate`: creates a simulated node and changes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gpu_device_plugin.cli.program import Number
from gpu_device_plugin.simulation.node_profiles import MOST_CARDS, profile_names
from gpu_device_plugin.simulation.simulated_node import (
    DEFAULT_STATE,
    STATE_NAME,
    SimulatedCard,
    SimulatedNode,
    SimulatedNodeView,
    cdi_spec,
)

_MIB = 1024 * 1024
_Command = TypeVar("_Command", bound=Callable[..., None])


_state_option = click.option(
    "--state",
    type=click.Path(path_type=Path),
    envvar="GPU_SIMULATOR_STATE",
    default=DEFAULT_STATE,
    show_default=True,
    help=f"The node's file, or the directory that holds {STATE_NAME}.",
)
_card_option = click.option(
    "--card",
    type=Number(0),
    metavar="SLOT",
    required=True,
    help="The card's slot, as `show` numbers it.",
)


def _node(state: Path) -> SimulatedNode:
    return SimulatedNode(state / STATE_NAME if state.is_dir() else state)


@click.group()
def simulate() -> None:
    """Create a node of simulated GPUs and change its state.

    Programs that load the simulated libnvidia-ml.so.1 see every change at once. An agent takes
    that library with --nvml-library.
    """


@simulate.command()
@click.option("--profile", type=click.Choice(profile_names()), required=True)
@click.option(
    "--driver-version", help="Driver version, instead of the profile's; for instance 535.309.01."
)
@click.option(
    "--cards", type=Number(0, MOST_CARDS), help="Number of cards, instead of the profile's."
)
@click.option("--seed", help="Seed of the UUIDs; default: the file's path.")
@click.option("--keep", is_flag=True, help="Keep a node that already has these cards.")
@_state_option
def create(profile: str, state: Path, *, keep: bool, **chosen: Any) -> None:
    """Create a node. If --state is a directory, it also gets the driver's libraries."""
    make = SimulatedNode.keep if keep else SimulatedNode.create
    node = make(profile, state, **chosen)
    shown = node.view()
    click.echo(
        f"{node.state}: {len(shown.cards)} cards, driver {shown.driver_version}, "
        f"CUDA {shown.cuda_version}"
    )
    if state.is_dir():
        click.echo(f"use it with --nvml-library {node.library}")
    elif node.state != DEFAULT_STATE:
        click.echo(f"use it with GPU_SIMULATOR_STATE={node.state}")


def _add_command(
    name: str, text: str, change: Callable[..., None], *options: Callable[[_Command], _Command]
) -> None:
    """A command that does one thing to the node: `change` gets it, and the options by their names."""

    def command(state: Path, **given: Any) -> None:
        change(_node(state), **given)

    for option in (_state_option, *reversed(options)):
        command = option(command)
    simulate.command(name, help=text)(command)


_add_command(
    "xid",
    "Make a card report the XID CODE.",
    SimulatedNode.xid,
    click.argument("code", type=Number(1, 1000)),
    _card_option,
    click.option(
        "--instance", type=Number(0), help="The MIG instance it happens in, by NVML's index."
    ),
)
_add_command(
    "lost",
    "Make a card fall off the bus. It reports XID 79, and every call on it fails.",
    SimulatedNode.lose,
    _card_option,
)
_add_command(
    "restore",
    "Make a lost card answer again, or end the need of a reset.",
    SimulatedNode.restore,
    _card_option,
)
_add_command("unplug", "Take a card out of the node.", SimulatedNode.unplug, _card_option)
_add_command(
    "plug",
    "Put an unplugged card back. Programs see it when they initialise NVML again.",
    SimulatedNode.plug,
    _card_option,
)
_add_command("hang", "Make every driver call block until `unhang`.", SimulatedNode.hang)
_add_command("unhang", "Let blocked calls continue.", SimulatedNode.unhang)
_add_command(
    "slow",
    "Make NVML's calls on a card take SECONDS, 0 for as usual.",
    SimulatedNode.slow,
    click.argument("seconds", type=Number(0, 3600)),
    _card_option,
    click.option("--call", default="", help="Only those whose names begin so."),
)
_add_command(
    "temperature",
    "Set a card's temperature.",
    SimulatedNode.temperature,
    click.argument("celsius", type=Number(0, 200)),
    _card_option,
)
_add_command(
    "driver-upgrade",
    "Replace the driver by VERSION, for instance 550.54.15.",
    SimulatedNode.upgrade_driver,
    click.argument("version"),
)


@simulate.command()
@_card_option
@click.option(
    "--memory-mib", type=Number(0), help="Memory taken by programs that are not simulated."
)
@click.option("--gpu-percent", type=Number(0, 100), help="Utilisation to show.")
@_state_option
def use(card: int, memory_mib: int | None, gpu_percent: int | None, state: Path) -> None:
    """Set how much of a card is in use."""
    if memory_mib is None and gpu_percent is None:
        raise click.UsageError("give --memory-mib, --gpu-percent or both")
    _node(state).use(card, memory_mib=memory_mib, gpu_percent=gpu_percent)


@simulate.command()
@click.argument("profiles", nargs=-1)
@click.option("--whole", is_flag=True, help="Take the card out of MIG mode instead.")
@_card_option
@_state_option
def cut(profiles: tuple[str, ...], card: int, state: Path, *, whole: bool) -> None:
    """Cut a card into MIG instances.

    PROFILES are for instance 3g.20gb 1c.3g.20gb. Earlier instances are destroyed. Without PROFILES
    the card is in MIG mode and has none.
    """
    if whole and profiles:
        raise click.UsageError("give either PROFILES or --whole")
    _node(state).cut(card, None if whole else profiles)


@simulate.command()
@_state_option
def show(state: Path) -> None:
    """Show the node: its cards, their state, and who uses them."""
    shown = _node(state).view()
    Console().print(_cards_table(shown))
    if shown.processes:
        Console().print(_processes_table(shown))


@simulate.command()
@_state_option
def cdi(state: Path) -> None:
    """Print a CDI spec for the cards.

    Write it to a file in /etc/cdi. The container runtime has to read it (containerd:
    enable_cdi), and the agent has to name cards by it (--device-list-strategy cdi-cri). --state of
    the node must be a directory.
    """
    click.echo(json.dumps(cdi_spec(_node(state)), indent=2))


def _cards_table(shown: SimulatedNodeView) -> Table:
    hanging = ", [red]every call hangs[/red]" if shown.is_hanging else ""
    table = Table(
        title=f"{shown.profile}: driver {shown.driver_version}, CUDA {shown.cuda_version}{hanging}",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("card", "model", "UUID", "MiB in use", "GPU %", "°C", "state"):
        # If there is no room for all of it, only the beginning of a UUID is shown.
        is_long = heading == "UUID"
        table.add_column(
            heading, no_wrap=not is_long, overflow="ellipsis", min_width=12 if is_long else None
        )
    for card in shown.cards:
        table.add_row(
            str(card.slot),
            card.name,
            card.uuid,
            f"{card.used_bytes // _MIB} / {card.memory_mib}",
            str(card.gpu_percent),
            str(card.temperature_celsius),
            _state(card),
        )
    return table


def _state(card: SimulatedCard) -> str:
    """The worst fault of a card, or else its MIG layout."""
    if not card.is_present:
        return "unplugged"
    if card.is_lost:
        return "[red]lost[/red]"
    if card.recovery_action:
        return "[yellow]needs a reset[/yellow]"
    if card.is_mig:
        cut = ", ".join(sorted({instance.profile for instance in card.instances}))
        return f"MIG: {len(card.instances)} x {cut}"
    return "[green]well[/green]"


def _processes_table(shown: SimulatedNodeView) -> Table:
    table = Table(title="processes", box=SIMPLE_HEAD)
    for heading in ("pid", "card", "memory", "program"):
        table.add_column(heading)
    for process in shown.processes:
        memory = f"{process.used_bytes // _MIB} MiB"
        table.add_row(str(process.pid), str(process.card), memory, process.name)
    return table
