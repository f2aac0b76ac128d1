"""Waiting for a condition with a deadline: the one place in tests and harness that sleeps."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

EVERY_SECONDS = 0.01
PATIENCE = 6.0
"""Deadlines are for what never happens, not for what is slow: a loaded machine gets this much more."""


async def until(
    holds: Callable[[], object] | Callable[[], Awaitable[object]],
    deadline_seconds: float = 5.0,
    tell: Callable[[], object] = lambda: "",
) -> None:
    """Ask again and again until `holds()` is true.

    Args:
        holds: The condition; may be a coroutine function.
        deadline_seconds: For how long, on a machine with nothing else to do.
        tell: What is there instead, for the error.

    Raises:
        AssertionError: It did not hold in time.
    """
    try:
        async with asyncio.timeout(deadline_seconds * PATIENCE):
            while not await _asked(holds):
                await asyncio.sleep(EVERY_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_seconds * PATIENCE:g} s; {tell()}") from None


async def _asked(holds: Callable[[], object]) -> object:
    answer = holds()
    return await answer if inspect.isawaitable(answer) else answer
