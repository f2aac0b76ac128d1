"""PyTorch in a slice: its three allocators up to the cap, matrix products and CUDA graphs."""

import subprocess

from tools.bench.rows import Row, shown
from tools.gpu.compute import MOST_KEPT, kept_row, rate
from tools.gpu.memory import (
    TOLERANCE_BYTES,
    USABLE,
    disagreement,
    limit_bytes,
    outside_row,
    unlisted_bytes,
)
from tools.gpu.place import MIB, PROGRAMS, Environment, Place, Told

ALLOCATORS = {
    "native": "backend:native",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
WORK = {"gemm": "bf16 products of 8192, each waited for", "graph": "a CUDA graph of 20 products"}
MODELS = {
    "resnet": "ResNet-50, batches of 32, eager",
    "decode": "a decode loop, token by token, eager",
}
PERCENTS = (30, 60)
_MOST_ERROR = 1e-2
_IMPORT_SECONDS = 120.0

METHOD = """\
Whether PyTorch keeps to its slice of memory, gets its share of time, and computes the same.

Memory: tensors of 64, 16, 10, then 1 MiB until
torch.cuda.OutOfMemoryError; mem_get_info, pynvml and nvidia-smi are asked in the same slice. Time: random bf16 matrices; work completed
against the same program without the library right before. A card that is always busy with them lowers its clock, so a slice
completes more than its share of that. Results are compared with double precision."""

MODELS_METHOD = """\
PyTorch without graphs or compiler, random weights: batches of a ResNet-50 in half precision, each waited for, and a transformer
of 16 layers that writes one token after another. Work completed against the same program without the library, right before."""

VLLM_METHOD = """\
vLLM's offline engine with a llama of 16 layers and random weights, 16 requests of 64 tokens at a time; tokens against the
same without the library, right before. No card with vLLM was at hand."""


def measure(place: Place) -> list[Row]:
    """Everything, or a row that says why not."""
    missing = missing_torch(place)
    if missing is not None:
        return [Row("PyTorch in a slice", "every allocator, graphs", f"not run: {missing}")]
    rows: list[Row] = []
    unlisted = unlisted_bytes(place)
    for name, setting in ALLOCATORS.items():
        rows += _fill(place, name, setting, unlisted)
    for kind in WORK:
        rows += _work(place, kind)
    return rows


def models(place: Place) -> list[Row]:
    """Models as people write them, kernel by kernel."""
    missing = missing_torch(place)
    if missing is not None:
        return [Row("ResNet-50 and a decode loop in a slice", "their share", f"not run: {missing}")]
    return [
        row
        for kind, what in MODELS.items()
        for row in _program(
            place, what, _command(place, "torch_model.py", kind, str(place.seconds))
        )
    ]


def vllm(place: Place) -> list[Row]:
    """A server of language models, where it is installed."""
    missing = missing_torch(place) or _cannot(place, "import vllm")
    if missing is not None:
        return [Row("vLLM in a slice", "its share", f"not run: {missing}")]
    directory = str(place.directory / "model")
    command = _command(place, "vllm_run.py", directory, str(place.seconds))
    return _program(place, "vLLM, 16 requests at a time", command)


def _program(place: Place, what: str, command: list[str]) -> list[Row]:
    """A program's rate without the library and with caps, right after each other.

    What keeps the card busy for a part of the time only may keep all of its rate.
    """
    with place.running(place.base, command) as told:
        native = rate(told)
    rows = [shown(f"{what}: native", f"{native:.1f} a second")]
    limit = place.card.free_bytes // 2 // MIB * MIB
    for percent in PERCENTS:
        name = f"{command[1].rpartition('/')[2]}-{command[2].rpartition('/')[2]}-{percent}"
        with place.running(
            place.inside(name, memory_bytes=limit, core_percent=percent), command
        ) as told:
            rows.append(kept_row(what, percent, rate(told) / native))
    return rows


def missing_torch(place: Place) -> str | None:
    """Why PyTorch cannot be used here; None where it can."""
    if place.is_simulated:
        return "NVIDIA's runtime library does not start on the simulated driver"
    return _cannot(place, "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'")


def _cannot(place: Place, code: str) -> str | None:
    """Why the machine's Python cannot run this; None where it can."""
    try:
        asked = subprocess.run(
            [place.python, "-c", code],
            env=dict(place.base),
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{place.python}: {error}"
    if asked.returncode != 0:
        return f"{place.python}: {asked.stderr.strip().splitlines()[-1]}"
    return None


def _command(place: Place, program: str, *words: str) -> list[str]:
    return [place.python, str(PROGRAMS / program), *words]


def _fill(place: Place, name: str, setting: str, unlisted: int) -> list[Row]:
    limit = limit_bytes(place)
    inside = place.inside(f"torch-{name}", memory_bytes=limit)
    # The first is the name since PyTorch 2.9.
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    environment: Environment = {**inside, **dict.fromkeys(names, setting)}
    told, taken = place.costing(environment, _command(place, "torch_fill.py"))
    outside = outside_row(f"PyTorch, {name}", limit, taken, unlisted)
    return [*fill_rows(name, limit, told), outside]


def fill_rows(name: str, limit: int, told: Told) -> list[Row]:
    """What PyTorch saw when it was refused."""
    usable = 1 - told["cuda_free"] / limit
    apart = max(disagreement(limit, told), _smi_apart(limit, told))
    views = "mem_get_info, pynvml" + (", nvidia-smi" if "smi_total" in told else "")
    is_refused = "out of memory" in told["refusal"]
    return [
        shown(f"PyTorch, {name}: backend", told["backend"]),
        Row(
            f"PyTorch, {name}: refused at the cap",
            "torch.cuda.OutOfMemoryError",
            "so" if is_refused else told["refusal"] or "not refused",
            is_refused,
        ),
        Row(f"PyTorch, {name}: usable", "≥ 99.5 %", f"{usable * 100:.2f} %", usable >= USABLE),
        Row(
            f"PyTorch, {name}: {views} apart",
            "≤ 2 MiB",
            f"{apart / MIB:.2f} MiB",
            apart <= TOLERANCE_BYTES,
        ),
    ]


def _smi_apart(limit: int, told: Told) -> int:
    if "smi_total" not in told:
        return 0
    total, used = int(told["smi_total"]), int(told["smi_used"])
    return max(abs(total - limit), abs(used - int(told["nvml_used"])))


def _work(place: Place, kind: str) -> list[Row]:
    command = _command(place, "torch_work.py", kind, str(place.seconds))
    with place.running(place.base, command) as told:
        native = rate(told)
    rows = [shown(f"{WORK[kind]}: native", f"{native:.1f} a second")]
    for percent in PERCENTS:
        inside = place.inside(
            f"torch-{kind}-{percent}", memory_bytes=limit_bytes(place), core_percent=percent
        )
        with place.running(inside, command) as told:
            rows.append(kept_row(WORK[kind], percent, rate(told) / native, MOST_KEPT))
            rows.append(right_row(f"{WORK[kind]}, {percent} %: relative error", told["error"]))
    return rows


def right_row(what: str, error: float) -> Row:
    """Whether products are what they should be."""
    return Row(what, f"≤ {_MOST_ERROR:g}", f"{error:.1e}", error <= _MOST_ERROR)
