"""A stand-in API server: as much of Kubernetes as an agent reads and writes.

Nodes, pods and Events as JSON in memory, on loopback: list with selectors, watch,
get, merge patch, create. No access control, no validation, no history older than itself.
"""

import asyncio
import bisect
import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web

Json = dict[str, Any]
_LOOPBACK = "127.0.0.1"
_NAMESPACE = re.compile(r"/namespaces/[^/]+(?=/)")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    authorization: str


class StandInApiServer:
    """The server and its objects, by path; callers change them as kubectl and the kubelet would."""

    served = re.compile(r"/api/v1(?:/namespaces/[^/]+)?/(?:nodes|pods|events)(?:/(?P<name>[^/]+))?")
    """Paths of lists; of objects where the group `name` matches."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.port = 0
        self._changes: list[tuple[int, str, str, Json, Json | None]] = []
        self._version, self._oldest, self._epoch = 100, 0, 0
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on a port of loopback: on the same as before if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, _LOOPBACK, self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go away: watches break off, connections are refused; objects stay."""
        self._epoch += 1
        self._tell()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{_LOOPBACK}:{self.port}"

    def write_kubeconfig(self, path: Path) -> None:
        """Write what a client needs to be told."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in"}}],
            "clusters": [{"name": "stand-in", "cluster": {"server": self.url}}],
            "users": [],
        }
        path.write_text(json.dumps(config), encoding="utf-8")

    def store(self, path: str, value: Mapping[str, Any]) -> Json:
        """Create the object at `path` (as in a GET), or replace it."""
        self._version += 1
        kind = "MODIFIED" if path in self.objects else "ADDED"
        stored: Json = json.loads(json.dumps(value))
        meta = stored.setdefault("metadata", {})
        meta.setdefault("name", path.rpartition("/")[2])
        meta["resourceVersion"] = str(self._version)
        self._changes.append((self._version, kind, path, stored, self.objects.get(path)))
        self.objects[path] = stored
        self._tell()
        return stored

    def patch(self, path: str, patch: Mapping[str, Any]) -> Json:
        """Merge into the object at `path`."""
        return self.store(path, merge_patch(self.objects[path], patch))

    def get(self, path: str) -> Json:
        """The object at `path` as it is now; empty where there is none."""
        return copy.deepcopy(self.objects.get(path, {}))

    def events(self, kind: str, name: str) -> list[Json]:
        """Events about one object, oldest first."""
        found = [v for p, v in self.objects.items() if "/events/" in p]
        return [
            copy.deepcopy(event)
            for event in found
            if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (kind, name)
        ]

    def _tell(self) -> None:
        """Let every watch look for changes."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = ApiRequest(
            request.method,
            request.path,
            dict(request.query),
            json.loads(body) if body else None,
            request.headers.get("Authorization", ""),
        )
        if "watch" in asked.query:
            refusal = self._refusal(asked)
            return refusal if refusal is not None else await self._watch(request, asked)
        return self.respond(asked)

    def respond(self, asked: ApiRequest) -> web.Response:
        """The answer to a request that is no watch."""
        refusal = self._refusal(asked)
        if refusal is not None:
            return refusal
        if asked.method == "POST":
            return self._create(asked)
        match = self.served.fullmatch(asked.path)
        return self._one(asked) if match and match["name"] else self._list(asked)

    def _refusal(self, asked: ApiRequest) -> web.Response | None:
        """An answer to send instead of the real one."""
        if self.served.fullmatch(asked.path):
            return None
        return status(404, "the server could not find the requested resource")

    def _one(self, asked: ApiRequest) -> web.Response:
        found = self.objects.get(asked.path)
        if found is None:
            return status(404, f"{asked.path} not found")
        if asked.method == "PATCH":
            uid = asked.body.get("metadata", {}).get("uid")
            if uid is not None and uid != found["metadata"].get("uid"):
                return status(422, f"metadata.uid: Invalid value: {uid!r}: field is immutable")
            found = self.patch(asked.path, asked.body)
        return web.json_response(found)

    def _create(self, asked: ApiRequest) -> web.Response:
        path = f"{asked.path}/{asked.body['metadata']['name']}"
        if path in self.objects:
            return status(409, f"{path} already exists")
        return web.json_response(self.store(path, asked.body), status=201)

    def _list(self, asked: ApiRequest) -> web.Response:
        items = [v for p, v in self.objects.items() if is_listed(p, v, asked.path, asked.query)]
        return self._list_answer(asked, items, {"resourceVersion": str(self._version)})

    def _list_answer(self, asked: ApiRequest, items: list[Json], meta: Json) -> web.Response:
        # client-go takes the list of nodes only by its own name.
        kind = "NodeList" if asked.path == "/api/v1/nodes" else "List"
        names = {"kind": kind, "apiVersion": "v1"}
        return web.json_response({**names, "metadata": meta, "items": items or None})

    async def _watch(self, request: web.Request, asked: ApiRequest) -> web.StreamResponse:
        epoch, at = self._epoch, int(asked.query.get("resourceVersion", "0"))
        if at < self._oldest:
            return status(410, "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while epoch == self._epoch:
            changed, upto = self._changed, self._version  # more may change while a write waits
            for line in tuple(self._lines(asked, at, upto)):
                await response.write(line[:7])  # lines arrive in pieces, as on a network
                await response.write(line[7:])
            at = upto
            await changed.wait()
        if request.transport is not None:
            request.transport.abort()
        return response

    def _lines(self, asked: ApiRequest, after: int, upto: int) -> Iterator[bytes]:
        """What a watch shows of the changes of these versions."""
        begin = bisect.bisect_right(self._changes, after, key=lambda change: change[0])
        for version, kind, path, value, before in islice(self._changes, begin, None):
            if version > upto:
                return
            told = None
            if is_listed(path, value, asked.path, asked.query):
                told = {"type": kind, "object": value}
            elif before is not None and is_listed(path, before, asked.path, asked.query):
                meta = {**before["metadata"], "resourceVersion": str(version)}
                told = {
                    "type": "DELETED",
                    "object": {**before, "metadata": meta},
                }  # selected no more
            if told:
                yield json.dumps(told).encode() + b"\n"


def status(code: int, message: str, retry_after: str = "") -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(body, status=code, headers=headers)


def is_listed(path: str, value: Json, listed: str, query: Mapping[str, str]) -> bool:
    """Whether the object at `path` is of the list at `listed`, and passes its selectors."""
    collection = path.rpartition("/")[0]
    if listed not in (collection, _NAMESPACE.sub("", collection)):
        return False
    labels = value["metadata"].get("labels") or {}
    wanted = filter(None, query.get("labelSelector", "").split(","))
    if any(labels.get(name) != text for name, _, text in (term.partition("=") for term in wanted)):
        return False
    if value.get("kind") in ("Bookmark", "Status"):  # no object: a watch tells it to all
        return True
    terms = filter(None, query.get("fieldSelector", "").split(","))
    return all(
        (_field(value, name.removesuffix("!")) == text) != name.endswith("!")
        for name, _, text in (term.partition("=") for term in terms)
    )


def _field(value: Json, dotted: str) -> object:
    found: Any = value
    for key in dotted.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def merge_patch(target: object, patch: object) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result
