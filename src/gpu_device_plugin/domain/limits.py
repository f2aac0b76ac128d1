"""The limits file: what a container may take of its cards."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.compute_policy import ComputePolicy

LIMITS_VERSION = 1


@dataclass(frozen=True, slots=True)
class CardLimit:
    """What a container may take of one card; None is no cap of that kind.

    Attributes:
        uuid: The card.
        memory_bytes: Memory.
        core_percent: Compute, 1 to 100.
    """

    uuid: str
    memory_bytes: int | None
    core_percent: int | None


def limits_text(
    slice_id: str, lines: Sequence[CardLimit], policy: ComputePolicy = ComputePolicy.FIXED
) -> str:
    r"""The `limits` file that the isolation library reads: one line per card.

    >>> print(limits_text("s1", [CardLimit("GPU-a", 2258632704, 30)]), end="")
    version=1
    slice=s1
    policy=fixed
    device=GPU-a memory_bytes=2258632704 core_percent=30
    """
    head = f"version={LIMITS_VERSION}\nslice={slice_id}\npolicy={policy}\n"
    return head + "".join(_line(limit) for limit in lines)


def _line(limit: CardLimit) -> str:
    memory = "" if limit.memory_bytes is None else f" memory_bytes={limit.memory_bytes}"
    core = "" if limit.core_percent is None else f" core_percent={limit.core_percent}"
    return f"device={limit.uuid}{memory}{core}\n"
