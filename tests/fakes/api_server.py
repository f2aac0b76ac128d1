"""A small API server on loopback: list, watch, get, patch, create and replace, with faults on request.

It keeps objects as JSON by path, numbers every change like etcd does, and forgets old
changes on `compact`, after which a watch from before gets 410.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.ports import free_port

from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.credentials import Credentials
from gpu_device_plugin.cluster.reach import Pace

Json = dict[str, Any]
Change = tuple[int, str, str, Json, Json | None]
"""Version, kind, path, the object, and the one before it where there was one."""
QUICK = Pace(away_seconds=0.05, first_seconds=0.02, longest_seconds=0.1, settle_seconds=0.1)

_COLLECTION = re.compile(
    r"(?P<base>/api/v1/nodes|/api/v1/pods|/api/v1/namespaces"
    r"|/api/v1/namespaces/(?P<ns>[^/]+)/(?:pods|events|configmaps|secrets)"
    r"|/apis/admissionregistration\.k8s\.io/v1/mutatingwebhookconfigurations"
    r"|/apis/coordination\.k8s\.io/v1/namespaces/[^/]+/leases"
    r"|/apis/apps/v1(?:/namespaces/[^/]+)?/daemonsets"
    r"|/apis/node\.k8s\.io/v1/runtimeclasses"
    r"|/apis/admissionregistration\.k8s\.io/v1/(?:validating|mutating)admissionpolicies"
    r"|/apis/resource\.k8s\.io/v1/(?:resourceslices|(?:namespaces/[^/]+/)?resourceclaim(?:s|templates)))(?:/(?P<name>[^/]+))?(?:/binding)?"
)

_OF_ALL_NAMESPACES = (
    "/api/v1/pods",
    "/apis/apps/v1/daemonsets",
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates",
)


@dataclass
class Seen:
    """One request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    authorization: str


@dataclass
class FakeApiServer:
    """The server; `put` and `delete` change its objects as other clients would.

    Attributes:
        fault: Called with every request; an answer it returns is sent instead of the real one.
        has_dra: Whether resource.k8s.io/v1 is served.
        page_size: Objects a page at most to who asks with a limit; 0 is as many as asked for.
    """

    objects: dict[str, Json] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    fault: Callable[[Seen], web.Response | None] = lambda _: None
    has_dra: bool = True
    page_size: int = 0
    port: int = 0
    _version: int = 100
    _oldest: int = 0
    _changes: list[Change] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None
    _epoch: int = 0

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        # Not of the kernel's range: while it is stopped, nobody else's connection takes its port.
        self.port = self.port or free_port()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        """Go away: connections break, new ones are refused; objects stay."""
        await self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def drop_watches(self) -> None:
        """Break every watch connection."""
        async with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    async def compact(self) -> None:
        """Forget all changes so far: older versions are gone (410)."""
        async with self._changed:
            self._oldest = self._version
            self._changes.clear()

    async def put(self, path: str, value: Json) -> None:
        """Create or replace the object at `path` (as in a GET)."""
        async with self._changed:
            self._store(path, value)
            self._changed.notify_all()

    def preload(self, path: str, value: Json) -> None:
        """Have an object from before the first watch: lists show it, no watch tells of it."""
        self._store(path, value)
        self._changes.clear()

    async def delete(self, path: str) -> None:
        """Delete the object at `path`."""
        async with self._changed:
            gone = self.objects.pop(path)
            self._version += 1
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._changes.append((self._version, "DELETED", path, gone, None))
            self._changed.notify_all()

    async def send_raw(self, path: str, kind: str, value: Json) -> None:
        """Send a watch line that changes no object: a bookmark, an error."""
        async with self._changed:
            self._version += 1
            value.setdefault("metadata", {})["resourceVersion"] = str(self._version)
            self._changes.append((self._version, kind, path, value, None))
            self._changed.notify_all()

    def seen(self, method: str, path: str = "") -> list[Seen]:
        """Requests of `method` whose path contains `path`."""
        return [s for s in self.requests if s.method == method and path in s.path]

    def _store(self, path: str, value: Json) -> Json:
        self._version += 1
        kind = "MODIFIED" if path in self.objects else "ADDED"
        value = json.loads(json.dumps(value))
        meta = value.setdefault("metadata", {})
        meta.setdefault("name", path.rsplit("/", 1)[1])
        meta["resourceVersion"] = str(self._version)
        before = self.objects.get(path)
        self.objects[path] = value
        self._changes.append((self._version, kind, path, value, before))
        return value

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        authorization = request.headers.get("Authorization", "")
        seen = Seen(
            request.method,
            request.path,
            dict(request.query),
            json.loads(body) if body else None,
            authorization,
        )
        self.requests.append(seen)
        fault = self.fault(seen)
        if fault is not None:
            return fault
        match = _COLLECTION.fullmatch(request.path)
        if match is None or ("resourceslices" in request.path and not self.has_dra):
            return status(404, "the server could not find the requested resource")
        if "watch" in seen.query:
            return await self._watch(request, seen)
        if request.method == "POST":
            return await self._create(seen)
        return await self._object(seen) if match["name"] else self._list(seen)

    async def _object(self, seen: Seen) -> web.Response:
        found = self.objects.get(seen.path)
        if found is None:
            return status(404, f"{seen.path} not found")
        if seen.method == "DELETE":
            await self.delete(seen.path)
            return web.json_response(found)
        if seen.method == "PUT":
            return await self._replace(seen, found)
        if seen.method == "PATCH":
            uid = seen.body.get("metadata", {}).get("uid")
            if uid is not None and uid != found["metadata"].get("uid"):
                return status(422, f"metadata.uid: Invalid value: {uid!r}: field is immutable")
            async with self._changed:
                found = self._store(seen.path, _merge(found, seen.body))
                self._changed.notify_all()
        return web.json_response(found)

    async def _replace(self, seen: Seen, found: Json) -> web.Response:
        version = seen.body["metadata"].get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            return status(409, "the object has been modified")
        async with self._changed:
            made = self._store(seen.path, seen.body)
            self._changed.notify_all()
        return web.json_response(made)

    async def _create(self, seen: Seen) -> web.Response:
        if seen.path.endswith("/binding"):
            return await self._bind(seen)
        path = f"{seen.path}/{seen.body['metadata']['name']}"
        if path in self.objects:
            return status(409, "already exists")
        if "dryRun" in seen.query:
            return web.json_response(seen.body, status=201)
        async with self._changed:
            made = self._store(path, seen.body)
            self._changed.notify_all()
        return web.json_response(made, status=201)

    async def _bind(self, seen: Seen) -> web.Response:
        """As the API server does it: node and annotations at once, by uid and version."""
        path, meta = seen.path.removesuffix("/binding"), seen.body["metadata"]
        found = self.objects.get(path)
        if found is None:
            return status(404, f"{path} not found")
        for key in ("uid", "resourceVersion"):
            if meta.get(key) and meta[key] != found["metadata"].get(key):
                return status(409, f"the object has been modified: {key}")
        if found["spec"].get("nodeName"):
            return status(409, f"pod is already assigned to node {found['spec']['nodeName']}")
        changed = {
            "metadata": {"annotations": meta.get("annotations", {})},
            "spec": {"nodeName": seen.body["target"]["name"]},
        }
        async with self._changed:
            self._store(path, _merge(found, changed))
            self._changed.notify_all()
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    def _list(self, seen: Seen) -> web.Response:
        items = [v for p, v in self.objects.items() if _is_in(p, v, seen)]
        meta = {"resourceVersion": str(self._version)}
        if "limit" in seen.query:
            start = int(seen.query.get("continue", 0))
            end = start + min(int(seen.query["limit"]), self.page_size or len(items) + 1)
            meta |= {"continue": str(end)} if end < len(items) else {}
            items = items[start:end]
        # client-go takes the list of nodes only by its own name.
        kind = "NodeList" if seen.path == "/api/v1/nodes" else "List"
        names = {"kind": kind, "apiVersion": "v1"}
        return web.json_response({**names, "metadata": meta, "items": items or None})

    async def _watch(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        epoch, at = self._epoch, int(seen.query["resourceVersion"])
        if at < self._oldest:
            return status(410, "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while epoch == self._epoch:
            upto = self._version  # a write may wait, and more change meanwhile
            for change in list(self._changes):
                told = _told(change, seen)
                if told is None or not at < change[0] <= upto:
                    continue
                line = json.dumps(told).encode() + b"\n"
                await response.write(line[:7])  # lines arrive in pieces, as on a network
                await response.write(line[7:])
            at = upto
            async with self._changed:
                if at == self._version and epoch == self._epoch:
                    await self._changed.wait()
        if request.transport is not None:
            request.transport.abort()
        return response


def _told(change: Change, seen: Seen) -> Json | None:
    """What a watch shows of a change; of an object that is selected no more, that it is deleted."""
    version, kind, path, value, before = change
    if _is_in(path, value, seen):
        return {"type": kind, "object": value}
    if before is None or not _is_in(path, before, seen):
        return None
    meta = {**before["metadata"], "resourceVersion": str(version)}
    return {"type": "DELETED", "object": {**before, "metadata": meta}}


def status(code: int, message: str, retry_after: str = "") -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    headers = {"Retry-After": retry_after} if retry_after else {}
    return web.json_response(body, status=code, headers=headers)


def _is_in(path: str, value: Json, seen: Seen) -> bool:
    """Whether the object is of the list that was asked for, and passes its field selector."""
    collection = path.rsplit("/", 1)[0]
    if seen.path in _OF_ALL_NAMESPACES:
        if not collection.endswith(seen.path.rpartition("/")[2]):
            return False
    elif collection != seen.path:
        return False
    if not _has_labels(value, seen.query.get("labelSelector", "")):
        return False
    for term in filter(None, seen.query.get("fieldSelector", "").split(",")):
        name, wanted = term.split("=")
        found: Any = value
        for key in name.removesuffix("!").split("."):
            found = found.get(key, {})
        is_as_asked = (found == wanted) != name.endswith("!")
        if value.get("kind") not in ("Bookmark", "Status") and not is_as_asked:
            return False
    return True


def _has_labels(value: Json, selector: str) -> bool:
    labels = value["metadata"].get("labels") or {}
    terms = (term.split("=") for term in filter(None, selector.split(",")))
    return all(labels.get(name) == wanted for name, wanted in terms)


def _merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


@asynccontextmanager
async def running(*, is_up: bool = True) -> AsyncIterator[tuple[FakeApiServer, ApiServer]]:
    """A fake server and our client of it, paced for tests."""
    server = FakeApiServer()
    await server.start()
    if not is_up:
        await server.stop()

    async def load() -> Credentials:
        return Credentials(f"http://127.0.0.1:{server.port}", header="Bearer secret")

    api = ApiServer(load, pace=QUICK)
    try:
        yield server, api
    finally:
        await api.close()
        await server.stop()


@asynccontextmanager
async def working(*loops: Callable[[], Any]) -> AsyncIterator[None]:
    """Run these `run` coroutines meanwhile; their failure fails the test."""
    tasks = [asyncio.ensure_future(loop()) for loop in loops]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def kubeconfig(path: Path, server: str, user: Json) -> Path:
    """Write a kubeconfig with one context."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path
