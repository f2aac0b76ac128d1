"""Who may read which part of the page: what they may list themselves. The API server decides."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from http import HTTPStatus
from typing import TypeVar

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.objects.access_review import Right, User, is_allowed, user_of
from gpu_device_plugin.web.html.page_server import Refusal

NEEDED = (Right("list", "nodes"), Right("list", "pods"), Right("list", "events"))
_MOST_KEPT = 1000
_AT_ONCE = 8
_MOST_WAITING = 32
_MOST_REFUSED = 20
_REFUSED_SECONDS = 60.0
_LONGEST_TOKEN = 1 << 14
_NO_TOKEN = Refusal(HTTPStatus.UNAUTHORIZED, "a bearer token of this cluster is needed")
_TOO_MANY_WAIT = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many tokens are being checked now")
_TOO_MANY_REFUSED = Refusal(
    HTTPStatus.TOO_MANY_REQUESTS, "too many refused tokens came from your address; wait a minute"
)
_Answer = tuple[float, Refusal | str]
_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


class Access:
    """Asks the API server, and keeps each answer for some seconds; never the token itself.

    A token that was accepted before is checked apart from the others, so guesses delay nobody who
    reads already. Guesses wait in a queue of `_MOST_WAITING`, and an address has `_MOST_REFUSED` of
    them a minute.
    """

    def __init__(self, api: ApiServer, kept_seconds: float) -> None:
        self._api = api
        self._kept_seconds = kept_seconds
        self._readers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._others: OrderedDict[bytes, _Answer] = OrderedDict()
        self._refused: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._reader_gate = asyncio.Semaphore(_AT_ONCE)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def scope(self, token: str, address: str, wanted: str = "") -> Refusal | str:
        """What the reader with this token may see: "" for all, or the namespace `wanted`; or why nothing.

        Without an answer of the API server nobody may: a right may have been taken away.
        """
        if not token or len(token) > _LONGEST_TOKEN:
            return _NO_TOKEN
        key = hashlib.sha256(f"{wanted}/{token}".encode("utf-8", "surrogateescape")).digest()
        is_reader = key in self._readers
        until, answer = (self._readers if is_reader else self._others).get(key, (0.0, ""))
        if self._now() < until:
            return answer
        if not is_reader and (away := self._turned_away(address)):
            return away
        try:
            answer = await self._ask_in_turn(token, wanted, is_reader=is_reader)
        except ClusterError as error:
            text = f"your token cannot be checked now: {error}"
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if isinstance(answer, Refusal):
            self._readers.pop(key, None)
            self._note_refused(address)
        kept = self._others if isinstance(answer, Refusal) else self._readers
        _keep(kept, key, (self._now() + self._kept_seconds, answer))
        return answer

    def _turned_away(self, address: str) -> Refusal | None:
        until, count = self._refused.get(address, (0.0, 0))
        if count >= _MOST_REFUSED and self._now() < until:
            return _TOO_MANY_REFUSED
        return _TOO_MANY_WAIT if self._waiting >= _MOST_WAITING else None

    def _note_refused(self, address: str) -> None:
        until, count = self._refused.get(address, (0.0, 0))
        if self._now() >= until:
            until, count = self._now() + _REFUSED_SECONDS, 0
        _keep(self._refused, address, (until, count + 1))

    async def _ask_in_turn(self, token: str, wanted: str, *, is_reader: bool) -> Refusal | str:
        self._waiting += not is_reader
        try:
            async with self._reader_gate if is_reader else self._gate:
                return await self._ask(token, wanted)
        finally:
            self._waiting -= not is_reader

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ask(self, token: str, wanted: str) -> Refusal | str:
        user = await user_of(self._api, token)
        if user is None:
            text = "the API server does not accept this token; it may have expired"
            return Refusal(HTTPStatus.UNAUTHORIZED, text)
        lacking = await self._lacking(user, NEEDED)
        if not lacking:
            return ""
        text = f"{user.username} may not {', '.join(lacking)} in all namespaces"
        if not wanted:
            text += "; name one whose pods and Events you may list"
            return Refusal(HTTPStatus.FORBIDDEN, text)
        rights = [Right("list", each, namespace=wanted) for each in ("pods", "events")]
        if lacking := await self._lacking(user, rights):
            return Refusal(HTTPStatus.FORBIDDEN, f"{text}, and may not {', '.join(lacking)}")
        return wanted

    async def _lacking(self, user: User, rights: Sequence[Right]) -> list[str]:
        allowed = await asyncio.gather(*(is_allowed(self._api, user, each) for each in rights))
        return [str(r) for r, is_granted in zip(rights, allowed, strict=True) if not is_granted]


def _keep(kept: OrderedDict[_Key, _Kept], key: _Key, value: _Kept) -> None:
    """As the newest of at most `_MOST_KEPT`."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
