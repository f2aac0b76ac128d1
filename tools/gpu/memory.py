"""The memory cap: filled through each family of calls, seen from inside and from outside."""

from collections.abc import Callable

from tools.bench.rows import Row, shown
from tools.gpu.place import MIB, Place, Told

KINDS = ("linear", "physical", "pool", "managed")
OUT_OF_MEMORY = 2
TOLERANCE_BYTES = 2 * MIB
USABLE = 0.995
_MOST_BYTES = 8192 * MIB

METHOD = """\
Whether a program in a slice gets all of its memory and nothing above, by each way to allocate.

It allocates 64, 16, 4, then 2 MiB at a time until it is refused, and holds what it has. Its own views are asked from inside. From
outside, NVML's used memory of the card is compared with that before the start: the driver's own word for what the slice costs. What a driver takes for a process and lists with no process is measured with a context alone, and allowed."""


def limit_bytes(place: Place) -> int:
    """8 GiB, or less where the card has less."""
    return min(_MOST_BYTES, place.card.free_bytes * 3 // 4 // MIB * MIB)


def measure(place: Place) -> list[Row]:
    """Fills a slice by every family."""
    limit = limit_bytes(place)
    unlisted = unlisted_bytes(place)
    rows = [shown("a context: listed with no process", f"{unlisted / MIB:.0f} MiB")]
    for kind in KINDS:
        environment = place.inside(f"fill-{kind}", memory_bytes=limit)
        command = [str(place.program), "fill", kind, str(limit)]
        told, taken = place.costing(environment, command)
        rows += inside_rows(kind, limit, told)
        # Managed memory lies on the card only when it is touched: from outside it tells nothing.
        if kind != "managed":
            rows.append(outside_row(kind, limit, taken, unlisted))
    return rows


def inside_rows(kind: str, limit: int, told: Told) -> list[Row]:
    """What a program that has filled its slice sees."""
    usable = 1 - told["cuda_free"] / limit
    apart = disagreement(limit, told)
    refusal = told["refusal"]
    return [
        Row(
            f"{kind}: refused with CUDA's own out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY (2)",
            str(refusal),
            refusal == OUT_OF_MEMORY,
        ),
        Row(
            f"{kind}: asked for by calls beyond the cap",
            "0 MiB",
            f"{max(0, told['taken'] - limit) / MIB:.0f} MiB of {limit // MIB}",
            told["taken"] <= limit,
        ),
        Row(f"{kind}: usable", "≥ 99.5 %", f"{usable * 100:.2f} %", usable >= USABLE),
        Row(f"{kind}: views apart", "≤ 2 MiB", f"{apart / MIB:.2f} MiB", apart <= TOLERANCE_BYTES),
    ]


def outside_row(kind: str, limit: int, taken: int, unlisted: int) -> Row:
    """What the slice costs the card."""
    most = limit + unlisted
    return Row(
        f"{kind}: taken from the card",
        f"≤ {most // MIB} MiB",
        f"{taken / MIB:.0f} MiB",
        taken <= most + TOLERANCE_BYTES,
    )


def unlisted_bytes(place: Place) -> int:
    """Bytes that a context takes of the card and NVML lists with no process."""
    with place.running(place.base, [str(place.program), "hold"]):
        before = place.look()
        with place.running(place.base, [str(place.program), "hold"]):
            now = place.look()
    listed = sum(now.pids.values()) - sum(before.pids.values())
    return max(0, now.used_bytes - before.used_bytes - listed)


def disagreement(limit: int, told: Told) -> int:
    """The largest difference between what the views say of one thing."""
    totals: list[int] = [limit, told["cuda_total"], told["device_total"], told["nvml_total"]]
    used: list[int] = [told["nvml_used"], limit - told["cuda_free"], limit - told["nvml_free"]]
    return max(max(totals) - min(totals), max(used) - min(used))


def context_rows(place: Place) -> list[Row]:
    """What a context costs, of memory and of time."""
    rows: list[Row] = []
    for what, environment in _with_and_without(place):
        told, taken = place.costing(environment, [str(place.program), "hold"])
        rows.append(
            shown(
                f"a context {what}",
                f"{taken / MIB:.0f} MiB; cuInit {told['init_ns'] / 1e6:.1f} ms, "
                f"context {told['context_ns'] / 1e6:.1f} ms",
            )
        )
    return rows


def _with_and_without(place: Place) -> list[tuple[str, dict[str, str]]]:
    inside = place.inside("context", memory_bytes=limit_bytes(place))
    return [("without the library", dict(place.base)), ("in a slice", dict(inside))]


CHECKS: tuple[Callable[[Place], list[Row]], ...] = (measure, context_rows)
