"""How much of their slices containers use, read from their regions when the metrics are scraped."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.disk.region import CardUsage, read_region
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.cards.card import Card

APART_SECONDS = 5.0
"""At least this long between two readings, because a share of time needs some time."""
_A_TURN = 8
_Key = tuple[str, str]  # slice and card
_NOTHING = CardUsage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class SliceUsage:
    """What a slice uses of one card."""

    memory_bytes: int
    core_ratio: float | None
    """Share of the card's time between the last two readings, 0 to 1; None after the first one."""
    refused_total: int


@dataclass(frozen=True, slots=True)
class _Seen:
    usage: CardUsage
    now_ns: int


@dataclass(eq=False)
class UsageReader:
    """Reads the regions of capped slices, one after the other.

    Where NVIDIA's driver limits a slice, its memory is what `by_driver` tells, by card: that of programs
    too which the library is not in.
    """

    files: SliceFiles
    live: LiveLedger
    by_driver: Callable[[str], Mapping[str, int]]
    used_bytes: Callable[[str], int | None]
    """Bytes that are in use on a card, by its UUID; None if that is not known."""

    def __post_init__(self) -> None:
        self._seen: dict[_Key, _Seen] = {}
        self._usage: dict[_Key, SliceUsage] = {}
        self._read_ns: int | None = None

    def of(self, slice_id: str, uuid: str) -> SliceUsage | None:
        """The last reading; None if the region said nothing."""
        return self._usage.get((slice_id, uuid))

    def unexplained(self, card: Card) -> int | None:
        """Memory of a card in use beside what its slices have written down just now, in bytes.

        Not known where a container has the card without a limit, or only an instance of it.
        """
        used_bytes = self.used_bytes(card.uuid)
        if used_bytes is None or card.hardware.is_mig:
            return None
        for grant in self.live.living.grants.values():
            if card.uuid in grant.devices:
                if not grant.is_isolated:
                    return None
                told = self.by_driver(grant.slice_id).get(card.uuid)
                if told is None:
                    told = self._read(grant.slice_id).get(card.uuid, _NOTHING).memory_bytes
                used_bytes -= told
        return max(0, used_bytes)

    def _read(self, slice_id: str) -> Mapping[str, CardUsage]:
        return read_region(self.files.region(slice_id))

    async def refresh(self) -> None:
        """Read every slice, unless that was just done; yields to other tasks in between."""
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        if self._read_ns is not None and now_ns - self._read_ns < APART_SECONDS * 1e9:
            return
        self._read_ns = now_ns
        seen: dict[_Key, _Seen] = {}
        usage: dict[_Key, SliceUsage] = {}
        for number, grant in enumerate(tuple(self.live.living.grants.values())):
            if number % _A_TURN == 0:
                await asyncio.sleep(0)
            if not grant.is_isolated:
                continue
            told = self.by_driver(grant.slice_id)
            read = self._read(grant.slice_id)
            for uuid in told.keys() | read.keys():
                found, key = read.get(uuid, _NOTHING), (grant.slice_id, uuid)
                seen[key] = _Seen(found, int(asyncio.get_running_loop().time() * 1e9))
                ratio = _core_ratio(self._seen.get(key), seen[key])
                used = told.get(uuid, found.memory_bytes)
                usage[key] = SliceUsage(used, ratio, found.refused_total)
        self._seen, self._usage = seen, usage


def _core_ratio(before: _Seen | None, now: _Seen) -> float | None:
    """Card time since the last reading; earlier launches may be charged only now."""
    if before is None or now.now_ns <= before.now_ns:
        return None
    busy_ns = now.usage.busy_ns - before.usage.busy_ns
    if busy_ns < 0:  # another region, or a damaged one
        return None
    return min(1.0, busy_ns / (now.now_ns - before.now_ns))
