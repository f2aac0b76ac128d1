"""Calls of NVML that a driver may not know, and its values as text."""

from collections.abc import Callable
from typing import Any

import pynvml

_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
}


def ask(function: Callable[..., Any], *arguments: object) -> Any:
    """The function's answer; None if the library lacks it or does not support it."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _UNSUPPORTED:
            return None
        raise


def text(value: bytes | str) -> str:
    """A value that pynvml gives as bytes or as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
