"""How much of its processor each node has free, by the scheduler's count, in thousandths of a core (milli)."""

from collections import Counter
from collections.abc import Callable, Collection

PLENTY_CPU_MILLI = 10**9
"""Processor of a node of which nothing is known."""


class Processors:
    """Kept from news of nodes and pods; of a pod only its node and its amount."""

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        """Nothing is known yet; `on_change` gets the name of each node whose free processor changes."""
        self._on_change = on_change
        self._allocatable: dict[str, int] = {}
        self._taken: Counter[str] = Counter()
        self._pods: dict[str, tuple[str, int]] = {}

    def node_changed(self, name: str, allocatable_milli: int | None) -> None:
        """What a node has for pods in all; None where it is gone or does not say."""
        if self._allocatable.get(name) == allocatable_milli:
            return
        self._allocatable.pop(name, None)
        if allocatable_milli is not None:
            self._allocatable[name] = allocatable_milli
        self._on_change(name)

    def put(self, uid: str, node: str, milli: int) -> None:
        """A pod runs on a node, or is bound to it, and requests this much."""
        if self._pods.get(uid) == (node, milli):
            return
        self.drop(uid)
        if node and milli:
            self._pods[uid] = (node, milli)
            self._taken[node] += milli
            self._on_change(node)

    def drop(self, uid: str) -> None:
        """A pod has ended; one that is not known is no error."""
        node, milli = self._pods.pop(uid, ("", 0))
        if not node:
            return
        self._taken[node] -= milli
        if not self._taken[node]:
            del self._taken[node]
        self._on_change(node)

    def keep(self, uids: Collection[str]) -> None:
        for uid in self._pods.keys() - uids:
            self.drop(uid)

    def free(self, name: str, gone: Collection[str] = ()) -> int:
        """What no pod but those with the uids `gone` requests of a node; plenty where nobody says how much it has."""
        if name not in self._allocatable:
            return PLENTY_CPU_MILLI
        left = (self._pods[uid] for uid in gone if uid in self._pods)
        freed = sum(milli for node, milli in left if node == name)
        return max(0, self._allocatable[name] - self._taken[name] + freed)
