"""The stand-in API server with more kinds of objects, faults on request, and a list of what arrived.

It forgets old changes on `compact`, after which a watch from before gets 410.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from tools.harness.ports import free_port

from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.api_availability import RetryPace
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from gpu_device_plugin.simulation.api_server import ApiRequest, Json, StandInApiServer, status

__all__ = ["FakeApiServer", "Json", "Seen", "kubeconfig", "running", "status", "working"]
Seen = ApiRequest
QUICK = RetryPace(away_seconds=0.05, first_seconds=0.02, longest_seconds=0.1, watch_lag_seconds=2.0)


class FakeApiServer(StandInApiServer):
    """The server; `put` and `delete` change its objects as other clients would.

    Attributes:
        requests: Everything that arrived.
        fault: Called with every request; an answer it returns is sent instead of the real one.
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
        r"|/apis/admissionregistration\.k8s\.io/v1/(?:validating|mutating)admissionpolicies"
        r"|/apis/resource\.k8s\.io/v1/(?:resourceslices|(?:namespaces/[^/]+/)?resourceclaim(?:s|templates)))"
        r"(?:/(?P<name>[^/]+))?(?:/binding)?"
    )

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Seen] = []
        self.fault: Callable[[Seen], web.Response | None] = lambda _: None
        self.has_dra = True
        self.page_size = 0

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        # Not of the kernel's range: while it is stopped, nobody else's connection takes its port.
        self.port = self.port or free_port()
        await super().start()

    async def drop_watches(self) -> None:
        """Break every watch connection."""
        self._epoch += 1
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

    def seen(self, method: str, path: str = "") -> list[Seen]:
        """Requests of `method` whose path contains `path`."""
        return [each for each in self.requests if each.method == method and path in each.path]

    def _refusal(self, asked: Seen) -> web.Response | None:
        self.requests.append(asked)
        fault = self.fault(asked)
        if fault is None and "resourceslices" in asked.path and not self.has_dra:
            return status(404, "the server could not find the requested resource")
        return fault if fault is not None else super()._refusal(asked)

    def _one(self, asked: Seen) -> web.Response:
        found = self.objects.get(asked.path)
        if found is not None and asked.method == "DELETE":
            return web.json_response(self.remove(asked.path))
        if found is not None and asked.method == "PUT":
            version = asked.body["metadata"].get("resourceVersion")
            if version and version != found["metadata"]["resourceVersion"]:
                return status(409, "the object has been modified")
            return web.json_response(self.store(asked.path, asked.body))
        return super()._one(asked)

    def remove(self, path: str) -> Json:
        """The same; returns what it was."""
        gone = self.objects.pop(path)
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append((self._version, "DELETED", path, gone, None))
        self._tell()
        return gone

    def _create(self, asked: Seen) -> web.Response:
        if asked.path.endswith("/binding"):
            return self._bind(asked)
        if "dryRun" in asked.query:
            return web.json_response(asked.body, status=201)
        return super()._create(asked)

    def _bind(self, asked: Seen) -> web.Response:
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

    def _list_answer(self, asked: Seen, items: list[Json], meta: Json) -> web.Response:
        if "limit" in asked.query:
            start = int(asked.query.get("continue", 0))
            end = start + min(int(asked.query["limit"]), self.page_size or len(items) + 1)
            meta |= {"continue": str(end)} if end < len(items) else {}
            items = items[start:end]
        return super()._list_answer(asked, items, meta)


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
