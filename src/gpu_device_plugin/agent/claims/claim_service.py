"""Serves claims while the node's allocation API is `dra`, and until the last claim has ended."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpu_device_plugin.agent.claims.preparation import ClaimParts, Preparation
from gpu_device_plugin.domain.grants.claims import (
    DeviceHealth,
    OfferedDevice,
    PoolHealth,
    allocated_pods,
    has_claims,
    taints,
)
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.errors import ClusterError, RequestError

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet.dra_sockets import ClaimServer

CHECK_SECONDS = 30.0
OFFER_SECONDS = 2.0
"""How often it is asked whether the API server has taken an offer."""
_TOGETHER_SECONDS = 0.05
_log = structlog.get_logger("claims")


class ClaimEndpoint:
    """Serves claims, and offers cards to the scheduler; answers as `kubelet.dra_servicer.ClaimService`.

    Attributes:
        scheduler_lag_seconds: How long after an offer was taken back the scheduler may still allocate of it.
        ask_seconds: How often an API server that takes no offers is asked again.
    """

    def __init__(self, parts: ClaimParts, kubelet_dir: Path) -> None:
        self._kubelet_dir = kubelet_dir
        self._preparation = preparation = Preparation(parts)
        self.prepare, self.unprepare = preparation.prepare, preparation.unprepare
        self.restore = preparation.restore
        self._parts = parts
        self._wake = asyncio.Event()
        self._server: ClaimServer | None = None
        self._is_offering = False
        self._told: Sequence[DeviceHealth] = ()
        self.scheduler_lag_seconds, self.ask_seconds = 5.0, 60.0
        self._asked_at = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether claims are given here, or are still held, also by grants that were lost."""
        if not self._parts.is_served:
            return False
        is_open = self._parts.node_store.read().allocation_api is AllocationApi.DRA
        return is_open or self.is_held

    @property
    def is_held(self) -> bool:
        """Whether claims are prepared here, also such of which only the CDI file is left."""
        return has_claims(self._parts.admission.ledger) or bool(self._preparation.lost)

    @property
    def trouble(self) -> str:
        """Why claims cannot be served now; empty if they can, or are not."""
        return self._server.trouble if self._server else ""

    def changed(self, _: object) -> None:
        self._wake.set()

    def begin(self) -> None:
        """What the node has is known: cards may be offered."""
        self._is_offering = True
        self._wake.set()

    async def run(self) -> None:
        while True:
            idle_seconds = await self._ask_again()
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
                await self._check_refusal()
                await self._read_claims()
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
        # A node that is left has no ResourceSlice when the agent ends.
        is_left = state.mark and not has_claims(self._parts.admission.ledger)
        if is_left or state.allocation_api is not AllocationApi.DRA:
            return []
        try:
            view = self._parts.schemes.dividing_view(state)
        except RequestError:
            return []
        grants = self._parts.admission.ledger.grants.values()  # of units, where the record was lost
        by_units = {uuid for g in grants if not g.holder.claim for uuid in g.devices}
        return [
            OfferedDevice(card, str(state.mode), capacity, taints(card.uuid, state))
            for card in view.cards
            if card.is_shown and card.uuid not in by_units
            if (capacity := self._parts.schemes.fractions.capacity(card, view))
        ]

    def _offer(self) -> None:
        devices = self.devices_to_offer()
        state = self._parts.node_store.read()
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
        self._parts.recorder.fault("CdiDirNotWritable", trouble or None)

    def _pause_seconds(self) -> float:
        return CHECK_SECONDS if self._parts.claims.is_written else OFFER_SECONDS

    async def _check_refusal(self) -> None:
        """After an offer: where the API server never took one of our slices, the device plugin serves.

        Where it took one, scheduler and claims go by that, and no refusal changes the allocation API.
        """
        claims, mode = self._parts.claims, self._parts.mode
        if claims.refused and not (claims.was_taken or self.is_held):
            with suppress(ClusterError):  # where claims may not be read there never were any
                if await self._allocated():
                    return
            self._asked_at = asyncio.get_running_loop().time()
            mode.note_claims_refused(claims.refused)
        elif claims.refused or claims.is_written:
            mode.allocation_api_choice.note_slice(claims.refused)

    async def _ask_again(self) -> float | None:
        """Ask again where an offer was refused; in how many seconds to call this again, or None."""
        mode, now = self._parts.mode, asyncio.get_running_loop().time()
        if mode.allocation_api_choice.refused and now - self._asked_at >= self.ask_seconds:
            self._asked_at = now
            if await self._parts.claims.would_take():
                mode.note_claims_refused("")
        return self.ask_seconds if mode.allocation_api_choice.refused else None

    async def _read_claims(self) -> None:
        """For a switch that waits for nothing else: which claims are allocated here, prepared or not.

        Where there are none, they are read again when the offer is taken back and the scheduler knows
        it: none can follow.
        """
        mode, claims = self._parts.mode, self._parts.claims
        if not mode.waits_for_claims or self._preparation.lost:
            return
        try:
            pods = await self._allocated()
            if not pods:
                self._wake.set()  # whatever comes of it: offer again, or end
                claims.offer((), "")
                async with asyncio.timeout(CHECK_SECONDS):
                    while not claims.is_written:
                        await asyncio.sleep(_TOGETHER_SECONDS)
                await asyncio.sleep(self.scheduler_lag_seconds)
                pods = await self._allocated()
        except (ClusterError, TimeoutError) as error:
            _log.info("claims cannot be read; the node stays as it is", error=str(error))
            return
        if pods or claims.is_written:
            mode.note_claims(pods)

    async def _allocated(self) -> Sequence[str]:
        """Pods of the claims that are allocated here, prepared or not; ClusterError if nobody tells."""
        return allocated_pods(await self._parts.claims.every(), self._parts.node_store.read().node)

    async def _until_woken(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
