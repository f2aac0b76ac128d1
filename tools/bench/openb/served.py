"""The controller as kube-scheduler sees it: the trace's cluster at an API server, calls over HTTP."""

import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from tools.bench.extender import Caller, end_controller, start_controller
from tools.bench.openb.trace import Node, Pod
from tools.harness.api_server import StandInApiServer, kubeconfig, running
from tools.harness.objects import path

from gpu_device_plugin.domain.fractions.demands import COUNT_LABEL
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION

_UNIT_MIB = 128
"""A card has a thousand units of it: one for each thousandth of the trace."""


class Served:
    """A controller of its own process (tools.bench.openb.scheduler: Extender)."""

    def __init__(self, server: StandInApiServer, caller: Caller, names: Sequence[str]) -> None:
        self._server, self._caller, self._names = server, caller, names
        self._at = {name: at for at, name in enumerate(names)}

    async def rate(self, number: int, pod: Pod, nodes: Sequence[int]) -> Mapping[int, int]:
        """By the answers to filter and prioritize."""
        each = _pod(number, pod)
        await self._server.put(path(each), each)
        names = [self._names[node] for node in nodes]
        kept = (await self._ask("filter", each, names))["NodeNames"] or []
        scores = await self._ask("prioritize", each, kept) if kept else []
        return {self._at[score["Host"]]: score["Score"] for score in scores}

    async def bind(self, number: int, pod: Pod, node: int | None) -> None:
        """By the controller, or, without cards, by kube-scheduler itself."""
        each = _pod(number, pod)
        if node is None:
            if pod.shape.cards:
                await self._server.delete(path(each))
        elif pod.shape.cards:
            await self._caller.bind(each, self._names[node])
        else:
            each["spec"]["nodeName"] = self._names[node]
            await self._server.put(path(each), each)

    async def _ask(self, verb: str, pod: Mapping[str, Any], names: Sequence[str]) -> Any:
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        return await self._caller.ask(verb, body)


@asynccontextmanager
async def served(nodes: Sequence[Node], *flags: str) -> AsyncIterator[Served]:
    """A controller with the policy `fgd` and this cluster, empty."""
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(running())
        names = [f"n{number:04}" for number in range(len(nodes))]
        for name, each in zip(names, nodes, strict=True):
            server.preload(f"/api/v1/nodes/{name}", _node(name, each))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = kubeconfig(folder / "k", f"http://127.0.0.1:{server.port}", {"token": "t"})
        process, ports = await start_controller(config, "--placement", "fgd", *flags)
        stack.push_async_callback(end_controller, process)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(server, Caller(session, ports, process.pid), names)


def _node(name: str, node: Node) -> dict[str, Any]:
    memory = _UNIT_MIB * 1000
    cards = [
        {"index": n, "uuid": f"GPU-{name}-{n}", "model": "", "memory_mib": memory, "healthy": True}
        for n in range(len(node.room.cards))
    ]
    told = {"version": 1, "mode": "share", "unit_mib": _UNIT_MIB, "cards": cards}
    return {
        "metadata": {"name": name, "annotations": {CARDS_ANNOTATION: json.dumps(told)}},
        "status": {"allocatable": {"cpu": f"{node.room.cpu_milli}m"}},
    }


def _pod(number: int, pod: Pod) -> dict[str, Any]:
    name = f"p{number}"
    labels = {COUNT_LABEL: str(pod.shape.cards)} if pod.shape.cards > 1 else {}
    limits = {Resource.MEM.value: str(pod.card_milli)} if pod.card_milli else {}
    resources = {"limits": limits, "requests": {"cpu": f"{pod.shape.cpu_milli}m"}}
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": labels},
        "spec": {"containers": [{"name": "a", "resources": resources}]},
    }
