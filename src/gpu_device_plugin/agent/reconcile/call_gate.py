"""When a List may be read: not between two calls of the kubelet for one container."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

QUIET_SECONDS = 6.0
"""So long a List waits at most for a moment between two containers."""
_BETWEEN_SECONDS = 5.0  # the kubelet's Allocate follows at once, or never
_NOTING_SECONDS = 0.1  # after our answer the kubelet notes the units down


class CallGate:
    """Held over every call and over every List."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._busy_until = -math.inf

    def expect_allocate(self) -> None:
        """The kubelet was told units, and is about to ask for them."""
        self._busy_until = asyncio.get_running_loop().time() + _BETWEEN_SECONDS

    def expect_noting(self) -> None:
        """The kubelet has its answer, and is about to note it down."""
        self._busy_until = asyncio.get_running_loop().time() + _NOTING_SECONDS

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """A moment for a List: between two calls of one container there is none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_SECONDS
        while True:
            async with self.lock:
                now = loop.time()
                if now >= self._busy_until or now > deadline:
                    yield
                    return
            await asyncio.sleep(0.02)
