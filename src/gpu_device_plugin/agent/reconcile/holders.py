"""Which pods hold slices now, as far as it is known between two reconcile passes."""

import asyncio
from collections.abc import Callable, Sequence

from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.domain.node.pods import PodRef

NOTED_SECONDS = 1.0
"""So long after an answer the kubelet has noted it down, and a reconcile pass can read it."""
BURST_SECONDS = 5.0
"""So long at most a pass waits for the end of a burst of answers, because it keeps calls waiting."""


class UnreconciledAllocations:
    """One pass follows a burst of answers."""

    def __init__(self, request_pass: Callable[[], None]) -> None:
        self._request_pass = request_pass
        self._latest: float | None = None
        self._following: asyncio.TimerHandle | None = None
        self._burst_end = 0.0

    def __bool__(self) -> bool:
        return self._latest is not None

    def note(self) -> None:
        """A container gets units of which only a later pass will find out who holds them."""
        loop = asyncio.get_running_loop()
        now = self._latest = loop.time()
        if self._following is None or self._following.when() <= now:
            self._burst_end = now + BURST_SECONDS
        else:
            self._following.cancel()
        due = min(now + NOTED_SECONDS, self._burst_end)
        self._following = loop.call_at(due, self._request_pass)

    def were_read(self, since_seconds: float) -> None:
        """A pass that began then, on the loop's clock, has read what the kubelet had noted down."""
        if self._latest is not None and since_seconds - self._latest >= NOTED_SECONDS:
            self._latest = None


class Holders:
    """Who holds slices: what of it is known without a reconcile pass."""

    def __init__(self, ledger_store: LedgerStore) -> None:
        self._ledger_store = ledger_store
        self.requested = asyncio.Event()  # set when a pass should run soon
        self.unreconciled_allocations = UnreconciledAllocations(self.requested.set)
        self.has_passed = False  # whether a pass has compared the grants with the kubelet
        self.unadopted: Sequence[PodRef] = ()
        """Pods of whose units no grant could be made, for instance because their card is away."""

    def is_behind(self) -> bool:
        """Whether a pod may hold, by an answer of a scheme that records, what no grant has yet."""
        return bool(self.unreconciled_allocations) or not self.has_passed

    def every(self) -> Sequence[PodRef] | None:
        """Pods that hold slices now; None where it is not known.

        An empty ledger may be one that was lost; and who got what was answered since the last pass
        of a scheme that records is not in the ledger yet.
        """
        return self.of(lambda _: True)

    def of(self, counts: Callable[[str], bool]) -> Sequence[PodRef] | None:
        """Those of `every` that hold a resource that `counts`, or units of which no grant could be made.

        The other holders' cards stay theirs: a grant keeps every scheme from giving them away.
        """
        store = self._ledger_store
        if self.unreconciled_allocations or not (self.has_passed or store.ledger.grants):
            return None
        grants = store.living.grants.values()
        known = (each.pod for each in grants if not each.units or any(map(counts, each.units)))
        return tuple(dict.fromkeys((*known, *self.unadopted)))
