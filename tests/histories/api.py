"""The API server in memory, as an HTTP session shows it, with everything that can be wrong with it."""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import aiohttp
from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, status

_LATENCY_SECONDS = (0.001, 0.01)


@dataclass(slots=True)
class Faults:
    """What is wrong with the server now.

    Attributes:
        is_away: Nothing answers.
        latency_seconds: Added to each answer.
        throttled: Kinds of requests (`events`, `pods`, `nodes`) that are answered 429.
        lag_seconds: How far watches are behind.
    """

    is_away: bool = False
    latency_seconds: float = 0.0
    throttled: frozenset[str] = frozenset()
    lag_seconds: float = 0.0


class Api(StandInApiServer):
    """The stand-in API server without its socket, with latency and lag; see `answer`.

    Attributes:
        faults: What is wrong now.
    """

    served = re.compile(
        r"(?:/api/v1/nodes|/api/v1/pods|/api/v1/namespaces|/api/v1/namespaces/[^/]+/(?:pods|events)"
        r"|/apis/resource\.k8s\.io/v1/resourceslices)(?:/(?P<name>[^/]+))?"
    )

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.faults = Faults()
        self._chance = chance
        self._changed_at: dict[int, float] = {}  # by version

    def _tell(self) -> None:
        self._changed_at.setdefault(self._version, asyncio.get_running_loop().time())
        super()._tell()

    # -- as kubectl, kubelet and controllers use it, beside `store` and `remove`

    def go_away(self) -> None:
        """Break every connection, and answer nothing until told otherwise."""
        self.faults.is_away = True
        self.break_watches()

    def forget_changes(self) -> None:
        """Watches from before get 410."""
        self._oldest = self._version
        self._changes.clear()
        self.break_watches()

    def break_watches(self) -> None:
        """As when the connection is lost."""
        self._epoch += 1
        self._tell()

    def wake(self) -> None:
        """Let every watch look again."""
        self._tell()

    # -- as a client sees it

    async def answer(self, asked: ApiRequest, connect_seconds: float) -> "Response":
        """One request."""
        await self._reached(connect_seconds)
        if "watch" not in asked.query:
            return _read(self.respond(asked))
        at, refusal = int(asked.query["resourceVersion"]), self._refusal(asked)
        if refusal is None and at < self._oldest:
            refusal = status(410, "too old resource version")
        if refusal is not None:
            return _read(refusal)
        return Response(200, lines=self._follow(asked, at))

    def _refusal(self, asked: ApiRequest) -> web.Response | None:
        match = self.served.fullmatch(asked.path)
        kind = asked.path.removesuffix(f"/{match['name']}").rpartition("/")[2] if match else ""
        if kind in self.faults.throttled:
            return status(429, "too many requests", "1")
        return None if match else status(404, "the server could not find the requested resource")

    async def _reached(self, connect_seconds: float) -> None:
        if self.faults.is_away:
            await asyncio.sleep(self._chance.choice((0.0, connect_seconds)))
            raise aiohttp.ClientConnectionError("connection refused, or nobody answers")
        await asyncio.sleep(self._chance.uniform(*_LATENCY_SECONDS) + self.faults.latency_seconds)
        if self.faults.is_away:
            raise aiohttp.ClientConnectionError("connection reset")

    async def _follow(self, asked: ApiRequest, at: int) -> AsyncIterator[bytes]:
        epoch = self._epoch
        loop = asyncio.get_running_loop()
        end = loop.time() + float(asked.query.get("timeoutSeconds", "300"))
        while epoch == self._epoch:
            changed, until = self._changed, end
            upto = at
            for version in self._newer(at):
                shown = self._changed_at[version] + self.faults.lag_seconds
                if shown > loop.time():  # so compared that the wait for it is never over at once
                    until = min(until, shown)
                    break
                upto = version
            for line in tuple(self._lines(asked, at, upto)) if upto > at else ():
                yield line
            at = upto
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await changed.wait()
            if loop.time() >= end:
                return
        raise aiohttp.ClientPayloadError("connection reset by peer")

    def _newer(self, at: int) -> list[int]:
        """The versions after `at`, oldest first."""
        newer = takewhile(lambda change: change[0] > at, reversed(self._changes))
        return [version for version, *_ in newer][::-1]


class Response:
    """As `aiohttp.ClientResponse`; its own `content`."""

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        lines: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {}
        self.content = self
        self._body = body
        self._lines = lines

    async def iter_any(self) -> AsyncIterator[bytes]:
        if self._lines is None:
            yield self._body
        else:
            async for line in self._lines:
                yield line


class Session:
    """As `aiohttp.ClientSession`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def close(self) -> None:
        """Nothing is open."""

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout: aiohttp.ClientTimeout,
        params: Mapping[str, str],
        data: bytes | None = None,
        **_: Any,
    ) -> AsyncIterator[Response]:
        path = "/" + url.split("/", 3)[3]
        body = None if data is None else json.loads(data)
        async with asyncio.timeout(timeout.total or timeout.sock_read):
            asked = ApiRequest(method, path, dict(params), body, "")
            answer = await self._api.answer(asked, timeout.sock_connect or 30.0)
        yield answer


def _read(answer: web.Response) -> Response:
    assert isinstance(answer.body, bytes)
    return Response(answer.status, answer.body, headers=dict(answer.headers))
