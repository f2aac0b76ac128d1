"""Cards on their way back to the device plugin: each is withheld until no claim is allocated on it.

The scheduler may have allocated a card a moment before it saw the taint, and the claim is prepared
later. So the claims are read some seconds after the tainted slice was written.
"""

import asyncio
from collections.abc import Iterable

import structlog

from gpu_device_plugin.apps.agent.claims.parts import ClaimParts
from gpu_device_plugin.domain.claims import allocated_cards
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.errors import ClusterError

_log = structlog.get_logger("claims")


class Handover:
    """Which cards the other door does not get yet.

    Attributes:
        withheld: Their UUIDs.
        settle_seconds: How long after the taint the scheduler may still have allocated.
    """

    def __init__(self, parts: ClaimParts) -> None:
        self._parts = parts
        self._written_at: float | None = None
        self.withheld: frozenset[str] = frozenset()
        self.settle_seconds = 5.0

    def offered(self, uuids: Iterable[str]) -> None:
        """These cards are offered for claims now."""
        self.withheld, self._written_at = frozenset(uuids), None

    async def advance(self) -> bool:
        """Give back what no claim is allocated on; without the API server, nothing.

        Returns:
            Whether a card was given back.
        """
        state, now = self._parts.node_store.read(), asyncio.get_running_loop().time()
        if state.door is Door.DRA or not self.withheld:
            return False
        if not self._parts.claims.has_offered:
            self._written_at = None
            return False
        if self._written_at is None:
            self._written_at = now
        if now - self._written_at < self.settle_seconds:
            return False
        try:
            claims = await self._parts.claims.every()
        except ClusterError as error:
            _log.info("claims cannot be read; cards are withheld", error=str(error))
            return False
        left = self.withheld & allocated_cards(claims, state)
        is_change, self.withheld = left != self.withheld, left
        if is_change:
            _log.info("cards go back to the device plugin", withheld=sorted(left))
            self._parts.republish(self._parts.node_store.read())
        return is_change
