"""How much of their slices containers use, looked up every few seconds for the metrics."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.store.region import CardUsage

LOOK_SECONDS = 5.0
_A_TURN = 8
_Key = tuple[str, str]  # slice and card


@dataclass(frozen=True, slots=True)
class SliceUsage:
    """What a slice uses of one card.

    Attributes:
        memory_bytes: Memory held.
        core_ratio: Share of the card's time between the last two looks, 0 to 1; None while
            there was only one.
        refused_total: Allocations refused so far.
    """

    memory_bytes: int
    core_ratio: float | None
    refused_total: int


@dataclass(frozen=True, slots=True)
class _Seen:
    usage: CardUsage
    now_ns: int


class UsageWatch:
    """Reads the regions of capped slices, one after the other."""

    def __init__(
        self, read: Callable[[str], Mapping[str, CardUsage]], ledger: Callable[[], Ledger]
    ) -> None:
        self._read = read
        self._ledger = ledger
        self._seen: dict[_Key, _Seen] = {}
        self._usage: dict[_Key, SliceUsage] = {}
        self.on_change: Callable[[], None] = lambda: None

    def of(self, slice_id: str, uuid: str) -> SliceUsage | None:
        """At the last look; None where the region said nothing."""
        return self._usage.get((slice_id, uuid))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One look at every slice; others get their turn after every few of them."""
        seen: dict[_Key, _Seen] = {}
        usage: dict[_Key, SliceUsage] = {}
        for number, grant in enumerate(tuple(self._ledger().grants.values())):
            if number % _A_TURN == 0:
                await asyncio.sleep(0)
            if not grant.is_capped:
                continue
            for uuid, found in self._read(grant.slice_id).items():
                key = grant.slice_id, uuid
                seen[key] = _Seen(found, time.monotonic_ns())
                ratio = _core_ratio(self._seen.get(key), seen[key])
                usage[key] = SliceUsage(found.memory_bytes, ratio, found.refused_total)
        is_news = usage != self._usage
        self._seen, self._usage = seen, usage
        if is_news:
            self.on_change()


def _core_ratio(before: _Seen | None, now: _Seen) -> float | None:
    """Card time had since the last look; what was launched earlier may be charged only now."""
    if before is None or now.now_ns <= before.now_ns:
        return None
    busy_ns = now.usage.busy_ns - before.usage.busy_ns
    if busy_ns < 0:  # another region, or a scribbled one
        return None
    return min(1.0, busy_ns / (now.now_ns - before.now_ns))
