"""`kubectl inspect cgpu`: the source's tables, in its own layout (R-570).

Columns are aligned as Go's tabwriter does it: a cell that ends with a tab belongs to a column, and
a column ends where a line has no such cell. Amounts are in memory units; the heading says what a
unit is (R-409).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from gpu_device_plugin.overview.node_cards import CardView, NodeCards

_GAP = 2
_UNITS = {1024: "GiB", 128: "128MiB"}


def summary(nodes: Sequence[NodeCards], addresses: Mapping[str, str]) -> str:
    """One line a node, and the sum; `addresses` are the nodes' IP addresses."""
    most = max((_columns(node) for node in nodes), default=0)
    has_waiting = any(node.waiting for node in nodes)
    heads = [f"GPU{index}(Allocated/Total)" for index in range(most)]
    heads += ["PENDING(Allocated)"] if has_waiting else []
    lines = [["NAME", "IPADDRESS", *heads, f"GPU Memory({_unit(nodes)})"]]
    for node in nodes:
        by_index = {card.index: f"{card.held_units}/{_units(card)}" for card in node.cards}
        cells = [by_index.get(index, "0/0") for index in range(most)]
        cells += [str(sum(node.waiting.values()) or "")] if has_waiting else []
        lines.append([node.name, addresses.get(node.name, "unknown"), *cells, _sum([node])])
    rule = len("\t".join(lines[1])) + 1 + 20 if nodes else 10
    total = ["Allocated/Total GPU Memory In Cluster:"], [f"{_sum(nodes)} ({_percent(nodes)}%)"]
    return _align([*lines, ["-" * rule], *total])


def details(nodes: Sequence[NodeCards], addresses: Mapping[str, str]) -> str:
    """A table a node with its pods, and the sum; the arguments are those of `summary`."""
    lines: list[list[str]] = []
    rule = 0
    for node in nodes:
        pods = _pod_lines(node)
        rule = rule or len("".join("\t".join(line) + "\n" for line in pods)) + 10
        heads = [f"GPU{index}(Allocated)" for index in range(_columns(node))]
        heads += ["Pending(Allocated)"] if node.waiting else []
        lines += [[""]] if lines else []
        lines += [
            ["NAME:", node.name],
            ["IPADDRESS:", addresses.get(node.name, "unknown")],
            [""],
            ["NAME", "NAMESPACE", *heads, ""],
            *pods,
            ["Allocated :", f"{_held(node)} ({_percent([node])}%)", ""],
            ["Total :", f"{_total([node])} ", ""],
            ["-" * rule],
        ]
    total = ["Allocated/Total GPU Memory In Cluster:", f"{_sum(nodes)} ({_percent(nodes)}%)", ""]
    return _align([*lines, [""], total])


def _pod_lines(node: NodeCards) -> list[list[str]]:
    """A line for each pod and card, and for each pod that waits for one."""
    columns = _columns(node)
    count = columns + bool(node.waiting)
    found = [
        (holder.pod, card.index, holder.units) for card in node.cards for holder in card.holders
    ]
    found += [(pod, columns, units) for pod, units in node.waiting.items()]
    return [
        [pod.name, pod.namespace, *(str(units) if at == k else "0" for k in range(count)), ""]
        for pod, at, units in found
    ]


def _columns(node: NodeCards) -> int:
    """One a card by its index; the index of a card that is left out has one too."""
    return max((card.index + 1 for card in node.cards), default=0)


def _units(card: CardView) -> int:
    """All of its units; of an unhealthy card those that are held, because the node offers no more of it."""
    return card.units if card.is_healthy else card.held_units


def _total(nodes: Iterable[NodeCards]) -> int:
    return sum(_units(card) for node in nodes for card in node.cards)


def _held(node: NodeCards) -> int:
    return node.held_units + sum(node.waiting.values())


def _sum(nodes: Sequence[NodeCards]) -> str:
    return f"{sum(map(_held, nodes))}/{_total(nodes)}"


def _percent(nodes: Sequence[NodeCards]) -> int:
    total = _total(nodes)
    return 100 * sum(map(_held, nodes)) // total if total else 0


def _unit(nodes: Iterable[NodeCards]) -> str:
    """What is counted; nodes with different units are named, for their sum means nothing."""
    units = sorted({node.unit_mib for node in nodes} or {1024})
    return " and ".join(_UNITS.get(unit, f"{unit}MiB") for unit in units)


def _align(lines: Sequence[Sequence[str]]) -> str:
    """The lines with their columns aligned, without spaces at their ends."""
    widths: list[dict[int, int]] = [{} for _ in lines]
    for column in range(max(map(len, lines), default=0)):
        # A last cell is in no column; a column ends at a line without it.
        placed = [(len(line) > column + 1, at) for at, line in enumerate(lines)]
        for has_column, run in groupby(placed, key=itemgetter(0)):
            places = [at for _, at in run] if has_column else []
            widest = max((len(lines[at][column]) for at in places), default=0) + _GAP
            for at in places:
                widths[at][column] = widest
    shown = [
        "".join(cell.ljust(width.get(at, 0)) for at, cell in enumerate(line)).rstrip()
        for line, width in zip(lines, widths, strict=True)
    ]
    return "\n".join(shown) + "\n"
