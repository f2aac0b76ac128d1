"""One writer of the node's state, many readers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpu_device_plugin.apps.agent.state.node_state import NodeState


class NodeStore:
    """Holds the current `NodeState` and tells listeners when it has changed."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._listeners: list[Callable[[NodeState], None]] = []

    def read(self) -> NodeState:
        """The node as of now."""
        return self._state

    def listen(self, listener: Callable[[NodeState], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def update(self, **changes: Any) -> None:
        """Put new values in place; nobody hears of a change that changes nothing."""
        state = replace(self._state, **changes)
        if state != self._state:
            self._state = state
            for listener in self._listeners:
                # Not `state`: a listener may have changed it further, and nobody hears old news.
                listener(self._state)

    def set_fault(self, reason: str, text: str | None) -> bool:
        """Note that something keeps the whole node from serving, or (None) no longer does.

        Returns:
            Whether that is news.
        """
        faults: Mapping[str, str] = self._state.faults
        if faults.get(reason) == text:
            return False
        others = {key: value for key, value in faults.items() if key != reason}
        is_news = (reason in faults) != (text is not None)
        self.update(faults=others if text is None else {**others, reason: text})
        return is_news
