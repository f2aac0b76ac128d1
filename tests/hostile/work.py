"""Work that a call does, in lines of our own code that it runs: the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_OURS = "gpu_device_plugin/"


def lines_run(call: Callable[[], object], within: str = "") -> int:
    """How many lines of the program one call runs, each as often as it is run.

    Args:
        call: What to run.
        within: Part of the path of the modules that count; empty for the whole package.
    """
    found = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal found
        found += event == "line"
        return count

    def enter(frame: FrameType, _event: str, _arg: Any) -> Any:
        path = frame.f_code.co_filename
        return count if _OURS in path and within in path else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return found
