"""A controller in this process, and the small API server that it follows."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, kubeconfig, running, working
from tools.harness.objects import Json, path
from tools.harness.waiting import until

from gpu_device_plugin.controller.preemption import CountBroken
from gpu_device_plugin.controller.run_controller import Controller, Times
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.settings.controller_settings import ControllerSettings


@dataclass
class Running:
    """A controller and the cluster that it follows."""

    server: StandInApiServer
    controller: Controller
    session: aiohttp.ClientSession

    async def call(self, verb: str, body: Any) -> Any:
        """The decoded answer; a text where it is no JSON."""
        url = f"http://127.0.0.1:{self.controller.server.port}/gpushare-scheduler/{verb}"
        data = body if isinstance(body, bytes | io.BytesIO) else json.dumps(body).encode()
        async with self.session.post(url, data=data) as response:
            text = await response.text()
            return json.loads(text) if response.status == 200 else (response.status, text)

    async def filter(self, asking: Json, *names: str) -> Any:
        """The answer for these candidates."""
        return await self.call("filter", {"Pod": asking, "NodeNames": list(names)})

    async def bind(self, asking: Json, name: str) -> str:
        """Why the pod was not bound, or ""."""
        meta = asking["metadata"]
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": name,
        }
        return str((await self.call("bind", body))["Error"])

    async def get(self, path: str, *, port: int = 0) -> tuple[int, str]:
        """Status and text of a page."""
        url = f"http://127.0.0.1:{port or self.controller.server.port}{path}"
        async with self.session.get(url) as response:
            return response.status, await response.text()

    async def put(self, value: Json) -> None:
        """Create or replace a pod."""
        await self.server.put(path(value), value)


async def no_budgets(_: Collection[PodRef]) -> CountBroken:
    """Of a cluster without PodDisruptionBudgets."""
    return lambda _: 0


@asynccontextmanager
async def a_controller(
    folder: Path,
    nodes: tuple[Json, ...],
    pods: tuple[Json, ...] = (),
    *,
    fault: Callable[[ApiRequest], web.Response | None] = lambda _: None,
    until_ready: bool = True,
    **chosen: Any,
) -> AsyncIterator[Running]:
    """A controller that has read these nodes and pods, and leads."""
    async with running() as (server, _):
        server.fault = fault
        for each in nodes:
            await server.put(f"/api/v1/nodes/{each['metadata']['name']}", each)
        for each in pods:
            await server.put(path(each), each)
        async with a_replica(server, folder, "only", until_ready=until_ready, **chosen) as found:
            await until(lambda: found.controller.leadership.leads())
            yield found


@asynccontextmanager
async def a_replica(
    server: StandInApiServer,
    folder: Path,
    name: str,
    times: Times | None = None,
    *,
    until_ready: bool = True,
    api_port: int = 0,
    **chosen: Any,
) -> AsyncIterator[Running]:
    """A controller of this pod name and token that has synced, if that is waited for.

    It reaches the API server at `api_port`, where a proxy is; 0 for the server itself.
    """
    url = f"http://127.0.0.1:{api_port or server.port}"
    config = kubeconfig(folder / f"kubeconfig-{name}", url, {"token": name})
    settings = ControllerSettings(
        address="127.0.0.1:0",
        metrics_address="127.0.0.1:0",
        plain_http=True,
        kubeconfig=str(config),
        max_body=1,
        namespace="ns",
        pod_name=name,
        **{"models": True, **chosen},
    )
    controller = Controller(settings, times or Times(ending_seconds=0))
    listening = asyncio.Event()
    async with aiohttp.ClientSession() as session, working(lambda: controller.run(listening.set)):
        await listening.wait()
        found = Running(server, controller, session)

        async def is_ready() -> bool:
            return (await found.get("/readyz", port=controller.pages.port))[0] == 200

        if until_ready:
            await until(is_ready)
        yield found
