"""What kube-scheduler waits for: filter and prioritize over HTTP, in a cluster of 5,000 nodes."""

import asyncio
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import aiohttp
from tools.bench.machine import resident_mib
from tools.bench.rows import Chapter, Row, at_most, quantile, shown
from tools.harness.api_server import StandInApiServer, kubeconfig, running
from tools.harness.objects import held, node, path, pod
from tools.harness.ports import free_port

from gpu_device_plugin.domain.node.modes import PLACEMENT_ANNOTATION, PlacementPolicy
from gpu_device_plugin.web.extender_server import PREFIX

_CARDS = 8
_BURST = 64
_NODE_CPU, _POD_CPU = "96", "4"
_WHOLE_ROUNDS = 5
_SEED = 7
_SHAPES = random.Random(_SEED).sample(  # noqa: S311
    [(units, percent) for units in range(1, 16) for percent in range(5, 101, 5)], 40
)
_BOUND = 4
_TOLD_SECONDS = 0.003
_HEAD = re.compile(rb"(?is).*?\r\ncontent-length: *(\d+).*?\r\n\r\n")
_PREFERENCE = {
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ]
}
_TITLE = "The scheduler extender"
_METHOD = """\
How long kube-scheduler waits for the controller's answers about one pod, in a cluster of {nodes:,} nodes of {cards} V100 with {pods:,} pods
with slices. A question names 500 or 5,000 nodes. kube-scheduler asks about one pod after the other, so this time bounds how many it places in a second.

The controller is a process of its own; the API server is the small one of the tests, on the same machine. Times are of both calls together, from the first byte sent on a kept connection to the last byte read, without the client's JSON. {rounds:,} rounds by each policy, first calls included. Processor time is the controller's (schedstat).

A round asks about a pod of one of {shapes} shapes (of 1 to 15 units and 5 to 100 %, drawn with the seed {seed}), with names of nodes
drawn at random. The pods of the cluster, with 4 processors each, have these shapes too. Between two rounds a pod moves to another node,
and every fourth pod is bound where it was sent. The figures of
2026-11-24 took the shapes in turn instead, so pods of only ten of the 40 shapes were bound.

Whole nodes: objects of 16 KB each, as kube-scheduler sends them where the extender is not `nodeCacheCapable`.

p99 misses because the controller's own processor time grows; in which step was not found.

What `--filter-keeps` costs: processor time of filter and prioritize without HTTP, 40 shapes, median and 95th percentile (2026-11-23, 80
rounds each, busy machine). With the best eight, 5,000 names take `binpack` 9.1 and 10.1 ms, `fgd` 10.7 and 11.8 ms; with all 17.1 and
18.7 ms, 20.0 and 21.7 ms. 500 names take `fgd` 2.7 and 3.3 ms, with all 3.7 and 4.4 ms."""


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster, and how it is asked.

    Attributes:
        bars_ms: Number of names in a question -> what filter and prioritize may take together.
    """

    nodes: int
    pods: int
    rounds: int
    bars_ms: Mapping[int, float]
    resident_mib: float

    @property
    def amounts(self) -> Mapping[str, int]:
        """As the words of a chapter name them."""
        return {
            "nodes": self.nodes,
            "cards": _CARDS,
            "pods": self.pods,
            "rounds": self.rounds,
            "shapes": len(_SHAPES),
            "seed": _SEED,
        }


_SIZE = Size(5000, 20000, 3000, {500: 5.0, 5000: 10.0}, 140)


async def measure() -> Chapter:
    """Ask one controller, many times."""
    async with cluster(_SIZE) as asked:
        caller, names, pid = asked.caller, asked.names, asked.pid
        played = await asked.play_all()
        soft = await asked.play(_SIZE.nodes, PlacementPolicy.FGD, _PREFERENCE)
        resident, counted = resident_mib(pid), await caller.answering("filter")
        whole = [await _whole(caller, names) for _ in range(_WHOLE_ROUNDS)]
        answering = (await caller.answering("filter") - counted) / _WHOLE_ROUNDS
        peak = _peak_mib(pid)
        burst = await _burst(caller, asked.server)
    rows = [
        *played,
        shown(
            f"by fgd, {_SIZE.nodes:,} names, pods with preferences: all that fit stay, median and p99",
            _two(soft[0]),
        ),
        shown("processor time of it, median and p99", _two(soft[1])),
        at_most(
            f"filter, {_SIZE.nodes:,} whole nodes ({len(_body(names)) / 1e6:.0f} MB), after the body is read, mean",
            1000 * answering,
            250,
            "ms",
            0,
        ),
        shown("the same with the transfer, median", f"{1000 * quantile(whole, 0.5):.0f} ms"),
        at_most(
            f"{_BURST} pods for one node, filtered and bound one after the other", burst, 5, "s", 2
        ),
        at_most("resident with names only", resident, _SIZE.resident_mib, "MiB", 0),
        shown("resident at most, with whole nodes", f"{peak:.0f} MiB"),
    ]
    return Chapter(_TITLE, _METHOD.format(**_SIZE.amounts), tuple(rows))


def _two(seconds: Sequence[float]) -> str:
    return f"{1000 * quantile(seconds, 0.5):.2f} ms, {1000 * quantile(seconds, 0.99):.2f} ms"


def _fill(server: StandInApiServer, drawn: random.Random, size: Size) -> Sequence[str]:
    """Nodes and pods; the names of the nodes."""
    names = [f"n{number:05}" for number in range(size.nodes)]
    for name in names:
        server.preload(f"/api/v1/nodes/{name}", node(name, _CARDS, cpu=_NODE_CPU))
    for number in range(size.pods):
        units, percent = drawn.choice(_SHAPES)
        told = held(number // size.nodes * 2 % _CARDS, units, percent)
        on = names[number % size.nodes]
        each = pod(f"p{number}", units, percent, on=on, annotations=told, cpu=_POD_CPU)
        server.preload(path(each), each)
    return names


async def end_controller(process: asyncio.subprocess.Process) -> None:
    """Ends it, and waits for that."""
    process.terminate()
    await process.wait()


class Caller:
    """Asks a controller over HTTP as kube-scheduler does."""

    def __init__(self, session: aiohttp.ClientSession, ports: tuple[int, int], pid: int) -> None:
        self._session, self._base = session, f"http://127.0.0.1:{ports[0]}{PREFIX}"
        self._metrics = f"http://127.0.0.1:{ports[1]}/metrics"
        self._clock = Path(f"/proc/{pid}/schedstat")
        self._address = ("127.0.0.1", ports[0])
        self._asked = Counter[str]()

    @cached_property
    def alone(self) -> socket.socket:
        """A kept connection of its own."""
        return socket.create_connection(self._address)

    def close(self) -> None:
        """Ends the connection of its own."""
        self.alone.close()

    @property
    def processor_seconds(self) -> float:
        """What the controller's event loop has run, anyone who else wanted the processors."""
        return int(self._clock.read_text(encoding="ascii").split()[0]) / 1e9

    async def answering(self, verb: str) -> float:
        """Seconds that all calls of a verb took the controller together, bodies not read yet left out."""
        while True:
            async with self._session.get(self._metrics) as response:
                page = await response.text()
            # A page is kept for seconds, so that many who read it cost no more than one.
            if _figure(page, "count", verb) == self._asked[verb]:
                return _figure(page, "sum", verb)
            await asyncio.sleep(0.5)

    async def ask(self, verb: str, body: bytes) -> Any:
        """The decoded answer."""
        self._asked[verb] += 1
        async with self._session.post(f"{self._base}/{verb}", data=body) as response:
            answer = await response.read()
            assert response.status == 200, answer
            return json.loads(answer)

    def ask_alone(self, verb: str, body: bytes) -> tuple[bytes, float]:
        """The answer, and the seconds from the first byte sent to the last one read.

        Nothing else goes on in this process meanwhile, and little is done here.
        """
        self._asked[verb] += 1
        line = f"POST {PREFIX}/{verb} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        began, answer, size = time.perf_counter(), bytearray(), 0
        self.alone.sendall(line.encode() + body)
        while not size or len(answer) < size:
            answer += self.alone.recv(1 << 20)
            if not size and (head := _HEAD.match(answer)):
                size = head.end() + int(head[1])
        took = time.perf_counter() - began
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return bytes(answer.partition(b"\r\n\r\n")[2]), took

    async def bind(self, asked: Mapping[str, Any], node: str) -> None:
        """Bind a pod, which has to succeed."""
        meta = asked["metadata"]
        named = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        answer = await self.ask("bind", json.dumps({**named, "Node": node}).encode())
        assert answer["Error"] == "", answer


def _figure(page: str, which: str, verb: str) -> float:
    name = f'gpu_controller_call_duration_seconds_{which}{{verb="{verb}"}}'
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


async def start_controller(
    config: Path, *flags: str
) -> tuple[asyncio.subprocess.Process, tuple[int, int]]:
    """A running controller that leads, with these `flags` too; its port, and that of its metrics."""
    ports = free_port(), free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_device_plugin", "controller", "--plain-http"),
        *("--address", f"127.0.0.1:{ports[0]}", "--metrics-address", f"127.0.0.1:{ports[1]}"),
        *("--kubeconfig", str(config), "--log-level", "error"),
        *flags,
    )
    async with aiohttp.ClientSession() as session, asyncio.timeout(600):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{ports[1]}/readyz") as response:
                    if response.status == 200 and "; leads" in await response.text():
                        return process, ports
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)


@asynccontextmanager
async def cluster(size: Size) -> AsyncIterator["Rounds"]:
    """A cluster of this size, and a controller that leads there."""
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(running())
        drawn = random.Random(_SEED)  # noqa: S311
        names = _fill(server, drawn, size)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = kubeconfig(folder / "k", f"http://127.0.0.1:{server.port}", {"token": "t"})
        began = time.perf_counter()
        process, ports = await start_controller(config)
        until_ready = time.perf_counter() - began
        stack.push_async_callback(end_controller, process)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        caller = stack.enter_context(closing(Caller(session, ports, process.pid)))
        yield Rounds(size, caller, server, names, drawn, process.pid, until_ready)


@dataclass
class Rounds:
    """Questions to a controller.

    Attributes:
        pid: The controller's.
        until_ready: Seconds from its start until it led.
    """

    size: Size
    caller: Caller
    server: StandInApiServer
    names: Sequence[str]
    drawn: random.Random
    pid: int
    until_ready: float

    async def play_all(self) -> list[Row]:
        """By every policy, with each number of names."""
        rows: list[Row] = []
        for policy in PlacementPolicy:
            for count, bar in self.size.bars_ms.items():
                whole, own = await self.play(count, policy)
                what = f"filter and prioritize by {policy}, {count:,} names"
                rows += [
                    at_most(f"{what}, p99", 1000 * quantile(whole, 0.99), bar, "ms"),
                    shown(
                        f"{what}, median (and of processor time: median, p99)",
                        f"{1000 * quantile(whole, 0.5):.2f} ({_two(own)})",
                    ),
                ]
        return rows

    async def play(
        self, count: int, policy: str, spec: Mapping[str, Any] | None = None
    ) -> tuple[list[float], list[float]]:
        """Seconds of each round, and of the controller's processor time in it."""
        whole, own, asked = [], [], {PLACEMENT_ANNOTATION: policy}
        for number in range(self.size.rounds):
            on, told = self.drawn.choice(self.names), held(7, 1, 5)
            each = pod(f"p{number}", 1, 5, on=on, annotations=told, cpu=_POD_CPU)
            await self.server.put(path(each), each)
            name = f"new-{policy}-{count}-{number}{'-soft' if spec else ''}"
            new = pod(name, *self.drawn.choice(_SHAPES), annotations=asked, cpu=_POD_CPU)
            new["spec"] |= spec or {}
            await self.server.put(path(new), new)
            names = self.drawn.sample(list(self.names), count)
            body = json.dumps({"Pod": new, "NodeNames": names}).encode()
            await asyncio.sleep(_TOLD_SECONDS)
            before = self.caller.processor_seconds
            answer, filtering = self.caller.ask_alone("filter", body)
            kept = json.loads(answer)["NodeNames"]
            body = json.dumps({"Pod": new, "NodeNames": kept}).encode()
            _, prioritizing = self.caller.ask_alone("prioritize", body)
            whole.append(filtering + prioritizing)
            own.append(self.caller.processor_seconds - before)
            if number % _BOUND == 0 and kept:
                await self.caller.bind(new, kept[0])
            else:
                await self.server.delete(path(new))
        return whole, own


async def _burst(caller: Caller, server: StandInApiServer) -> float:
    """Seconds for these pods of 1 unit and 5 %, all for one empty node of eight cards."""
    await server.put("/api/v1/nodes/burst", node("burst", _CARDS))
    pods = [pod(f"burst-{number}", 1, 5) for number in range(_BURST)]
    for each in pods:
        await server.put(path(each), each)
    began = time.perf_counter()
    for each in pods:
        body = json.dumps({"Pod": each, "NodeNames": ["burst"]}).encode()
        await caller.ask("filter", body)
        await caller.ask("prioritize", body)
        await caller.bind(each, "burst")
    return time.perf_counter() - began


def _body(names: Sequence[str]) -> bytes:
    padding = {"x" * 60 + str(number): "y" * 190 for number in range(60)}
    items = [node(name, 1) | {"status": {"padding": padding}} for name in names]
    return json.dumps({"Pod": pod("new", 2, 10), "Nodes": {"items": items}}).encode()


async def _whole(caller: Caller, names: Sequence[str]) -> float:
    body = _body(names)
    began = time.perf_counter()
    await caller.ask("filter", body)
    return time.perf_counter() - began


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
