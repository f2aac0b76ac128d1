"""Allocate with durable grants on a node that is full of pods."""

from tools.bench.bench_node import HELD_PODS, BenchNode, Times, timed_calls
from tools.bench.bench_node import POD as ASKED
from tools.bench.rows import Chapter, Row, at_most, median, quantile, shown

PODS = 500
_METHOD = """\
How long the agent takes to answer the kubelet on a full node: 110 pods, as many as a kubelet takes, on 8 H200 in mode `core_mem`.
- A pod that asks for memory and compute costs two pairs of calls, GetPreferredAllocation and Allocate for each resource, and two
  PodResources Lists of all pods, which the kubelet answers.
- An answer leaves only when the grant is on disk.
- "x" compares with an empty gRPC server in Python, which the same client calls right before.

{pods} pods of 8 units and 5 % are admitted and deleted one after the other, beside {held} that stay. The resources come in
random order, as from the kubelet. The client is grpcio in a process of its own; each server gets {calls} calls of the same bytes. The grants
lie on {state}, the slices' files on {run}.

Right before each tenth GetPreferredAllocation the client sends a List; the row without the Lists subtracts its median twice."""


async def measure(node: BenchNode) -> Chapter:
    """Admit and delete; the node is left with the pods it had."""
    async with timed_calls(node.rig) as times:
        for number in range(PODS):
            admission = await node.rig.admit(f"brief-{number}", ASKED)
            assert admission.is_admitted, admission.message
            await node.rig.delete(node.rig.uid(f"brief-{number}"))
    return Chapter("Allocate", _method(node), _rows(times))


def _method(node: BenchNode) -> str:
    return _METHOD.format(
        pods=PODS,
        held=HELD_PODS,
        calls=2 * PODS,
        state=node.state_file_system,
        run=node.run_file_system,
    )


def _rows(times: Times) -> tuple[Row, ...]:
    alone = [ns / 1e6 for ns in times.allocate]
    empty = [ns / 1e6 for ns in times.empty]
    lists = [ns / 1e6 for ns in times.listed]
    pairs = [(a + b) / 1e6 for a, b in zip(times.preferred, times.allocate, strict=True)]
    admissions = [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    return (
        at_most("Allocate, p50", median(alone), 2, "ms"),
        at_most("Allocate, p99", quantile(alone, 0.99), 5, "ms"),
        at_most("Allocate p50 / empty grpc.aio server p50", median(alone) / median(empty), 2, "x"),
        at_most(
            "both pairs of a pod, p50 / empty grpc.aio server p50",
            median(admissions) / median(empty),
            12,
            "x",
        ),
        shown(
            "the same without the stand-in kubelet's two Lists",
            f"{(median(admissions) - 2 * median(lists)) / median(empty):.2f} x",
        ),
        shown("PodResources List of the stand-in kubelet alone, p50 / p99", _both(lists)),
        shown("empty grpc.aio server, p50 / p99", _both(empty)),
        shown("GetPreferredAllocation + Allocate, p50 / p99", _both(pairs)),
    )


def _both(values: list[float]) -> str:
    return f"{median(values):.2f} / {quantile(values, 0.99):.2f} ms"
