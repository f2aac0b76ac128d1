"""A model as people write it, kernel by kernel, for a while: no graphs, no compiler.

torch_model.py KIND SECONDS [wait]     resnet: ResNet-50 in half precision, batches of 32 images, inference;
                                       decode: a transformer of 16 layers writes one token after another
Tells how many batches or tokens in how long, the time between two, and the tokens. Weights are random, and the
same in each run. With `wait` it says when it is ready, and begins when a line comes.
"""

import importlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
BATCH, LAYERS, WIDTH, HEADS, CONTEXT = 32, 16, 1024, 16, 1024


def resnet(torch: Any) -> Callable[[], int]:
    """ResNet-50 from its parts."""
    nn = torch.nn

    def convolution(inner: int, outer: int, size: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)
        )

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """A bottleneck with its short cut."""

        def __init__(self, inner: int, width: int, stride: int) -> None:
            super().__init__()
            outer = 4 * width
            self.path = nn.Sequential(
                convolution(inner, width, 1),
                nn.ReLU(),
                convolution(width, width, 3, stride),
                nn.ReLU(),
                convolution(width, outer, 1),
            )
            is_same = inner == outer and stride == 1
            self.short = nn.Identity() if is_same else convolution(inner, outer, 1, stride)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.path(x) + self.short(x))

    parts: list[Any] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for width, blocks, stride in STAGES:
        for index in range(blocks):
            parts.append(Block(inner, width, stride if index == 0 else 1))
            inner = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000)]
    model = nn.Sequential(*parts).eval().half().cuda()
    images = torch.randn(BATCH, 3, 224, 224, device="cuda", dtype=torch.float16)

    def once() -> int:
        model(images)
        torch.cuda.synchronize()
        return 0

    return once


def decode(torch: Any) -> Callable[[], int]:
    """One token after another, each looked at by the host before the next."""
    functional, size = torch.nn.functional, WIDTH // HEADS

    def weights(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.float16) / WIDTH**0.5

    layers = [
        (
            weights(3 * WIDTH, WIDTH),
            weights(WIDTH, WIDTH),
            weights(4 * WIDTH, WIDTH),
            weights(WIDTH, 4 * WIDTH),
        )
        for _ in range(LAYERS)
    ]
    kept = [
        torch.zeros(2, HEADS, CONTEXT, size, device="cuda", dtype=torch.float16) for _ in layers
    ]
    words = weights(32000, WIDTH)
    state = {"at": 0, "token": 1}

    def once() -> int:
        at = state["at"] = (state["at"] + 1) % CONTEXT
        # Without the place in it the tokens would soon repeat themselves.
        x = (words[state["token"]] + words[at]).view(1, WIDTH)
        for (qkv, out, up, down), cache in zip(layers, kept, strict=True):
            q, k, v = functional.linear(functional.layer_norm(x, (WIDTH,)), qkv).view(
                3, HEADS, 1, size
            )
            cache[0, :, at], cache[1, :, at] = k[:, 0], v[:, 0]
            seen = functional.scaled_dot_product_attention(
                q, cache[0, :, : at + 1], cache[1, :, : at + 1]
            )
            x = x + functional.linear(seen.reshape(1, WIDTH), out)
            x = x + functional.linear(
                functional.gelu(functional.linear(functional.layer_norm(x, (WIDTH,)), up)), down
            )
        state["token"] = int((x @ words.T).argmax())
        return state["token"]

    return once


def main() -> None:
    """Warm up, work, tell."""
    torch: Any = importlib.import_module("torch")
    kind, seconds, *waits = sys.argv[1], float(sys.argv[2]), *sys.argv[3:]
    torch.manual_seed(1)
    with torch.inference_mode():
        work = {"resnet": resnet, "decode": decode}[kind](torch)
        for _ in range(10):
            work()
        if waits:
            sys.stdout.write(json.dumps({"ready": True}) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()
        tokens, moments_ns = [], [time.monotonic_ns()]
        while moments_ns[-1] - moments_ns[0] < seconds * 1e9:
            tokens.append(work())
            moments_ns.append(time.monotonic_ns())
    gaps_ns = sorted(later - sooner for sooner, later in itertools.pairwise(moments_ns))
    told = {
        "pieces": len(tokens),
        "took_ns": moments_ns[-1] - moments_ns[0],
        "p50_ns": gaps_ns[len(gaps_ns) // 2],
        "p99_ns": gaps_ns[len(gaps_ns) * 99 // 100],
        "tokens": tokens,
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
