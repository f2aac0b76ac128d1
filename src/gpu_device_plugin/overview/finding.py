"""What was found in an installation: how bad it is, and its cure."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from gpu_device_plugin.kubernetes.client.wire import ACCESS_ANNOTATION


class Level(StrEnum):
    """How bad it is."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is seen, and what to do about it or what it means."""

    level: Level
    what: str
    cure: str


problem, note = partial(Finding, Level.PROBLEM), partial(Finding, Level.NOTE)
"""Something that has to be mended, and something to know."""

_CDI_WRITER = "cdi-generate"
_NO_ACCESS = (
    "if it finds no NVML: with cdi.managementAnnotation the namespace has to stand in "
    "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES of NVIDIA's toolkit, else name a runtimeClassName"
)


def logs_cure(pod: str, incomplete: str = "", annotations: Collection[str] = ()) -> str:
    """Where a pod of ours (`-n NAMESPACE NAME`) says why it is not ready; `incomplete` has the init containers that it waits for."""
    hint = f" -c {_CDI_WRITER}" if _CDI_WRITER in incomplete else ""
    hint += f"; {_NO_ACCESS}" if hint or ACCESS_ANNOTATION in annotations else ""
    return f"kubectl describe pod {pod}; kubectl logs {pod}{hint}"
