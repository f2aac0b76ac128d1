"""A queue that brings objects into a wanted state, in the background."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request

_log = structlog.get_logger(__name__)
_MAX_CONFLICTS = 5
_REFUSED_SECONDS = 60.0  # the longest pause of a patch that is refused for what is in it

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON merge patch of one object."""

    path: str
    metadata: Mapping[str, object]
    spec: Mapping[str, object] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, object]:
        """What is sent."""
        return {"metadata": self.metadata, **({"spec": self.spec} if self.spec else {})}


@dataclass(slots=True)
class _Work:
    """When to check a key next, and how often its patch was refused in a row."""

    due_seconds: float
    failures: int = 0


class PatchQueue(Generic[Key]):
    """Patches what differs, and checks again until nothing does.

    `difference` returns what is missing from the object of a key as the watch shows it, or None
    for nothing (or if it is not known now: then `mark` the key again later). `on_refused` gets the
    API server's words where trying again the same way does not help; the patch is tried again
    all the same, because what is in its way may go. So repeated changes
    become one PATCH, and a change by others is noticed and undone.
    """

    def __init__(
        self,
        api: ApiServer,
        difference: Callable[[Key], Patch | None],
        forget: Callable[[Key], None],
        on_refused: Callable[[Key, str], None] = lambda _key, _text: None,
    ) -> None:
        self._api = api
        self._difference, self._forget = difference, forget
        self._on_refused = on_refused
        self._work: dict[Key, _Work] = {}
        self._earliest: dict[Key, float] = {}
        # When, a number that keeps keys of one moment in order, and the key. What `_work` says
        # otherwise meanwhile is passed over.
        self._by_time: list[tuple[float, int, Key]] = []
        self._numbers = itertools.count()
        self._wake = asyncio.Event()

    def mark(self, key: Key) -> None:
        """Compare `key` soon: its wanted state or the object has changed."""
        work, due = self._work.get(key), self._earliest.get(key, 0.0)
        if work is None:
            work = self._work[key] = _Work(due)
        elif work.failures or work.due_seconds == due:
            return
        self._wait(key, work, due)
        self._wake.set()

    def drop(self, key: Key) -> None:
        self._work.pop(key, None)
        self._earliest.pop(key, None)

    async def run(self) -> None:
        while True:
            self._wake.clear()
            due, key = self._next()
            if key is not None and due is not None and due <= self._now():
                await self._bring(key)
                # Thousands of objects may be as they should be: others want the loop too.
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _wait(self, key: Key, work: _Work, due: float) -> None:
        work.due_seconds = due
        heapq.heappush(self._by_time, (due, next(self._numbers), key))

    def _next(self) -> tuple[float, Key] | tuple[None, None]:
        """What is due first, and when; it stays first until it is dropped or waits again."""
        while self._by_time:
            due, _, key = self._by_time[0]
            work = self._work.get(key)
            if work is not None and work.due_seconds == due:
                return due, key
            heapq.heappop(self._by_time)
        return None, None

    async def _bring(self, key: Key) -> None:
        patch = self._difference(key)
        if patch is None:
            self._work.pop(key, None)
            return
        request = Request("PATCH", patch.path, body=patch.body)
        try:
            answer = await self._api.call_in_turn(request)
        except ClusterError:
            return  # the key stays due; `call_in_turn` keeps the pace
        work = self._work.get(key)
        if work is not None:  # not dropped meanwhile
            self._judge(key, work, answer)

    def _judge(self, key: Key, work: _Work, answer: Answer) -> None:
        pace = self._api.availability.pace
        if answer.is_success:
            work.failures = 0
            self._wait(key, work, self._now() + pace.watch_lag_seconds)
            self._earliest[key] = self._now() + pace.first_seconds
            return
        work.failures += 1
        if work.failures & (work.failures - 1) == 0:  # the first ones, then ever fewer
            _log.warning("patch refused", target=str(key), error=answer.text, tries=work.failures)
        is_another = answer.status == 422 and "metadata.uid" in answer.text
        is_another |= answer.status == 409 and work.failures >= _MAX_CONFLICTS
        is_refused = answer.status in (400, 403, 413, 422) and not is_another
        if is_refused:
            self._on_refused(key, answer.text)
        if answer.is_not_found or is_another:
            # Gone, or another object of this name (the uid in the patch differs): give up.
            self.drop(key)
            self._forget(key)
        else:
            # A server that has just started forbids all until it knows who has which rights.
            longest = _REFUSED_SECONDS if is_refused else None
            self._wait(key, work, self._now() + pace.pause(work.failures, longest))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
