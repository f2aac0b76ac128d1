"""The device nodes of IMEX channels, by which the cards of several nodes share memory."""

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ROOTS = (Path("/driver-root"), Path("/"))
"""Where the node's `dev` may be seen: the chart's mount of `driverRoot`, or our own."""


def imex_channels(asked: Iterable[int], roots: Iterable[Path] = ROOTS) -> tuple[int, ...]:
    """Which of these channels the node has."""
    return tuple(each for each in asked if any(_is_node(root, each) for root in roots))


def _is_node(root: Path, channel: int) -> bool:
    with suppress(OSError):
        path = root / "dev" / "nvidia-caps-imex-channels" / f"channel{channel}"
        return stat.S_ISCHR(path.stat().st_mode)
    return False
