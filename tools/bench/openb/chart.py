"""The curves as a picture: allocated against arrived, ours beside the published ones."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 800, 420, 56, 16, 230, 44
_FROM_X, _TO_X, _FROM_Y, _TO_Y = 70, 130, 65, 100
_COLORS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e6bb0", "#b9770e", "#566573", "#16a085", "#7d3c98")


def svg(curves: Mapping[str, Sequence[float]]) -> str:
    """An SVG of the part of the curves that matters: 70 to 130 % arrived.

    Args:
        curves: Name -> allocated percent by arrived percent, 0 to 130; those whose name begins
            with "published" are dashed.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_grid(),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        dash = ' stroke-dasharray="5 4"' if name.startswith("published") else ""
        points = " ".join(
            f"{_x(percent):.1f},{_y(curve[percent]):.1f}" for percent in range(_FROM_X, _TO_X + 1)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>'
        )
        line = _TOP + 14 + 20 * number
        right = _WIDTH - _RIGHT + 12
        parts += [
            f'<line x1="{right}" y1="{line}" x2="{right + 26}" y2="{line}" stroke="{color}" '
            f'stroke-width="1.8"{dash}/>',
            f'<text x="{right + 32}" y="{line + 4}">{escape(name)} {curve[100]:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _grid() -> list[str]:
    found = []
    for percent in range(_FROM_X, _TO_X + 1, 10):
        x = _x(percent)
        found += [
            f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{_HEIGHT - _BOTTOM}" stroke="#e3e3e3"/>',
            f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{percent}</text>',
        ]
    for percent in range(_FROM_Y, _TO_Y + 1, 5):
        y = _y(percent)
        found += [
            f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}" stroke="#e3e3e3"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{percent}</text>',
        ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    found.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "arrived, % of the cluster's cards</text>"
    )
    half = (_TOP + _HEIGHT - _BOTTOM) / 2
    found.append(
        f'<text x="14" y="{half}" text-anchor="middle" transform="rotate(-90 14 {half})">'
        "allocated, % of the cluster's cards</text>"
    )
    return found


def _x(percent: float) -> float:
    return _LEFT + (percent - _FROM_X) / (_TO_X - _FROM_X) * (_WIDTH - _LEFT - _RIGHT)


def _y(percent: float) -> float:
    return _HEIGHT - _BOTTOM - (percent - _FROM_Y) / (_TO_Y - _FROM_Y) * (_HEIGHT - _TOP - _BOTTOM)
