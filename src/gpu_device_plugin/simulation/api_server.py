"""A stand-in API server: as much of Kubernetes as an agent reads and writes.

Nodes, pods and Events as JSON in memory, on loopback: list with a field selector, watch,
get, merge patch, create. No access control, no validation, no history older than itself.
"""

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

Json = dict[str, Any]
_LOOPBACK = "127.0.0.1"
_LISTS = ("/nodes", "/pods", "/events")


class StandInApiServer:
    """The server and its objects; callers change them as kubectl and the kubelet would."""

    def __init__(self) -> None:
        self._objects: dict[str, Json] = {}
        self._changes: list[tuple[int, str, str, Json, Json | None]] = []
        self._version = 1
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, _LOOPBACK, 0).start()

    async def stop(self) -> None:
        """End; watches break off."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def url(self) -> str:
        """Where it listens, between `start` and `stop`."""
        port = self._runner.addresses[0][1] if self._runner else 0
        return f"http://{_LOOPBACK}:{port}"

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

    def put(self, path: str, value: Mapping[str, Any]) -> None:
        """Create the object at `path` (as in a GET), or replace it."""
        self._store(path, copy.deepcopy(dict(value)))

    def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Merge into the object at `path`."""
        self._store(path, _merged(self._objects[path], patch))

    def get(self, path: str) -> Json:
        """The object at `path` as it is now; empty where there is none."""
        return copy.deepcopy(self._objects.get(path, {}))

    def events(self, kind: str, name: str) -> list[Json]:
        """Events about one object, oldest first."""
        found = [v for p, v in self._objects.items() if "/events/" in p]
        return [
            copy.deepcopy(event)
            for event in found
            if (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (kind, name)
        ]

    def _store(self, path: str, value: Json) -> Json:
        self._version += 1
        kind = "MODIFIED" if path in self._objects else "ADDED"
        meta = value.setdefault("metadata", {})
        meta.setdefault("name", path.rpartition("/")[2])
        meta["resourceVersion"] = str(self._version)
        before = self._objects.get(path)
        self._objects[path] = value
        self._changes.append((self._version, kind, path, value, before))
        self._changed.set()
        self._changed = asyncio.Event()
        return value

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        is_list = request.path.startswith("/api/v1/") and request.path.endswith(_LISTS)
        if is_list and "watch" in request.query:
            return await self._watch(request)
        if is_list and request.method == "POST":
            return self._create(request.path, await request.json())
        if is_list:
            return self._list(request)
        if request.path in self._objects:
            return self._one(request.method, request.path, await request.read())
        return _status(404, f"{request.path} not found")

    def _one(self, method: str, path: str, body: bytes) -> web.Response:
        if method == "PATCH":
            patch, found = json.loads(body), self._objects[path]
            uid = patch.get("metadata", {}).get("uid")
            if uid is not None and uid != found["metadata"].get("uid"):
                return _status(422, f"metadata.uid: Invalid value: {uid!r}: field is immutable")
            self._store(path, _merged(found, patch))
        return web.json_response(self._objects[path])

    def _create(self, collection: str, value: Json) -> web.Response:
        path = f"{collection}/{value['metadata']['name']}"
        if path in self._objects:
            return _status(409, f"{path} already exists")
        return web.json_response(self._store(path, value), status=201)

    def _list(self, request: web.Request) -> web.Response:
        items = [v for p, v in self._objects.items() if _is_listed(request, p, v)]
        meta = {"resourceVersion": str(self._version)}
        return web.json_response({"kind": "List", "metadata": meta, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen = int(request.query.get("resourceVersion", "0"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            changed = self._changed
            for line in self._lines_after(seen, request):
                await response.write(line)
            seen = self._version
            await changed.wait()

    def _lines_after(self, seen: int, request: web.Request) -> Iterator[bytes]:
        for version, kind, path, value, before in tuple(self._changes):
            if version <= seen:
                continue
            if _is_listed(request, path, value):
                yield json.dumps({"type": kind, "object": value}).encode() + b"\n"
            elif before is not None and _is_listed(request, path, before):
                gone = {**before, "metadata": value["metadata"]}  # selected no more
                yield json.dumps({"type": "DELETED", "object": gone}).encode() + b"\n"


def _is_listed(request: web.Request, path: str, value: Json) -> bool:
    """Whether the object belongs to the list at the request's path, and is selected."""
    collection, wanted = path.rpartition("/")[0], request.path
    kind = wanted.rpartition("/")[2]
    is_of_all_namespaces = wanted.count("/") == 3 and collection.endswith(f"/{kind}")
    if collection != wanted and not is_of_all_namespaces:
        return False
    terms = filter(None, request.query.get("fieldSelector", "").split(","))
    parts = (term.partition("=") for term in terms)
    return all(
        (_field(value, name.removesuffix("!")) == text) != name.endswith("!")
        for name, _, text in parts
    )


def _field(value: Json, dotted: str) -> object:
    found: Any = value
    for key in dotted.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _merged(target: object, patch: object) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)
