"""Signals from one part to others: the emitter knows no listener."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Signal(Generic[T]):
    """Calls every listener with each value, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], None]] = []

    def subscribe(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with every value from now on."""
        self._listeners.append(listener)

    def emit(self, value: T) -> None:
        """Call the listeners."""
        for listener in self._listeners:
            listener(value)
