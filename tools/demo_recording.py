"""Renders a run of the demo as an SVG that plays: `python -m tools.demo_recording docs/demo.svg`.

Lines appear when the demo wrote them (each after a tenth to a whole second), the last ones stay in view.
"""

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

_ROWS, _COLUMNS = 32, 90
_WIDTH, _HEIGHT, _SIZE = 8.4, 18, 14
_LEAST_PAUSE, _MOST_PAUSE, _REST_SECONDS = 0.12, 1.0, 6.0
_INK, _GROUND = "#e3e6e9", "#14171a"
_SPINNER = re.compile("[\u2800-\u28ff]")  # its frames would be a line each
_Line = tuple[float, Text]


def recorded(words: Sequence[str]) -> list[_Line]:
    """A program's lines, each with the second after the start at which it is shown."""
    lines, at, before = [], 0.0, time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            now = time.monotonic()
            at, before = at + min(max(now - before, _LEAST_PAUSE), _MOST_PAUSE), now
            text = Text.from_ansi(line.rstrip())
            if not _SPINNER.match(text.plain):
                lines.append((at, text))
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}: nothing recorded")
    return lines


def svg(lines: Sequence[_Line]) -> str:
    """The recording, played again and again."""
    whole = lines[-1][0] + _REST_SECONDS
    width, height = round(_COLUMNS * _WIDTH), (_ROWS + 1) * _HEIGHT
    rows = "".join(_row(number, at / whole, text, whole) for number, (at, text) in enumerate(lines))
    scroll = [(at / whole, max(0, number + 1 - _ROWS)) for number, (at, _) in enumerate(lines)]
    times = ";".join(f"{at:.4f}" for at, _ in [(0.0, 0), *scroll])
    moves = ";".join(f"0 {-by * _HEIGHT}" for _, by in [(0.0, 0), *scroll])
    motion = (
        f'<animateTransform attributeName="transform" type="translate" calcMode="discrete" '
        f'dur="{whole:.1f}s" repeatCount="indefinite" keyTimes="{times}" values="{moves}"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="make demo in a terminal"><rect width="100%" height="100%" rx="6" fill="{_GROUND}"/>'
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{_SIZE}" fill="{_INK}" '
        f">{motion}{rows}</g></svg>\n"
    )


def _row(number: int, at: float, text: Text, whole: float) -> str:
    shown = (
        f'<animate attributeName="opacity" calcMode="discrete" dur="{whole:.1f}s" '
        f'repeatCount="indefinite" keyTimes="0;{at:.4f}" values="0;1"/>'
    )
    return f'<g opacity="0">{"".join(_spans(text, (number + 1) * _HEIGHT))}{shown}</g>'


def _spans(text: Text, y: int) -> Iterator[str]:
    """Parts of one style each; a terminal's column keeps its place whatever font is there."""
    edges = sorted({0, len(text), *(end for span in text.spans for end in (span.start, span.end))})
    for start, end in itertools.pairwise(edges):
        part = text.plain[start:end]
        styles = [s.style for s in text.spans if s.start <= start and end <= s.end]
        style = Style.combine([Style.null(), *(s for s in styles if isinstance(s, Style))])
        x, width = 10 + start * _WIDTH, len(part) * _WIDTH
        if style.bgcolor:
            ground = style.bgcolor.get_truecolor(SVG_EXPORT_THEME).hex
            size = f'width="{width:.1f}" height="{_HEIGHT}"'
            yield f'<rect x="{x:.1f}" y="{y - 14}" {size} fill="{ground}"/>'
        if part.strip():
            ink = style.color.get_truecolor(SVG_EXPORT_THEME).hex if style.color else _INK
            weight = ' font-weight="bold"' if style.bold else ""
            kept = escape(part).replace(" ", "\u00a0")
            yield f'<text x="{x:.1f}" y="{y}" fill="{ink}"{weight}>{kept}</text>'


if __name__ == "__main__":
    words = ["env", "FORCE_COLOR=1", f"COLUMNS={_COLUMNS}", sys.executable, "-m", "tools.demo"]
    Path(sys.argv[1]).write_text(svg(recorded(words)))
