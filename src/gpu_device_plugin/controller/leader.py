"""Which replica serves kube-scheduler: the one that holds the Lease and knows all that was bound."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from gpu_device_plugin.controller.lease_pace import LeasePace
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.leader_label import LeaderLabel
from gpu_device_plugin.kubernetes.objects.lease import Lease

_LABEL_SECONDS = 30.0
GIVE_UP_SECONDS = 20.0  # of the 30 that a pod gets to end in
_log = structlog.get_logger("leader")


class Leadership:
    """Whether this replica leads now, by its Lease; `Leader` keeps it up to date."""

    def __init__(self, lease: Lease, pace: LeasePace) -> None:
        self.lease, self.pace = lease, pace
        self.until = 0.0
        """When this replica leads no more unless it renews, on the loop's clock."""
        self.is_caught_up = False

    def leads(self) -> bool:
        """Whether kube-scheduler may be answered now.

        Asked again before each binding: a process that stood still has lost the Lease unnoticed.
        """
        return self.is_caught_up and asyncio.get_running_loop().time() < self.until

    def left_seconds(self) -> float:
        """For how long no other replica can lead; 0 where this one does not."""
        if not self.leads():
            return 0.0
        pace, now = self.pace, asyncio.get_running_loop().time()
        return self.until + pace.lease_seconds - pace.renew_seconds - now

    def standby(self) -> str:
        """Why this replica does not serve kube-scheduler, or ""."""
        if self.leads():
            return ""
        holder, own = self.lease.holder, self.lease.name.identity
        if holder == own:
            return f"{own} is about to lead: it reads the cluster"
        return f"{own} does not lead: {f'{holder} does' if holder else 'nobody does yet'}"


@dataclass(frozen=True, slots=True)
class Duties:
    """What goes with the lead.

    Attributes:
        catch_up: Returns when the ledger has the whole cluster.
        wait_idle: Waits for the bindings under way.
        ended: Called when this replica has ceased to lead.
        renewed: Called with `late` or `in time` each time that the Lease was renewed.
    """

    catch_up: Callable[[], Awaitable[None]]
    wait_idle: Callable[[], Awaitable[None]]
    ended: Callable[[], None]
    renewed: Callable[[str], None] = lambda _outcome: None


class Leader:
    """Holds the Lease where it can.

    A new leader first reads the whole cluster again: what the one before it bound may not have
    come by the watch yet.
    """

    def __init__(self, leadership: Leadership, label: LeaderLabel, duties: Duties) -> None:
        self._leadership, self._lease, self._label = leadership, leadership.lease, label
        self._pace, self._duties = leadership.pace, duties

    async def run(self) -> None:
        """Take part until cancelled; then let another one lead at once."""
        leading: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                is_held = await self._renew()
                if is_held and leading is None:
                    leading = asyncio.ensure_future(self._lead())
                elif not is_held and leading is not None:
                    await self._end_leading(leading)
                    leading = None
                    _log.warning("leads no more", holder=self._lease.holder)
                elif leading is not None and leading.done():
                    leading.result()
                # A slow API server is asked again at once: its answer has used up the pause.
                await asyncio.sleep(max(0.0, began + self._pace.retry_seconds - loop.time()))
        finally:
            if leading is not None:
                await self._end_leading(leading)
                await self._give_up()

    async def _renew(self) -> bool:
        """Whether this replica holds the Lease, as far as it knows."""
        loop = asyncio.get_running_loop()
        # Counted from before the request: others count from when they see it.
        began, until = loop.time(), self._leadership.until
        is_first = until <= began
        try:
            async with asyncio.timeout_at(began + self._pace.renew_seconds if is_first else until):
                if await self._lease.try_hold():
                    is_late = not is_first and until - loop.time() < self._pace.renew_seconds / 2
                    self._duties.renewed("late" if is_late else "in time")
                    self._leadership.until = began + self._pace.renew_seconds
                    return True
            # Another one holds it, or has written it a moment ago.
            if self._lease.holder != self._lease.name.identity:
                self._leadership.until = 0.0
        except (ClusterError, TimeoutError) as error:
            _log.warning("lease not renewed", error=str(error) or "no answer")
        return loop.time() < self._leadership.until

    async def _lead(self) -> None:
        await self._duties.catch_up()
        self._leadership.is_caught_up = True
        _log.info("leads now", identity=self._lease.name.identity)
        while True:
            pause = _LABEL_SECONDS
            try:
                await self._label.take()
            except ClusterError as error:
                _log.warning("the leader's label cannot be set", error=str(error))
                pause = self._pace.retry_seconds
            await asyncio.sleep(pause)

    async def _end_leading(self, leading: asyncio.Task[None]) -> None:
        self._leadership.is_caught_up = False
        self._leadership.until = 0.0
        self._duties.ended()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    async def _give_up(self) -> None:
        """The next leader has to find everything that we sent: else the Lease runs out by itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._duties.wait_idle()
                with contextlib.suppress(ClusterError):
                    await self._label.give_up()
                with contextlib.suppress(ClusterError):
                    await self._lease.release()
