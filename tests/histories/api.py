"""The API server in memory, as an HTTP session shows it, with everything that can be wrong with it."""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from gpu_device_plugin.simulation.api_server import is_listed, merge_patch

Json = dict[str, Any]
_COLLECTION = re.compile(
    r"(?:/api/v1/nodes|/api/v1/pods|/api/v1/namespaces/[^/]+/(?:pods|events)"
    r"|/apis/resource\.k8s\.io/v1/resourceslices)(?:/(?P<name>[^/]+))?"
)
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


class Api:
    """Objects by path; every change is numbered, and watches tell it.

    Attributes:
        objects: Everything there is, as a GET shows it.
        faults: What is wrong now.
    """

    def __init__(self, chance: random.Random) -> None:
        self.objects: dict[str, Json] = {}
        self.faults = Faults()
        self._chance = chance
        self._version = 100
        self._oldest = 0
        self._changes: list[tuple[int, float, str, str, Json]] = []
        self._changed = asyncio.Event()
        self._epoch = 0

    # -- as kubectl, kubelet and controllers use it

    def put(self, path: str, value: Json) -> Json:
        """Create or replace the object at `path`."""
        kind = "MODIFIED" if path in self.objects else "ADDED"
        value = json.loads(json.dumps(value))
        value.setdefault("metadata", {}).setdefault("name", path.rpartition("/")[2])
        self.objects[path] = value
        return self._note(kind, path, value)

    def patch(self, path: str, patch: Json) -> None:
        """Merge into the object at `path`, if there is one."""
        if path in self.objects:
            self.put(path, merge_patch(self.objects[path], patch))

    def delete(self, path: str) -> None:
        """Delete the object at `path`, if there is one."""
        gone = self.objects.pop(path, None)
        if gone is not None:
            self._note("DELETED", path, gone)

    def go_away(self) -> None:
        """Break every connection, and answer nothing until told otherwise."""
        self.faults.is_away = True
        self.drop_watches()

    def drop_watches(self) -> None:
        """Break every watch."""
        self._epoch += 1
        self.wake()

    def compact(self) -> None:
        """Forget what changed: watches from before get 410."""
        self._oldest = self._version
        self._changes.clear()
        self.drop_watches()

    def wake(self) -> None:
        """Let every watch look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _note(self, kind: str, path: str, value: Json) -> Json:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        now = asyncio.get_running_loop().time()
        self._changes.append((self._version, now, kind, path, json.loads(json.dumps(value))))
        self.wake()
        return value

    # -- as a client sees it

    async def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Any, connect_seconds: float
    ) -> "Response":
        """One request."""
        await self._reached(connect_seconds)
        match = _COLLECTION.fullmatch(path)
        kind = path.removesuffix(f"/{match['name']}").rpartition("/")[2] if match else ""
        if kind in self.faults.throttled:
            return _status(429, "too many requests", {"Retry-After": "1"})
        if match is None:
            return _status(404, "the server could not find the requested resource")
        if "watch" in query:
            return self._watch(path, query)
        if method == "POST":
            return self._create(path, body)
        return self._one(method, path, body) if match["name"] else self._list(path, query)

    async def _reached(self, connect_seconds: float) -> None:
        if self.faults.is_away:
            await asyncio.sleep(self._chance.choice((0.0, connect_seconds)))
            raise aiohttp.ClientConnectionError("connection refused, or nobody answers")
        await asyncio.sleep(self._chance.uniform(*_LATENCY_SECONDS) + self.faults.latency_seconds)
        if self.faults.is_away:
            raise aiohttp.ClientConnectionError("connection reset")

    def _list(self, path: str, query: Mapping[str, str]) -> "Response":
        items = [v for at, v in self.objects.items() if is_listed(at, v, path, query)]
        meta = {"resourceVersion": str(self._version)}
        return Response(200, json.dumps({"metadata": meta, "items": items}).encode())

    def _create(self, collection: str, body: Json) -> "Response":
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            return _status(409, "already exists")
        return Response(201, json.dumps(self.put(path, body)).encode())

    def _one(self, method: str, path: str, body: Any) -> "Response":
        found = self.objects.get(path)
        if found is None:
            return _status(404, f"{path} not found")
        if method == "PATCH":
            uid = body.get("metadata", {}).get("uid")
            if uid is not None and uid != found["metadata"].get("uid"):
                return _status(422, "metadata.uid: field is immutable")
            found = self.put(path, merge_patch(found, body))
        return Response(200, json.dumps(found).encode())

    def _watch(self, path: str, query: Mapping[str, str]) -> "Response":
        at = int(query["resourceVersion"])
        if at < self._oldest:
            return _status(410, "too old resource version")
        return Response(200, lines=self._lines(path, query, at))

    async def _lines(self, path: str, query: Mapping[str, str], at: int) -> AsyncIterator[bytes]:
        epoch = self._epoch
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds", "300"))
        while epoch == self._epoch:
            changed, until = self._changed, end
            for version, since, kind, where, value in tuple(self._changes):
                if version <= at:
                    continue
                if since + self.faults.lag_seconds > loop.time():
                    until = min(until, since + self.faults.lag_seconds)
                    break
                at = version
                if is_listed(where, value, path, {}):
                    # What stops to match is gone for this watch; of what never did it knows nothing.
                    told = kind if is_listed(where, value, path, query) else "DELETED"
                    yield json.dumps({"type": told, "object": value}).encode() + b"\n"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await changed.wait()
            if loop.time() >= end:
                return
        raise aiohttp.ClientPayloadError("connection reset by peer")


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
            answer = await self._api.answer(
                method, path, params, body, timeout.sock_connect or 30.0
            )
        yield answer


def _status(code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = {"kind": "Status", "message": message, "code": code}
    return Response(code, json.dumps(body).encode(), headers=headers)
