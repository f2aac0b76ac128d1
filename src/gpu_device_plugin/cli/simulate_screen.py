"""How a simulated node looks on a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gpu_device_plugin.simulation.view import CardView, NodeView

_MIB = 1024 * 1024


def print_node(shown: NodeView) -> None:
    """The cards, then who uses them."""
    Console().print(_cards_table(shown))
    if shown.processes:
        Console().print(_processes_table(shown))


def _cards_table(shown: NodeView) -> Table:
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


def _state(card: CardView) -> str:
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


def _processes_table(shown: NodeView) -> Table:
    table = Table(title="processes", box=SIMPLE_HEAD)
    for heading in ("pid", "card", "memory", "program"):
        table.add_column(heading)
    for process in shown.processes:
        memory = f"{process.used_bytes // _MIB} MiB"
        table.add_row(str(process.pid), str(process.card), memory, process.name)
    return table
