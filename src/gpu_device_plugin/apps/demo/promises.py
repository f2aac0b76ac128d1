"""The demo's promises: each is held against what the running agents did."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from gpu_device_plugin.apps.demo.telling import Promise, Teller

_LOOK_SECONDS = 0.05


class Promises:
    """Counts promises and tells each once."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self.made: list[Promise] = []

    @property
    def broken(self) -> list[Promise]:
        """Those that were not kept."""
        return [promise for promise in self.made if not promise.is_kept]

    def check(self, what: str, expected: object, seen: object) -> bool:
        """Hold one promise against what was seen; both are compared as they are shown."""
        promise = Promise(what, shown(expected), shown(seen))
        self.made.append(promise)
        self._teller.promise(promise)
        return promise.is_kept


def shown(value: object) -> str:
    """A value for people: `60, 400, 4` and `card 0: 6, card 1: 8` rather than brackets."""
    if isinstance(value, Mapping):
        is_deep = any(isinstance(part, Mapping | tuple | list) for part in value.values())
        parts = [f"{key}: {shown(part)}" for key, part in sorted(value.items())]
        return ("; " if is_deep else ", ").join(parts) or "nothing"
    if isinstance(value, tuple | list):
        return ", ".join(map(shown, value)) or "nothing"
    return str(value)


async def settled(look: Callable[[], Awaitable[object]], wanted: object, seconds: float) -> object:
    """What `look` sees: as soon as it is what is wanted, else what it saw last.

    Args:
        look: Looks once; an error ends the wait.
        wanted: What to wait for.
        seconds: How long at most.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if seen == wanted or loop.time() >= deadline:
            return seen
        await asyncio.sleep(_LOOK_SECONDS)
