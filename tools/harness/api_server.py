"""A stand-in API server: as much of Kubernetes as an agent and a controller read and write.

Objects as JSON in memory, on loopback: list with selectors and pages, watch, get, merge patch, create, replace,
delete, bind; faults on request, and a list of what arrived. No access control, no validation, no history older
than itself; it forgets changes on `compact`, after which a watch from before gets 410.
"""

import asyncio
import bisect
import copy
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web

from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.api_availability import RetryPace
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from tools.harness.ports import free_port

Json = dict[str, Any]
QUICK = RetryPace(away_seconds=0.05, first_seconds=0.02, longest_seconds=0.1, watch_lag_seconds=2.0)
_LOOPBACK = "127.0.0.1"
_BOOKMARK_SECONDS = 60.0
_SELECTORS = ("field", "label")
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
    """The server and its objects, by path; callers change them as kubectl and the kubelet would.

    Attributes:
        requests: Everything that arrived.
        fault: Called with every request; an answer it returns is sent instead of the real one.
        latency: Seconds that a request takes, the opening of a watch too; it is carried out half way.
        is_mute: Whether watches stay open and tell nothing; what they missed comes when that ends.
        has_dra: Whether resource.k8s.io/v1 is served.
        page_size: Objects a page at most to who asks with a limit; 0 is as many as asked for.
    """

    served = re.compile(
        r"(?:/api/v1/nodes|/api/v1/pods|/api/v1/namespaces"
        r"|/api/v1/namespaces/[^/]+/(?:pods|events|configmaps|secrets)"
        r"|/apis/admissionregistration\.k8s\.io/v1/mutatingwebhookconfigurations"
        r"|/apis/coordination\.k8s\.io/v1/namespaces/[^/]+/leases"
        r"|/apis/apps/v1(?:/namespaces/[^/]+)?/daemonsets"
        r"|/apis/node\.k8s\.io/v1/runtimeclasses"
        r"|/apis/policy/v1/(?:namespaces/[^/]+/)?poddisruptionbudgets"
        r"|/apis/admissionregistration\.k8s\.io/v1/(?:validating|mutating)admissionpolicies"
        r"|/apis/resource\.k8s\.io/v1/(?:resourceslices|(?:namespaces/[^/]+/)?resourceclaim(?:s|templates)))"
        r"(?:/(?P<name>[^/]+))?(?:/binding)?"
    )
    """Paths of lists; of objects where the group `name` matches."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: list[ApiRequest] = []
        self.fault: Callable[[ApiRequest], web.Response | None] = lambda _: None
        self.latency: Callable[[ApiRequest], float] = lambda _: 0.0
        self.is_mute = False
        self.has_dra = True
        self.page_size = 0
        self.port = 0
        self._pages: dict[tuple[str, ...], list[Json]] = {}
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
        # Not of the kernel's range: while it is stopped, nobody else's connection takes its port.
        self.port = self.port or free_port()
        await web.TCPSite(self._runner, _LOOPBACK, self.port, reuse_address=True).start()

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

    def remove(self, path: str) -> Json:
        """Delete the object at `path`; returns what it was."""
        gone = copy.deepcopy(
            self.objects.pop(path)
        )  # a watch may not have shown its last change yet
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, "DELETED", path, gone, None))
        self._tell()
        return gone

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

    async def drop_watches(self) -> None:
        """Break every watch connection."""
        self._epoch += 1
        self._tell()

    def speak(self) -> None:
        """End `is_mute`."""
        self.is_mute = False
        self._tell()

    async def compact(self) -> None:
        """Forget all changes so far: older versions are gone (410)."""
        self._oldest = self._version
        self._changes.clear()

    async def put(self, path: str, value: Json) -> None:
        """Create or replace the object at `path` (as in a GET)."""
        self.store(path, value)

    def preload(self, path: str, value: Json) -> None:
        """Have an object from before the first watch: lists show it, no watch tells of it."""
        self.store(path, value)
        self._changes.clear()

    async def delete(self, path: str) -> None:
        """Delete the object at `path`."""
        self.remove(path)

    async def send_raw(self, path: str, kind: str, value: Json) -> None:
        """Send a watch line that changes no object: a bookmark, an error."""
        self._version += 1
        value.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self._changes.append((self._version, kind, path, value, None))
        self._tell()

    def seen(self, method: str, path: str = "") -> list[ApiRequest]:
        """Requests of `method` whose path contains `path`."""
        return [each for each in self.requests if each.method == method and path in each.path]

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
        half = self.latency(asked) / 2
        await asyncio.sleep(half)
        if "watch" in asked.query:
            refusal, epoch = self._refusal(asked), self._epoch
            await asyncio.sleep(half)
            return refusal if refusal is not None else await self._watch(request, asked, epoch)
        answer = self.respond(asked)
        await asyncio.sleep(half)
        return answer

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
        self.requests.append(asked)
        is_served = self.served.fullmatch(asked.path) and (
            self.has_dra or "resourceslices" not in asked.path
        )
        missing = status(404, "the server could not find the requested resource")
        return self.fault(asked) or (None if is_served else missing)

    def _one(self, asked: ApiRequest) -> web.Response:
        found = self.objects.get(asked.path)
        if found is None:
            return status(404, f"{asked.path} not found")
        if asked.method == "DELETE":
            return web.json_response(self.remove(asked.path))
        return self._write(asked, found) if asked.body else web.json_response(found)

    def _write(self, asked: ApiRequest, found: Json) -> web.Response:
        uid = asked.body.get("metadata", {}).get("uid")
        if uid is not None and uid != found["metadata"].get("uid"):
            return status(422, f"metadata.uid: Invalid value: {uid!r}: field is immutable")
        version = asked.body.get("metadata", {}).get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            return status(409, "the object has been modified")
        write = self.patch if asked.method == "PATCH" else self.store
        return web.json_response(write(asked.path, asked.body))

    def _create(self, asked: ApiRequest) -> web.Response:
        if asked.path.endswith("/binding"):
            return self.bind(asked)
        if "dryRun" in asked.query:
            return web.json_response(asked.body, status=201)
        path = f"{asked.path}/{asked.body['metadata']['name']}"
        if path in self.objects:
            return status(409, f"{path} already exists")
        return web.json_response(self.store(path, asked.body), status=201)

    def bind(self, asked: ApiRequest) -> web.Response:
        """As the API server does it: node and annotations at once, by uid and version."""
        path, meta = asked.path.removesuffix("/binding"), asked.body["metadata"]
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
            "spec": {"nodeName": asked.body["target"]["name"]},
        }
        self.patch(path, changed)
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    def _list(self, asked: ApiRequest) -> web.Response:
        start, _, version = asked.query.get("continue", "").partition("@")
        version = version or str(self._version)
        meta = {"resourceVersion": version}
        # All pages are of one moment, that of the first, as the API server's are.
        of = (asked.path, version, *(asked.query.get(f"{by}Selector", "") for by in _SELECTORS))
        items = self._pages.pop(of, None)
        if items is None:
            items = [v for p, v in self.objects.items() if is_listed(p, v, asked.path, asked.query)]
        if "limit" in asked.query:
            begin = int(start or 0)
            end = begin + min(int(asked.query["limit"]), self.page_size or len(items) + 1)
            if end < len(items):
                meta["continue"] = f"{end}@{version}"
                self._pages[of] = items
            items = items[begin:end]
        # client-go takes the list of nodes only by its own name.
        kind = "NodeList" if asked.path == "/api/v1/nodes" else "List"
        names = {"kind": kind, "apiVersion": "v1"}
        return web.json_response({**names, "metadata": meta, "items": items or None})

    async def _watch(
        self, request: web.Request, asked: ApiRequest, epoch: int
    ) -> web.StreamResponse:
        """Serve a watch that was let in during this epoch: one that opens afterwards ends at once."""
        at = int(asked.query.get("resourceVersion", "0"))
        if at < self._oldest:
            return status(410, "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        marked_at = loop.time()
        with suppress(ConnectionResetError):  # the client has gone
            while epoch == self._epoch:
                changed, upto = self._changed, self._version  # more may change while a write waits
                if self.is_mute:
                    await changed.wait()
                    continue
                for line in tuple(self._lines(asked, at, upto)):
                    await response.write(line[:7])  # lines arrive in pieces, as on a network
                    await response.write(line[7:])
                at = upto
                if loop.time() - marked_at >= _BOOKMARK_SECONDS:
                    meta, marked_at = {"resourceVersion": str(at)}, loop.time()
                    told = json.dumps({"type": "BOOKMARK", "object": {"metadata": meta}})
                    await response.write(told.encode() + b"\n")
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _BOOKMARK_SECONDS)
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
    wanted = re.findall(r"[^,(]+(?:\([^)]*\))?", query.get("labelSelector", ""))
    if not all(_holds(labels, term) for term in wanted):
        return False
    if value.get("kind") in ("Bookmark", "Status"):  # no object: a watch tells it to all
        return True
    terms = filter(None, query.get("fieldSelector", "").split(","))
    return all(
        ((_field(value, name.removesuffix("!")) or "") == text) != name.endswith("!")
        for name, _, text in (term.partition("=") for term in terms)
    )


def _holds(labels: Mapping[str, str], term: str) -> bool:
    """Whether labels satisfy one term of a selector: `a=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`."""
    key, _, rest = term.strip().partition(" ")
    if rest:
        verb, _, values = rest.partition(" ")
        return (labels.get(key) in values.strip("()").split(",")) is (verb == "in")
    name, is_equality, text = key.partition("=")
    if is_equality:
        return labels.get(name) == text
    return (name.removeprefix("!") in labels) is not name.startswith("!")


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


@asynccontextmanager
async def running(*, is_up: bool = True) -> AsyncIterator[tuple[StandInApiServer, ApiServer]]:
    """A stand-in and our client of it, paced for tests."""
    server = StandInApiServer()
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
