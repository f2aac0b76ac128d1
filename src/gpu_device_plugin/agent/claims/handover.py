"""When a card goes from claims back to the device plugin.

A card on its way back is withheld until no claim is allocated on it. The scheduler may have allocated
a card a moment before it saw the taint, and the claim is prepared later. So the claims are read some
seconds after the tainted slice was written; and then again, ever more rarely: an API server of a large
cluster has many, and a pod may wait for hours before its claim is prepared. What was offered is
remembered over a restart: an agent that finds the allocation API changed has to take it back first.
"""

import asyncio
from collections.abc import Iterable

import structlog

from gpu_device_plugin.agent.claims.preparation import ClaimParts
from gpu_device_plugin.disk.state_file import ClaimsRecord
from gpu_device_plugin.domain.grants.claims import allocated_cards, has_claims, held_by_claims
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.errors import ClusterError

_log = structlog.get_logger("claims")


class Handover:
    """Which cards go back from claims to the device plugin, and are not given out meanwhile.

    Attributes:
        is_offered: Whether the API server may have one of our slices, also of an earlier run.
        scheduler_lag_seconds: How long after the taint the scheduler may still have allocated.
        read_seconds: Least time between two readings of the claims.
        ask_seconds: How often an API server that takes no offers is asked again; claims are read
            at least as often.
    """

    def __init__(self, parts: ClaimParts) -> None:
        self._parts = parts
        self._written_at: float | None = None
        self.withheld: frozenset[str] = frozenset()
        self.is_offered = False
        self._may_be_written = False
        self.scheduler_lag_seconds = self.read_seconds = 5.0
        self.ask_seconds = 60.0
        self._asked_at = 0.0
        self._seen: frozenset[str] | None = None
        self._seen_at = self._read_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether cards or our slice should go back now, and not at the end of a prepared claim."""
        ledger = self._parts.admission.ledger
        is_closed = self._parts.node_store.read().allocation_api is not AllocationApi.DRA
        is_held = bool(self.withheld <= held_by_claims(ledger)) and has_claims(ledger)
        return is_closed and self.is_offered and not is_held

    async def load(self, now_seconds: float) -> str | None:
        """Take up what the last run left; returns what was damaged, or None."""
        content, bad = await self._parts.memory.load(now_seconds)
        self.withheld, self.is_offered = frozenset(content.withheld), content.is_offered
        if not self._parts.is_served:
            # No claim can be prepared, so the device plugin may give all that none holds.
            self._remember(frozenset(), is_offered=False)
        self._may_be_written = self.is_offered
        return bad

    def check(self) -> None:
        """After an offer: where the API server never took one of our slices, the device plugin serves.

        Where it took one, scheduler and claims go by that, and no refusal changes the allocation API.
        """
        claims, mode = self._parts.claims, self._parts.mode
        is_held = has_claims(self._parts.admission.ledger)
        self._may_be_written = self._may_be_written or claims.was_taken or is_held
        if claims.refused and not self._may_be_written:
            self._remember(frozenset(), is_offered=False)
            self._asked_at = asyncio.get_running_loop().time()
            mode.note_claims_refused(claims.refused)
        elif claims.refused or claims.is_written:
            mode.allocation_api_choice.note_slice(claims.refused)

    async def ask_again(self) -> float | None:
        """Ask again where an offer was refused; in how many seconds to call this again, or None."""
        mode, now = self._parts.mode, asyncio.get_running_loop().time()
        if mode.allocation_api_choice.refused and now - self._asked_at >= self.ask_seconds:
            self._asked_at = now
            if await self._parts.claims.would_take():
                mode.note_claims_refused("")
        return self.ask_seconds if mode.allocation_api_choice.refused else None

    def note_offer(self, uuids: Iterable[str]) -> None:
        self._written_at = None
        self._remember(frozenset(uuids), is_offered=True)

    async def advance(self) -> bool:
        """Give back what no claim is allocated on; returns whether anything was."""
        if not self.is_waiting or not self._is_scheduler_done():
            return False
        if not self.withheld:
            # The last claim has ended, and the API server has none of our slices any more.
            self._may_be_written = False
            self._remember(self.withheld, is_offered=False)
            return True
        if not self._is_due():
            return False
        try:
            claims = await self._parts.claims.every()
        except ClusterError as error:
            _log.info("claims cannot be read; cards are withheld", error=str(error))
            self._seen = None
            return False
        left = self.withheld & allocated_cards(claims, self._parts.node_store.read())
        is_change = left != self.withheld
        self._remember(left, is_offered=True)
        if is_change:
            _log.info("cards go back to the device plugin", withheld=sorted(left))
            self._parts.republish.emit(self._parts.node_store.read())
        return is_change

    def _is_due(self) -> bool:
        """Whether to read the claims: at a change of what is held, then after half of the time since."""
        now, held = asyncio.get_running_loop().time(), held_by_claims(self._parts.admission.ledger)
        if held != self._seen:
            self._seen, self._seen_at = held, now
        else:
            longer = min((now - self._seen_at) / 2, self.ask_seconds)
            if now - self._read_at < max(self.read_seconds, longer):
                return False
        self._read_at = now
        return True

    def _is_scheduler_done(self) -> bool:
        """Whether nothing new has been allocated for a while of what is withheld."""
        if not self._parts.claims.is_written:
            self._written_at = None
            return False
        now = asyncio.get_running_loop().time()
        if self._written_at is None:
            self._written_at = now
        return not self.withheld or now - self._written_at >= self.scheduler_lag_seconds

    def _remember(self, withheld: frozenset[str], *, is_offered: bool) -> None:
        if (withheld, is_offered) != (self.withheld, self.is_offered):
            self.withheld, self.is_offered = withheld, is_offered
            self._parts.memory.save(ClaimsRecord(sorted(withheld), is_offered))
