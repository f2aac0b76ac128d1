"""bf16 matrix products with PyTorch for a while: one after the other, or as a CUDA graph.

torch_work.py KIND SECONDS     gemm: 8192, each waited for; graph: 20 of 2048 a replay
Tells how many were completed in how long, and how far the result is off (‖out - ref‖ / ‖ref‖).
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

PRODUCTS = 20
SIDES = {"gemm": 8192, "graph": 2048}


def error(torch: Any, a: Any, b: Any, out: Any) -> float:
    """The relative error, from a product with random vectors in double precision."""
    vectors = torch.randn(b.shape[1], 4, device="cuda", dtype=torch.float64)
    reference = a.double() @ (b.double() @ vectors)
    return float((out.double() @ vectors - reference).norm() / reference.norm())


def step(torch: Any, kind: str, a: Any, b: Any, out: Any) -> Callable[[], int]:
    """What queues one piece of work and answers how many products it was."""
    if kind == "gemm":

        def once() -> int:
            torch.mm(a, b, out=out)
            return 1

        return once
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PRODUCTS):
            # Memory that is allocated within the capture, as compiled models do.
            out.copy_(torch.mm(a, b))

    def replay() -> int:
        graph.replay()
        return PRODUCTS

    return replay


def main() -> None:
    """Warm up, work, tell."""
    torch: Any = importlib.import_module("torch")
    kind, seconds = sys.argv[1], float(sys.argv[2])
    side = SIDES[kind]
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.full((side, side), float("nan"), device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        torch.mm(a, b)
    torch.cuda.synchronize()
    work = step(torch, kind, a, b, out)
    work()
    pieces, begin_ns = 0, time.monotonic_ns()
    while time.monotonic_ns() - begin_ns < seconds * 1e9:
        pieces += work()
        torch.cuda.synchronize()
    told = {"pieces": pieces, "took_ns": time.monotonic_ns() - begin_ns}
    sys.stdout.write(json.dumps({**told, "error": error(torch, a, b, out)}) + "\n")


if __name__ == "__main__":
    main()
