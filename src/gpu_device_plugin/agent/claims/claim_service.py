"""Serves claims while the node's allocation API is `dra`, and until the last claim has ended."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.agent.claims.handover import Handover
from gpu_device_plugin.agent.claims.preparation import ClaimParts, Preparation
from gpu_device_plugin.domain.grants.claims import (
    DeviceHealth,
    OfferedDevice,
    PoolHealth,
    cards_behind_claims,
    cards_for_claims,
    has_claims,
    taints,
)
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import RequestError

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet.dra_sockets import ClaimServer

CHECK_SECONDS = 30.0
OFFER_SECONDS = 2.0
"""How often it is asked whether the API server has taken an offer."""
_TOGETHER_SECONDS = 0.05


class ClaimEndpoint:
    """Serves claims, and offers cards to the scheduler; answers as `kubelet.dra_servicer.ClaimService`."""

    def __init__(self, parts: ClaimParts, kubelet_dir: Path) -> None:
        self._kubelet_dir = kubelet_dir
        self._preparation = preparation = Preparation(parts)
        self.prepare, self.unprepare = preparation.prepare, preparation.unprepare
        self.restore = preparation.restore
        self._parts = parts
        self._wake = asyncio.Event()
        self._server: ClaimServer | None = None
        self._is_offering = False
        self._had_claims = False
        self._told: Sequence[DeviceHealth] = ()
        self.handover = Handover(parts)

    @property
    def is_needed(self) -> bool:
        """Whether claims are given here, or are still held, also by grants that were lost."""
        if not self._parts.is_served:
            return False
        is_open = self._parts.node_store.read().allocation_api is AllocationApi.DRA
        is_held = has_claims(self._parts.admission.ledger) or bool(self._preparation.lost)
        return is_open or self.handover.is_offered or is_held

    @property
    def withheld(self) -> frozenset[str]:
        """UUIDs of the cards on their way back, which the device plugin does not give out yet."""
        return self.handover.withheld

    def cards(self, state: NodeState) -> frozenset[str]:
        """UUIDs of the cards of which the device plugin gives out nothing new."""
        return cards_behind_claims(state, self._parts.admission.ledger, self.withheld)

    @property
    def trouble(self) -> str:
        """Why claims cannot be served now; empty if they can, or are not."""
        return self._server.trouble if self._server else ""

    def changed(self, _: object) -> None:
        self._wake.set()

    def held_changed(self, ledger: Ledger) -> None:
        """What each allocation API may give of a card follows from who holds it by the other one."""
        state, had_claims = self._parts.node_store.read(), self._had_claims
        self._had_claims = has_claims(ledger)
        if self._is_offering and (
            state.allocation_api is AllocationApi.DRA or had_claims or self._had_claims
        ):
            self._parts.republish.emit(state)
            self._wake.set()

    def begin(self) -> None:
        """What the node has is known: cards may be offered."""
        self._is_offering = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            idle_seconds = await self.handover.ask_again()
            await self._until_woken(CHECK_SECONDS if self.is_needed else idle_seconds)
            if self._is_offering and self.is_needed:
                await self._serve()

    async def _serve(self) -> None:
        """From the first claim that may come until the last one has ended."""
        self.restore()
        self._server = self._opened()
        serving = asyncio.ensure_future(self._server.run())
        try:
            while self.is_needed and not serving.done():
                self._report_directory(self._parts.cdi.check())
                await self._preparation.rebuild()
                self._offer()
                self.handover.check()
                if await self.handover.advance():
                    continue
                await self._until_woken(self._pause_seconds())
                await asyncio.sleep(_TOGETHER_SECONDS)
        finally:
            serving.cancel()
            # Not `await serving`: a cancellation of this task in that moment would pass for its end.
            await asyncio.wait({serving})
            self._server = None
            if not serving.cancelled():
                serving.result()
        self._report_directory("")
        self._parts.claims.offer((), "")

    def _opened(self) -> "ClaimServer":
        # Not at the top: an agent without claims does not load their calls.
        from gpu_device_plugin.kubelet.dra_sockets import ClaimServer

        return ClaimServer(self._kubelet_dir, self)

    def health(self) -> PoolHealth:
        state = self._parts.node_store.read()
        return PoolHealth(state.node, self._told)

    def devices_to_offer(self) -> list[OfferedDevice]:
        state = self._parts.node_store.read()
        try:
            scheme, view = self._parts.schemes.find_reserving(state)
        except RequestError:
            return []
        found, ledger = [], self._parts.shown() or self._parts.admission.ledger
        for uuid, other_api in cards_for_claims(state, ledger, self.withheld).items():
            card = view.card(uuid)
            capacity = scheme.capacity(card, view) if card else None
            if card and capacity:
                why = taints(uuid, other_api, state)
                found.append(OfferedDevice(card, str(state.mode), capacity, why))
        return found

    def _offer(self) -> None:
        devices = self.devices_to_offer()
        state = self._parts.node_store.read()
        if state.allocation_api is AllocationApi.DRA:
            self.handover.note_offer(device.card.uuid for device in devices)
        self._parts.claims.offer(devices, self._parts.cards.driver_version)
        faults = state.faults.items()
        of_node = "; ".join(f"{reason}: {text}" for reason, text in faults)
        told = [
            DeviceHealth(d.name, of_node or state.unhealthy.get(d.card.uuid, "")) for d in devices
        ]
        if told != self._told and self._server is not None:
            self._told = told
            self._server.tell_health()

    def _report_directory(self, trouble: str) -> None:
        self._parts.recorder.fault(self._parts.node_store, "CdiDirNotWritable", trouble or None)

    def _pause_seconds(self) -> float:
        if not self._parts.claims.is_written:
            return OFFER_SECONDS
        return self.handover.scheduler_lag_seconds if self.handover.is_waiting else CHECK_SECONDS

    async def _until_woken(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
