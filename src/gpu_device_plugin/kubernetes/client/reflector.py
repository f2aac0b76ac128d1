"""A local copy of one list of the API server, kept by list and watch."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, overload

import msgspec
import structlog

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import Answer, ApiServer, Request
from gpu_device_plugin.kubernetes.client.foreign_text import decode
from gpu_device_plugin.kubernetes.client.listing import pages
from gpu_device_plugin.kubernetes.client.turns import Turns
from gpu_device_plugin.kubernetes.client.wire import Bare, Item, RawList, Status, WatchLine

_log = structlog.get_logger(__name__)
_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410
_NO_SUCH_API = b"404 page not found\n"  # as Go's net/http words it; a proxy's page is another
_REFUSED_SECONDS = 120.0  # the longest pause of a source that is refused again and again
_OPENED_SECONDS = 30.0  # until a watch has to be open
_OVERDUE = 0.75  # of the time after which a silent watch is opened again
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""Selector of pods that have not finished; a watch tells of one that finishes as of a deleted one."""
_line = msgspec.json.Decoder(WatchLine)
_list = msgspec.json.Decoder(RawList)
_bare = msgspec.json.Decoder(Bare)
_status = msgspec.json.Decoder(Status)


@dataclass(frozen=True, slots=True)
class Source:
    """What is listed, by a field selector and labels.

    Of an optional one a server that lacks the API has an empty list; one that refuses it leaves the
    last list as it is, because nothing is known of the next.
    """

    path: str
    selector: str
    is_optional: bool = False
    labels: str = ""

    @property
    def query(self) -> Mapping[str, str]:
        by_labels = {"labelSelector": self.labels} if self.labels else {}
        return {"fieldSelector": self.selector, **by_labels}


@dataclass(frozen=True, slots=True)
class ObjectListener(Generic[Item]):
    """Callbacks for the objects: all at once after a list, then one by one.

    `lists` is called when a list is about to be asked for. Where `replace` answers with steps, others
    run between them: all nodes or pods of a large cluster take longer than the Lease lasts.
    """

    replace: Callable[[Sequence[Item]], Iterable[None] | None]
    put: Callable[[Item], None]
    remove: Callable[[Item], None]
    lists: Callable[[], None] = lambda: None


def listen_by_key(
    key: Callable[[Item], str],
    known: Callable[[], Iterable[str]],
    put: Callable[[Item], None],
    drop: Callable[[str], None],
    replaced: Callable[[], None] = lambda: None,
) -> ObjectListener[Item]:
    """A listener that keeps objects by a key; `known` tells the keys that it keeps.

    What is gone is dropped last, so that nothing is missing meanwhile. `drop` is also called for a
    key that was never put.
    """

    def replace(items: Sequence[Item]) -> Iterator[None]:
        listed = set()
        for item in items:
            listed.add(key(item))
            put(item)
            yield
        for gone in set(known()) - listed:
            drop(gone)
        replaced()

    return ObjectListener(replace, put, lambda item: drop(key(item)))


class _Decoded(Sequence[Item]):
    """Objects of a list, decoded one by one: tens of thousands at once are a peak of memory."""

    def __init__(self, raw: Sequence[bytes], decoder: msgspec.json.Decoder[Item]) -> None:
        self._raw, self._decoder = raw, decoder

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | Sequence[Item]:
        if isinstance(at, slice):
            return _Decoded(self._raw[at], self._decoder)
        return decode(self._decoder, self._raw[at])


class Reflection(Generic[Item]):
    """Calls back with every object of a list, then with every change, until cancelled.

    After a broken connection it continues where it was. After 410 (the server no longer knows the
    version that we saw last) it lists again, and `replace` gets all objects at once. No list names a
    version: with `resourceVersion=0` the server ignores the size of a page, and servers from 1.34 on
    answer the newest from their cache all the same.
    """

    def __init__(
        self, api: ApiServer, source: Source, item: type[Item], listener: ObjectListener[Item]
    ) -> None:
        self.is_synced = False
        self.trouble = ""  # what went wrong last, for /readyz; empty once an answer has come
        self._api = api
        self._source = source
        self._listener = listener
        self._item = msgspec.json.Decoder(item)
        self._version = ""
        self._relists_wanted = self._relists_done = self._refusals = 0
        self._was_relisted = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._trouble_since = self._news_at = 0.0

    @property
    def news_seconds(self) -> float:
        """How long ago the last list, event or bookmark came; a healthy server sends one a minute."""
        return asyncio.get_running_loop().time() - self._news_at

    @property
    def is_silent(self) -> bool:
        """Whether a bookmark is overdue."""
        return self.news_seconds > self._api.availability.pace.silence_seconds * _OVERDUE

    @property
    def trouble_seconds(self) -> float:
        """For how long nothing but `trouble` has come; 0 if there is none."""
        return asyncio.get_running_loop().time() - self._trouble_since if self.trouble else 0.0

    async def relist(self) -> None:
        """List again, past the server's cache; returns once `replace` has had that list.

        All that was written before this call is in it. One that is under way begins again.
        """
        self._relists_wanted += 1
        wanted = self._relists_wanted
        self._version = ""
        if self._following is not None:
            self._following.cancel()
        while self._relists_done < wanted:
            self._was_relisted.clear()
            await self._was_relisted.wait()

    async def run(self) -> None:
        failures, self._news_at = 0, asyncio.get_running_loop().time()
        while True:
            began = asyncio.get_running_loop().time()
            try:
                # A list that was asked for meanwhile, or one that we do without, is no failure.
                if await self._was_interrupted() or not self._version:
                    continue
            except ClusterError as error:
                self._tell(str(error))
            lasted = asyncio.get_running_loop().time() - began
            failures = 0 if lasted > self._api.availability.pace.longest_seconds else failures + 1
            if failures and not self._api.availability.is_away:
                await asyncio.sleep(self._api.availability.pace.pause(failures))

    async def _relist(self) -> None:
        wanted = self._relists_wanted
        self._listener.lists()
        found: list[bytes] = []
        ask = partial(self._api.call_in_turn, deadline_seconds=None)
        version = ""
        async for answer in pages(ask, self._source.path, self._source.query):
            if self._source.is_optional and (answer.status == _FORBIDDEN or _is_lacked(answer)):
                await self._do_without(answer)
                return
            version = self._page(answer, found)
        await self._replace(found, version, wanted)

    def _page(self, answer: Answer, found: list[bytes]) -> str:
        """Add a page's objects to those found, with what we read of them; the list's version."""
        if not answer.is_success:
            raise ClusterError(f"list of {self._source.path}: {answer.text}")
        try:
            listed = decode(_list, answer.body)
            # The listener must not meet an error half way.
            found += [msgspec.json.encode(decode(self._item, raw)) for raw in listed.items or ()]
        except msgspec.MsgspecError as error:
            raise ClusterError(f"list of {self._source.path}: {error}") from error
        return listed.metadata.resource_version

    async def _replace(self, found: Sequence[bytes], version: str, wanted: int) -> None:
        await Turns().finish(self._listener.replace(_Decoded(found, self._item)) or ())
        self.is_synced = True
        self.trouble = ""
        self._news_at = asyncio.get_running_loop().time()
        self._relists_done = wanted
        self._refusals = 0
        self._was_relisted.set()
        if wanted == self._relists_wanted:
            self._version = version

    def _tell(self, trouble: str) -> None:
        """Log a trouble once while it lasts; `ApiAvailability` logs outages."""
        if trouble != self.trouble and not self._version and not self._api.availability.is_away:
            _log.warning("cannot list", path=self._source.path, error=trouble)
        if not self.trouble:
            self._trouble_since = asyncio.get_running_loop().time()
        self.trouble = trouble

    async def _do_without(self, answer: Answer) -> None:
        if answer.status == _FORBIDDEN:
            self._tell(f"list of {self._source.path}: {answer.text}")
            # A server that has just started forbids all until it knows who has which rights.
            self._refusals += 1
        else:
            if not self.is_synced:
                _log.info("the API server has no such list", path=self._source.path)
            await Turns().finish(self._listener.replace([]) or ())
            self.is_synced, self.trouble = True, ""
            self._refusals = 16  # it will not have the API soon
        await asyncio.sleep(self._api.availability.pace.pause(self._refusals, _REFUSED_SECONDS))

    async def _was_interrupted(self) -> bool:
        """List where nothing is known, and watch once; whether `relist` ended it."""
        self._following = asyncio.ensure_future(self._list_and_follow())
        try:
            await self._following
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return True
        finally:
            self._following = None
        return False

    async def _list_and_follow(self) -> None:
        if not self._version:
            await self._relist()
        if self._version:
            await self._follow()

    async def _follow(self) -> None:
        """Watch once, until the server or the network ends it, or nothing comes for too long.

        A proxy that passes nothing on looks like a cluster in which nothing happens.
        """
        loop = asyncio.get_running_loop()
        query = {
            **self._source.query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
        }
        request = Request("GET", self._source.path, query)
        seconds = random.randint(240, 480)  # noqa: S311 jitter
        silence = self._api.availability.pace.silence_seconds * random.uniform(1, 1.5)  # noqa: S311
        patience = min(silence, _OPENED_SECONDS)
        try:
            async with (
                asyncio.timeout(patience) as bound,
                aclosing(self._api.watch(request, seconds=seconds)) as answers,
            ):
                async for answer in answers:
                    self._take(answer)
                    self.trouble, patience = "", silence
                    bound.reschedule(loop.time() + patience)
        except TimeoutError:
            if not self.trouble:
                self._trouble_since = self._news_at
            self.trouble = f"watch of {self._source.path}: nothing has come for {patience:.0f} s"
            raise ClusterError(self.trouble) from None

    def _take(self, answer: Answer) -> None:
        if answer.status != 200:
            self._refused(answer.status, answer.text)
        if not answer.body:
            return
        try:
            line = decode(_line, answer.body)
            if line.type == "ERROR":
                status = decode(_status, line.object)
                self._refused(status.code, f"{status.code} {status.message}")
            self._change(line)
        except msgspec.MsgspecError as error:
            raise ClusterError(f"watch of {self._source.path}: {error}") from error

    def _change(self, line: WatchLine) -> None:
        if line.type == "DELETED":
            self._listener.remove(decode(self._item, line.object))
        elif line.type != "BOOKMARK":
            self._listener.put(decode(self._item, line.object))
        self._version = decode(_bare, line.object).metadata.resource_version
        self._news_at = asyncio.get_running_loop().time()

    def _refused(self, code: int, text: str) -> None:
        """Raise for a refusal; if the server no longer knows our version, list again first."""
        if code == _GONE:
            self._version = ""
        raise ClusterError(f"watch of {self._source.path}: {text}")


def _is_lacked(answer: Answer) -> bool:
    """Whether the API server has no such API."""
    is_plain = answer.status == _NOT_FOUND and answer.body == _NO_SUCH_API
    return is_plain or answer.is_not_found
