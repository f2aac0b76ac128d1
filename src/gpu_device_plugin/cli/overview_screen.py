"""Draws what `kubectl gpu` finds: 80 columns are enough, colours are not needed.

With `map --watch` as many nodes as the terminal has room for, and since when they are old.
"""

import datetime
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.overview.capacity import NodeCapacity
from gpu_device_plugin.overview.finding import Finding, Level
from gpu_device_plugin.overview.node_cards import CardView, ClusterCards, NodeCards
from gpu_device_plugin.overview.slice_use import SliceUse
from gpu_device_plugin.overview.totals import NamespaceTotal, sum_of
from gpu_device_plugin.overview.verdicts import NodeVerdict, node_kinds
from gpu_device_plugin.overview.why import PodStory

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red", "bright_cyan")
_BAR = 16
_WIDE_BAR = 32
_WIDE = 120
_ANY_WIDTH = 10_000
_INDENT = 3
_MOST_VERDICTS = 20
_MOST_KINDS = 6
_MIB = 1024 * 1024

Lines = list[list[Segment]]


class OverviewScreen:
    """Draws on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def cards(self, cluster: ClusterCards, *, is_wide: bool = False) -> None:
        for lines in self.drawn_nodes(cluster, is_wide=is_wide):
            self._print(lines)
        self._console.print(Text(cluster.summary))

    def drawn_nodes(self, cluster: ClusterCards, *, is_wide: bool = False) -> Iterator[Lines]:
        """The lines of each node, drawn when it is asked for.

        They may be longer than the terminal's: a pod's name is in one piece, to be found and copied.
        """
        bar = _WIDE_BAR if self._console.width >= _WIDE else _BAR
        for node in cluster.nodes:
            table = _card_table(node, bar, is_wide=is_wide)
            yield self._lines(Group(*_node(node, table)), self._width_for(table, _INDENT))
        for name, why in cluster.unreadable.items():
            yield self._lines(Text(f"{name}: {why}", style="red"), self._console.width)

    def _width_for(self, table: Table, indent: int = 0) -> int:
        """The terminal's, or as much more as it takes to break no word of the table."""
        options = self._console.options.update(max_width=_ANY_WIDTH)
        width = indent + Measurement.get(self._console, options, table).maximum
        if width <= self._console.width:
            return self._console.width
        flexible = [column for column in table.columns if not column.no_wrap]
        for column in flexible:
            texts = [column.header, *column.cells]
            sizes = [Measurement.get(self._console, options, text) for text in texts]
            word = max(size.minimum for size in sizes)
            width -= max(size.maximum for size in sizes) - word
            # Only the last one may be wider than that: rich shares out what is left by its own rule.
            column.width = None if column is flexible[-1] else word
        return max(self._console.width, width)

    def _print(self, lines: Lines) -> None:
        for line in lines:
            self._console.print(Segments([*line, Segment.line()]), soft_wrap=True)

    def _lines(self, part: RenderableType, width: int) -> Lines:
        options = self._console.options.update(width=width)
        return [_trim(line) for line in self._console.render_lines(part, options, pad=False)]

    def uses(self, uses: Sequence[SliceUse], silent: Sequence[str], scope: str = "") -> None:
        """A line a slice, and what could not be asked; `scope` says which pods are asked for."""
        table = _table(
            "pod", "card", right=("memory", "of MiB", "%", "compute", "of %", "refused", "held by")
        )
        for use in uses:
            table.add_row(*_use(use))
        if uses:
            self._print(self._lines(table, self._width_for(table)))
        elif not silent:
            self._console.print(f"no pod{scope} holds a slice")
        for line in silent:
            self._hanging("no figures  ", line, "yellow")

    def totals(self, found: Mapping[str, NamespaceTotal], group: str, scope: str = "") -> None:
        """What each group holds, as the page has it; `scope` says which pods are asked for."""
        table = _table(group, right=("pods", "GiB", "compute, cards", "whole devices"))
        for name, total in found.items():
            table.add_row(name, str(len(total.pods)), total.gib, total.cards, str(total.devices))
        if len(found) > 1:
            both = sum_of(found)
            table.add_section()
            table.add_row("all", str(len(both.pods)), both.gib, both.cards, str(both.devices))
        if found:
            self._print(self._lines(table, self._width_for(table)))
        else:
            self._console.print(f"no pod{scope} holds anything")

    def capacity(self, capacities: Sequence[NodeCapacity], asked: str, nothing: str) -> None:
        """How many more pods fit, node by node; `nothing` says why there is none."""
        if not capacities:
            self._console.print(nothing)
            return
        table = _table("node", right=("more pods",))
        table.add_column("then", overflow="fold")
        for each in capacities:
            style = "green" if each.pods else "dim"
            table.add_row(each.node, Text(str(each.pods), style=style), each.then)
        self._print(self._lines(table, self._width_for(table)))
        total = sum(each.pods for each in capacities)
        fit = "fits" if total == 1 else "fit"
        self._console.print(Text(f"{count_noun(total, 'more pod')} of {asked} {fit}", style="bold"))

    def findings(self, found: Sequence[Finding], examined: str) -> None:
        for finding in found:
            is_problem = finding.level is Level.PROBLEM
            style = "bold red" if is_problem else "yellow"
            self._hanging(f"{finding.level.value:<9}", finding.what, style)
            if finding.cure:
                self._hanging("      -> ", finding.cure)
        problems = sum(finding.level is Level.PROBLEM for finding in found)
        notes = count_noun(len(found) - problems, "note")
        self._console.print(f"{examined}: {count_noun(problems, 'problem')}, {notes}")

    def story(self, story: PodStory, *, is_wide: bool = False) -> None:
        """The verdict and what to do first, then what is known; `is_wide`: with the cards of each node."""
        head = Text.assemble((story.pod, "bold"), f"  {story.state}")
        self._print(self._lines(head, self._console.width))
        for cure in story.cures:
            self._hanging("  ->      ", cure, "bold")
        parts = (
            ("asks", story.asks),
            ("created", story.created),
            ("holds", story.holds),
            ("said", story.messages),
        )
        for label, lines in parts:
            for at, line in enumerate(lines):
                self._hanging(f"  {label if at == 0 else '':<8}", line)
        if not is_wide:
            self._kinds(story.nodes)
            return
        for verdict in story.nodes[:_MOST_VERDICTS]:
            self._verdict(verdict)
        if left := story.nodes[_MOST_VERDICTS:]:
            self._hanging("  node    ", f"and {count_noun(len(left), 'node')} more")

    def _kinds(self, verdicts: Sequence[NodeVerdict]) -> None:
        kinds = node_kinds(verdicts)
        is_short = any(not kind.most.is_never for kind in kinds)
        for kind in kinds[:_MOST_KINDS]:
            style = "green" if kind.most.is_fit else "red"
            text = f"{kind.names}: {kind.line(is_short=is_short)}"
            self._hanging("  nodes   " if len(kind.nodes) > 1 else "  node    ", text, style)
        if left := sum(len(kind.nodes) for kind in kinds[_MOST_KINDS:]):
            self._hanging("  nodes   ", f"and {left} more, see -o wide")

    def _verdict(self, verdict: NodeVerdict) -> None:
        style = "green" if verdict.is_fit else "red"
        self._hanging("  node    ", f"{verdict.node}: {verdict.verdict}", style)
        for line in verdict.cards:
            self._hanging("          ", line)
        if verdict.hint:
            self._hanging("          ", f"what fits: {verdict.hint}", "green")

    def _hanging(self, label: str, text: str, style: str = "") -> None:
        grid = Table.grid(padding=0)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label), Text(text, style=style))
        self._print(self._lines(grid, self._console.width))


def _trim(line: list[Segment]) -> list[Segment]:
    """Without spaces at the end, which a narrower terminal would show as a line."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []


def _node(node: NodeCards, table: Table) -> Iterator[RenderableType]:
    marks = ((f"{mark}, ", "yellow") for mark in node.marks)
    yield Text.assemble((node.name, "bold"), "  ", *marks, node.kind_text)
    yield Padding(table, (0, 0, 0, _INDENT), expand=False)
    for line in _instances(node):
        yield Padding(Text(line), (0, 0, 0, _INDENT))
    if node.waiting:
        listed = ", ".join(f"{p} ({count_noun(n, 'unit')})" for p, n in node.waiting.items())
        yield Padding(Text(f"without a card yet: {listed}", style="yellow"), (0, 0, 0, _INDENT))
    yield Text()


def _instances(node: NodeCards) -> Iterator[str]:
    """A line a MIG instance."""
    for told, pods in node.told_instances:
        held = ", ".join(map(str, pods)) or "free"
        replicas = told.get("replicas", 1)
        of = f" ({len(pods)} of {replicas} replicas)" if pods and replicas != 1 else ""
        name = (
            f"card {told['card']} {told['profile']}"
            if "profile" in told
            else f"instance {told['uuid']}"
        )
        yield f"{name}: {held}{of}"


def _card_table(node: NodeCards, width: int, *, is_wide: bool) -> Table:
    marks = {  # each pod of the node with its letter and a colour
        pod: (letter, _COLOURS[n % len(_COLOURS)])
        for n, (pod, letter) in enumerate(node.letters.items())
    }
    amounts = ("units", "compute") if node.has_compute else ("units",)
    table = _table("card", "memory", right=() if node.is_whole else amounts)
    tells_enforcer = is_wide and any(card.memory_by for card in node.cards)
    heads = ("MiB", "UUID", "memory by") if tells_enforcer else ("MiB", "UUID")
    for head in heads if is_wide else ():
        table.add_column(head)
    for column in table.columns:
        column.no_wrap = True
    table.add_column("who", no_wrap=is_wide)
    for card in node.cards:
        cells: list[RenderableType] = [str(card.index), _bar(card, marks, width)]
        if not node.is_whole:
            cells.append(f"{card.held_units}/{card.units}")
        if node.has_compute:
            cells.append(f"{sum(holder.percent for holder in card.holders)} %")
        if is_wide:
            cells += [str(card.memory_mib), card.uuid, card.memory_by][: len(heads)]
        who = _who(card, marks, is_wide=is_wide)
        if device := node.offer.devices.get(card.uuid):
            who.append(f" ({len(card.pods)} of {device.replicas} replicas)")
        table.add_row(*cells, who)
    return table


def _bar(card: CardView, marks: dict[PodRef, tuple[str, str]], width: int) -> Text:
    """A sign a unit; where there are more units than signs, each pod gets its part, at least one."""
    if not card.is_healthy:
        return Text("x" * min(width, card.units), style="red")
    signs = min(width, card.units)
    bar, held = Text(), 0
    for at, pod in enumerate(card.pods):
        # Replicas of a card are parts of nothing: each pod has an equal part of the bar.
        letter, colour = marks[pod]
        part = signs * (at + 1) // len(card.pods) - len(bar)
        bar.append(letter * part, style=f"black on {colour}")
    for holder in card.holders:
        letter, colour = marks[holder.pod]
        held += holder.units
        part = max(1, round(held * signs / card.units) - len(bar)) if card.units else 0
        bar.append(letter * part, style=f"black on {colour}")
    bar.truncate(signs)
    waiting = signs - len(bar) - round(card.free_units * signs / max(1, card.units))
    bar.append("?" * max(0, waiting), style="yellow")
    bar.append("." * (signs - len(bar)), style="dim")
    return bar


def _who(card: CardView, marks: dict[PodRef, tuple[str, str]], *, is_wide: bool) -> Text:
    named: list[tuple[PodRef, str]] = [(pod, "") for pod in card.pods]
    for holder in card.holders:
        compute = f", {holder.percent} %" if holder.percent else ""
        by = f"; {holder.enforcers}" if holder.enforcers else ""
        amounts = f" ({count_noun(holder.units, 'unit')}{compute}{by})" if is_wide else ""
        named.append((holder.pod, amounts + ("" if holder.is_granted else " (reserved)")))
    parts = (Text.assemble((f"{marks[pod][0]}={pod}", marks[pod][1]), more) for pod, more in named)
    who = Text("\n" if is_wide else ", ").join(parts)
    why = card.fault if is_wide else card.fault.partition(" since ")[0]
    out = ": ".join(filter(None, ("unhealthy", why))) + ("; " if who else "")
    return who if card.is_healthy else Text.assemble((out, "red"), who)


def _use(use: SliceUse) -> list[str]:
    limit = int(use.limit_bytes) // _MIB
    used = None if use.used_bytes is None else int(use.used_bytes) // _MIB
    ratio = "" if used is None or not limit else f"{100 * used // limit}"
    busy = "-" if use.used_ratio is None else f"{100 * use.used_ratio:.0f} %"
    return [
        f"{use.namespace}/{use.pod} {use.container}",
        f"{use.node} {use.card}".strip(),
        "-" if used is None else str(used),
        str(limit),
        ratio,
        busy,
        f"{use.percent:.0f}" if use.percent else "-",
        "-" if use.refused is None else f"{use.refused:.0f}",
        use.enforcers or "-",
    ]


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def stale_text(trouble: str, seconds: float, now: datetime.datetime) -> str:
    """Since when what is shown may be out of date, and why; empty where there is no trouble."""
    if not trouble:
        return ""
    since = now - datetime.timedelta(seconds=seconds)
    return f"not up to date since {since:%H:%M:%S}: {trouble}"


class Drawn(Protocol):
    """What a screen can draw."""

    @property
    def draw(self) -> Callable[[OverviewScreen], None]:
        """Draws it."""


Shown = ClusterCards | Drawn
Draw = Callable[[Shown, str], None]


class WatchScreen:
    """Draws the map or another text again and again: on a terminal in place, else one below the other."""

    def __init__(self, console: Console, *, is_wide: bool) -> None:
        self._console = console
        self._screen = OverviewScreen(console)
        self._is_wide = is_wide

    @contextmanager
    def drawing(self) -> Iterator[Draw]:
        """A function that draws this, and since when it is old, unless that is drawn already."""
        last: object = None

        def draw(shown: Shown, stale: str) -> None:
            nonlocal last
            if last != (shown, stale, self._console.size):
                last = (shown, stale, self._console.size)
                show(shown, stale)

        if not self._console.is_terminal:
            show = self._print
            yield draw
            return
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:

            def show(shown: Shown, stale: str) -> None:
                live.update(self._fit(shown, stale), refresh=True)

            yield draw

    def _print(self, shown: Shown, stale: str) -> None:
        if isinstance(shown, ClusterCards):
            self._screen.cards(shown, is_wide=self._is_wide)
        else:
            shown.draw(self._screen)
        if stale:
            self._console.print(Text(stale, style="bold yellow"))

    def _fit(self, shown: Shown, stale: str) -> RenderableType:
        """Whole nodes, or lines, until the terminal is full, then how many are left out; the first may be cut."""
        blocks, total, what, last = self._blocks(shown)
        below = [Text(last)] if last else []
        below += [Text(stale, style="bold yellow")] if stale else []
        heights = (len(self._console.render_lines(line)) for line in below)
        room = self._console.height - sum(heights) - 1  # for what is left out
        width, lines, count = self._console.width, list[list[Segment]](), 0
        for block in blocks:
            drawn = [Segment.adjust_line_length(line, width, pad=False) for line in block]
            if lines and len(lines) + len(drawn) > room:
                break
            lines += drawn
            count += 1
        parts = [Segments([part for line in lines[:room] for part in (*line, Segment.line())])]
        if count < total or len(lines) > room:
            left = f"{total - count} of {total} {what}" if count < total else "cards"
            names = "name the nodes to be shown, or " if what == "nodes" else ""
            hint = f"no room for {left}; {names}enlarge the terminal"
            below.insert(0, Text(hint, style="yellow", overflow="ellipsis", no_wrap=True))
        return Group(*parts, *below)

    def _blocks(self, shown: Shown) -> tuple[Iterable[Lines], int, str, str]:
        """What is shown whole or not at all, how many there are, their name, and what stands below them."""
        if isinstance(shown, ClusterCards):
            nodes = self._screen.drawn_nodes(shown, is_wide=self._is_wide)
            return nodes, len(shown.nodes) + len(shown.unreadable), "nodes", shown.summary
        size, colours = self._console.size, self._console.color_system
        own = Console(
            width=size.width,
            file=io.StringIO(),
            force_terminal=True,
            color_system=colours,  # type: ignore[arg-type]
        )
        with own.capture() as drawn:
            shown.draw(OverviewScreen(own))
        text = Text.from_ansi(drawn.get().rstrip("\n"))
        lines = [list(line.render(self._console)) for line in text.split("\n", allow_blank=True)]
        return ([line] for line in lines), len(lines), "lines", ""
