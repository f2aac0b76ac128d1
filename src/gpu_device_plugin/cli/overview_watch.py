"""`kubectl gpu map --watch`: as many nodes as the terminal has room for, and since when they are old."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from gpu_device_plugin.apps.overview.cluster_cards import ClusterCards
from gpu_device_plugin.cli.overview_screen import OverviewScreen

Draw = Callable[[ClusterCards, str], None]


def stale_text(trouble: str, seconds: float, now: datetime.datetime) -> str:
    """Since when what is shown may be out of date, and why; empty where there is no trouble."""
    if not trouble:
        return ""
    since = now - datetime.timedelta(seconds=seconds)
    return f"not up to date since {since:%H:%M:%S}: {trouble}"


class WatchScreen:
    """Draws the map again and again: on a terminal in place, else one below the other."""

    def __init__(self, console: Console, *, is_wide: bool) -> None:
        self._console = console
        self._screen = OverviewScreen(console)
        self._is_wide = is_wide

    @contextmanager
    def drawing(self) -> Iterator[Draw]:
        """A function that draws these nodes, and since when they are old, unless they are drawn already."""
        last: object = None

        def draw(cards: ClusterCards, stale: str) -> None:
            nonlocal last
            if last != (cards, stale, self._console.size):
                last = (cards, stale, self._console.size)
                show(cards, stale)

        if not self._console.is_terminal:
            show = self._print
            yield draw
            return
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:

            def show(cards: ClusterCards, stale: str) -> None:
                live.update(self._fitted(cards, stale), refresh=True)

            yield draw

    def _print(self, cards: ClusterCards, stale: str) -> None:
        self._screen.cards(cards, is_wide=self._is_wide)
        if stale:
            self._console.print(Text(stale, style="bold yellow"))

    def _fitted(self, cards: ClusterCards, stale: str) -> RenderableType:
        """Whole nodes until the terminal is full, then how many are left out; the first one may be cut."""
        below = [Text(cards.summary), *([Text(stale, style="bold yellow")] if stale else [])]
        room = self._console.height - sum(map(self._height, below)) - 1  # for what is left out
        width, lines = self._console.width, list[list[Segment]]()
        shown, total = 0, len(cards.nodes) + len(cards.unreadable)
        for node in self._screen.drawn_nodes(cards, is_wide=self._is_wide):
            drawn = [Segment.adjust_line_length(line, width, pad=False) for line in node]
            if lines and len(lines) + len(drawn) > room:
                break
            lines += drawn
            shown += 1
        parts = [Segments([part for line in lines[:room] for part in (*line, Segment.line())])]
        if shown < total or len(lines) > room:
            left = f"{total - shown} of {total} nodes" if shown < total else "cards"
            hint = f"no room for {left}; name the nodes to be shown, or enlarge the terminal"
            below.insert(0, Text(hint, style="yellow", overflow="ellipsis", no_wrap=True))
        return Group(*parts, *below)

    def _height(self, part: RenderableType) -> int:
        return len(self._console.render_lines(part))
