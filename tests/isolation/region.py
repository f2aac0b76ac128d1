"""The shared region as the agent reads it: the frozen layout of src/isolation/books/region.h."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

BYTES = 1024 * 1024
SLOTS = 256
_SLOTS_AT, _SLOT_BYTES = 256, 64
CARDS_AT = _SLOTS_AT + SLOTS * _SLOT_BYTES
_CARD_BYTES = 240 + 24 * SLOTS
USED = 1


@dataclass(frozen=True)
class Slot:
    """One process's place."""

    state: int
    pid: int
    start_ticks: int
    stack_start: int
    pid_namespace: int


class Region:
    """Reads and, for tests of what a bad day leaves, writes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._bytes = mmap.mmap(self._file.fileno(), BYTES)

    def close(self) -> None:
        """Unmaps it."""
        self._bytes.close()
        self._file.close()

    def slot(self, index: int) -> Slot:
        """A slot as it is."""
        at = _SLOTS_AT + index * _SLOT_BYTES
        state, _, pid, _, start, stack, namespace = struct.unpack_from("<IIiIQQQ", self._bytes, at)
        return Slot(state, pid, start, stack, namespace)

    def put(self, index: int, slot: Slot) -> None:
        """Makes a slot look like this; slots up to it count as seen."""
        at = _SLOTS_AT + index * _SLOT_BYTES
        words = (slot.state, 1, slot.pid, 0, slot.start_ticks, slot.stack_start, slot.pid_namespace)
        struct.pack_into("<IIiIQQQI", self._bytes, at, *words, 0)  # nobody's lock
        seen = struct.unpack_from("<I", self._bytes, 28)[0]
        struct.pack_into("<I", self._bytes, 28, max(seen, index + 1))

    def tell_limits(self, revision: int) -> None:
        """As the agent does where it has replaced the limits."""
        struct.pack_into("<I", self._bytes, 52, revision)

    def used(self, slot: int, card: int = 0) -> int:
        """Bytes asked for by a slot."""
        return self._word(CARDS_AT + card * _CARD_BYTES + 240 + 8 * slot)

    def held(self, slot: int, card: int = 0) -> int:
        """Bytes that count against the slice: asked for, and overhead."""
        overhead = self._word(CARDS_AT + card * _CARD_BYTES + 240 + 8 * (SLOTS + slot))
        return self.used(slot, card) + overhead

    def unsettled(self, slot: int) -> int:
        """Bytes that a slot has reserved for calls that are out."""
        return self._word(_SLOTS_AT + slot * _SLOT_BYTES + 56)

    def put_used(self, slot: int, value: int, card: int = 0) -> None:
        """Makes a slot hold bytes."""
        at = CARDS_AT + card * _CARD_BYTES + 240 + 8 * slot
        struct.pack_into("<Q", self._bytes, at, value)

    def refused(self, card: int = 0) -> int:
        """Allocations refused."""
        return self._word(CARDS_AT + card * _CARD_BYTES + 64)

    def charged_ns(self, card: int = 0) -> int:
        """Card time had, as charged."""
        return self._word(CARDS_AT + card * _CARD_BYTES + 104)

    def waited_ns(self, card: int = 0) -> int:
        """Time for which launches waited for credit."""
        return self._word(CARDS_AT + card * _CARD_BYTES + 112)

    def lease(self, card: int = 0) -> int:
        """Until when a process has the slice's lease, and in the low byte its slot; 0: cleared."""
        return self._word(CARDS_AT + card * _CARD_BYTES + 128)

    def drift(self) -> int:
        """Unknown allocation functions resolved."""
        return self._word(32)

    def scribble(self, at: int, text: bytes) -> None:
        """Overwrites bytes anywhere."""
        self._bytes[at : at + len(text)] = text

    def _word(self, at: int) -> int:
        value: int = struct.unpack_from("<Q", self._bytes, at)[0]
        return value
