"""Renders a run of the demo as an SVG that plays: `python -m tools.demo_recording docs/demo.svg`.

The first screen is there at once. Then paragraphs appear one after the other, longer ones for longer; how long the
demo waited between them is not shown.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

_ROWS, _COLUMNS = 32, 90
_WIDTH, _HEIGHT, _SIZE = 8.4, 18, 14
_LINE_SECONDS, _REST_SECONDS = 0.1, 4.0
_INK, _GROUND = "#e3e6e9", "#14171a"
_SPINNER = re.compile("[\u2800-\u28ff]")  # its frames would be a line each
_Paragraph = Sequence[Text]


def recorded(words: Sequence[str]) -> list[_Paragraph]:
    """What a program writes, by paragraphs."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: nothing recorded")
    texts = [Text.from_ansi(line.rstrip()) for line in done.stdout.split("\n")]
    lines = [text for text in texts if not _SPINNER.match(text.plain)]
    groups = itertools.groupby(lines, key=lambda text: bool(text.plain.strip()))
    return [tuple(group) for is_text, group in groups if is_text]


def svg(paragraphs: Sequence[_Paragraph]) -> str:
    """The recording, played again and again; where nothing is animated, its end."""
    whole = _LINE_SECONDS * sum(map(len, paragraphs)) + _REST_SECONDS
    at, row, parts, times, moves = 0.0, 0, [], [], []
    for paragraph in paragraphs:
        shown_at = at / whole if row + len(paragraph) > _ROWS else 0
        parts.append(_part(paragraph, row, shown_at, whole))
        row += len(paragraph) + 1
        times.append(f"{shown_at:.4f}")
        moves.append(f"0 {-max(0, row - 1 - _ROWS) * _HEIGHT}")
        at += _LINE_SECONDS * len(paragraph)
    width, height = round(20 + _COLUMNS * _WIDTH), _ROWS * _HEIGHT + 8
    motion = (
        f'<animateTransform attributeName="transform" type="translate" calcMode="discrete" '
        f'dur="{whole:.1f}s" repeatCount="indefinite" keyTimes="{";".join(times)}" values="{";".join(moves)}"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="make demo in a terminal"><rect width="100%" height="100%" rx="6" fill="{_GROUND}"/>'
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{_SIZE}" fill="{_INK}" '
        f'transform="translate({moves[-1]})">{motion}{"".join(parts)}</g></svg>\n'
    )


def _part(paragraph: _Paragraph, row: int, at: float, whole: float) -> str:
    spans = (_spans(text, (row + n + 1) * _HEIGHT - 4) for n, text in enumerate(paragraph))
    appears = (
        f'<animate attributeName="opacity" calcMode="discrete" dur="{whole:.1f}s" '
        f'repeatCount="indefinite" keyTimes="0;{at:.4f}" values="0;1"/>'
    )
    return f"<g>{''.join(itertools.chain(*spans))}{appears if at else ''}</g>"


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
    first, *others = recorded(words)
    Path(sys.argv[1]).write_text(svg([[Text("$ make demo"), *first], *others]))
