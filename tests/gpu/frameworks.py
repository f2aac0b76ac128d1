"""PyTorch in a slice: its three allocators up to the cap, matrix products and CUDA graphs."""

import json
import subprocess

from tests.bench.rows import Row, shown
from tests.gpu.compute import kept_row, rate, share_row
from tests.gpu.memory import TOLERANCE_BYTES, USABLE, disagreement, limit_bytes, outside_row
from tests.gpu.place import MIB, PROGRAMS, Environment, Place, Told

ALLOCATORS = {
    "native": "backend:native",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
WORK = {"gemm": "bf16 products of 8192, each waited for", "graph": "a CUDA graph of 20 products"}
PERCENTS = (30, 60)
_MOST_ERROR = 1e-2
_IMPORT_SECONDS = 120.0

METHOD = """\
PyTorch of the machine's own interpreter (PYTHON_GPU, else python3). Memory: tensors of 64, 16, 10,
then 1 MiB until torch.cuda.OutOfMemoryError; mem_get_info, pynvml and nvidia-smi are asked in the
same slice. Time: random bf16 matrices; a share is the number of products times the duration of
one by CUDA events without the library; results are compared with double precision."""


def measure(place: Place) -> list[Row]:
    """Everything, or a row that says why not."""
    missing = _missing(place)
    if missing is not None:
        return [Row("PyTorch in a slice", "every allocator, graphs", f"not run: {missing}")]
    rows: list[Row] = []
    for name, setting in ALLOCATORS.items():
        rows += _fill(place, name, setting)
    for kind in WORK:
        rows += _work(place, kind)
    return rows


def _missing(place: Place) -> str | None:
    """Why PyTorch cannot be used here; None where it can."""
    if place.is_simulated:
        return "NVIDIA's runtime library does not start on the simulated driver"
    question = (
        "import torch, json; print(json.dumps([torch.__version__, torch.cuda.is_available()]))"
    )
    try:
        asked = subprocess.run(
            [place.python, "-c", question],
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
    version, is_available = json.loads(asked.stdout.splitlines()[-1])
    return None if is_available else f"torch {version} sees no GPU"


def _command(place: Place, program: str, *words: str) -> list[str]:
    return [place.python, str(PROGRAMS / program), *words]


def _fill(place: Place, name: str, setting: str) -> list[Row]:
    limit = limit_bytes(place)
    inside = place.inside(f"torch-{name}", memory_bytes=limit)
    # The first is the name since PyTorch 2.9.
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    environment: Environment = {**inside, **dict.fromkeys(names, setting)}
    told, taken = place.costing(environment, _command(place, "torch_fill.py"))
    return [*fill_rows(name, limit, told), outside_row(f"PyTorch, {name}", limit, taken)]


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
        native, solo_seconds = rate(told), told["solo_ns"] / 1e9
    rows = [shown(f"{WORK[kind]}: native", f"{native:.1f} a second")]
    for percent in PERCENTS:
        inside = place.inside(
            f"torch-{kind}-{percent}", memory_bytes=limit_bytes(place), core_percent=percent
        )
        with place.running(inside, command) as told:
            rows.append(share_row(WORK[kind], percent, rate(told) * solo_seconds))
            rows.append(kept_row(WORK[kind], percent, rate(told) / native))
            rows.append(_right(f"{WORK[kind]}, {percent} %: relative error", told["error"]))
    return rows


def _right(what: str, error: float) -> Row:
    return Row(what, f"≤ {_MOST_ERROR:g}", f"{error:.1e}", error <= _MOST_ERROR)
