"""Which pods hold slices now, as far as it is known between two reconcile passes."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from gpu_device_plugin.agent.state.ledger_store import LedgerStore

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
        self._shown: Collection[tuple[str, str]] = ()

    def note(
        self, shown: Collection[tuple[str, str]], over: frozenset[str], unshown: frozenset[str]
    ) -> None:
        """What a pass has found: resource and pod of all units that List or checkpoint shows; slices whose pods may be over, and those that neither shows.

        What was answered a moment ago may not stand in either yet, so that it opens no further guard.
        """
        self._shown = shown
        if self.unreconciled_allocations:
            unshown &= self._ledger_store.live.unshown
        self._ledger_store.set_gone(over, unshown)

    def is_behind(self) -> bool:
        """Whether a pod may hold whole devices, by an answer of ours, that no grant has yet."""
        return bool(self.unreconciled_allocations) or not self.has_passed

    def every(self) -> Sequence[str] | None:
        """Pods that hold slices now, for people; None where it is not known.

        An empty ledger may be one that was lost; and who got what was answered of whole
        devices since the last pass is not in the ledger yet.
        """
        return self.of(lambda _: True)

    def of(self, counts: Callable[[str], bool]) -> Sequence[str] | None:
        """Those of `every` that hold a resource that `counts`.

        The other holders' cards stay theirs: a grant keeps both kinds from giving them away.
        """
        if self.unreconciled_allocations or self._ledger_store.being_written:
            return None
        grants = self._ledger_store.live.shown.grants.values()
        found = {g.pod.text for g in grants if not g.units or any(map(counts, g.units))}
        found |= {pod for resource, pod in self._shown if counts(resource)}
        return tuple(sorted(found)) if found or self.has_passed else None

    def devices(self) -> Collection[str] | None:
        """UUIDs of cards and MIG instances that they hold; None where it is not known."""
        if self.is_behind():
            return None
        return {
            uuid
            for grant in self._ledger_store.live.shown.grants.values()
            for uuid in grant.devices
        }
