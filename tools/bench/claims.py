"""What it costs to prepare a claim, and to give it back.

python -m tools.bench claims
"""

import time
from typing import Any

import grpc
from tools.bench.rows import Chapter, at_most, median, quantile, shown
from tools.harness.claim_rig import SLICE, allocate
from tools.harness.rig import Rig, running_rig
from tools.harness.waiting import until

from gpu_device_plugin.kubelet._proto import dra_pb2
from gpu_device_plugin.kubelet.dra_servicer import SERVICE_NAME

CLAIMS, STAYING = 300, 8
BAR_MS = 10
_METHOD = """\
How long the agent takes to prepare a [claim](dra.md) before a pod's containers start, and to give it back after their end.

The agent's process with allocation API `dra`, on 4 simulated V100, beside the small API server of the tests. Beside {staying} claims that
stay, {claims} of 2 units and 30 % are prepared and given back one after the other over the agent's socket."""


async def measure() -> Chapter:
    """Prepare and give back."""
    async with running_rig() as rig:
        await rig.stop_agent()
        await rig.start_agent(allocation_api="dra", cdi_dir=rig.root / "cdi")
        await until(lambda: SLICE in rig.api.objects, 30)
        socket = rig.root / "k" / "plugins" / "gpu-device-plugin" / "dra.sock"
        prepared: list[float] = []
        ended: list[float] = []
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            for number in range(STAYING):
                await _prepare(rig, channel, number)
            for number in range(STAYING, STAYING + CLAIMS):
                prepared.append(await _prepare(rig, channel, number))
                ended.append(await _unprepare(channel, number))
    rows = (
        at_most("NodePrepareResources, GET included, p50", 1000 * median(prepared), BAR_MS, "ms"),
        shown("NodePrepareResources, p99", f"{1000 * quantile(prepared, 0.99):.2f} ms"),
        shown("NodeUnprepareResources, p50 / p99", _both(ended)),
    )
    return Chapter("Claims", _METHOD.format(claims=CLAIMS, staying=STAYING), rows)


async def _prepare(rig: Rig, channel: Any, number: int) -> float:
    await allocate(rig, f"c{number}", number % 4)
    request = dra_pb2.NodePrepareResourcesRequest(claims=[_claim(number)])
    began = time.perf_counter()
    answer = await _call(
        channel, "NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse
    )
    seconds = time.perf_counter() - began
    assert not answer.claims[f"uid-c{number}"].error, answer
    return seconds


async def _unprepare(channel: Any, number: int) -> float:
    request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_claim(number)])
    began = time.perf_counter()
    answer = await _call(
        channel, "NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse
    )
    seconds = time.perf_counter() - began
    assert not answer.claims[f"uid-c{number}"].error, answer
    return seconds


def _claim(number: int) -> Any:
    return dra_pb2.Claim(namespace="default", name=f"c{number}", uid=f"uid-c{number}")


async def _call(channel: Any, name: str, request: Any, answer: Any) -> Any:
    method = channel.unary_unary(
        f"/{SERVICE_NAME}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return await method(request, timeout=60, wait_for_ready=True)


def _both(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.2f} / {1000 * quantile(seconds, 0.99):.2f} ms"
