"""Whether containers that ask for no GPU see every card (R-722).

Images with CUDA set NVIDIA_VISIBLE_DEVICES=all. If the NVIDIA runtime is the node's default
and accepts that variable from unprivileged containers, each of them sees all cards. The runtime's
settings cannot be read from here. But the agent is such a container itself: it is unprivileged,
asks for no GPU, and sets the variable. If the default runtime gave it the driver's device nodes,
it gives them to every such container.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_EXPOSED = (
    "containers that ask for no GPU see every card of this node if their image sets "
    "NVIDIA_VISIBLE_DEVICES=all, as images with CUDA do. The NVIDIA runtime is the default here and "
    "accepts the variable from unprivileged containers: this agent got the cards in this way"
)
_SYS_ADMIN = 21
# As the chart sets it; or what the runtime replaces it with when it uses CDI.
_FOLLOWED = ("all", "void")


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the agent sees of its own container."""

    environ: Mapping[str, str]
    devices: Path = Path("/dev")
    """`/dev`, into which nothing but a container runtime puts the driver's nodes."""
    status: Path = Path("/proc/self/status")

    def find(self, runtime_class: str | None) -> str | None:
        """What the agent's own container proves, if it proves anything.

        `runtime_class` is that of the agent's own pod, empty for the default runtime; None outside
        a pod, or where the pod is not known yet.
        """
        is_proven = (
            runtime_class == ""
            and self.environ.get("NVIDIA_VISIBLE_DEVICES") in _FOLLOWED
            and (self.devices / "nvidiactl").exists()
            and not self._is_privileged()
        )
        return _EXPOSED if is_proven else None

    def _is_privileged(self) -> bool:
        """For the runtime a container that may have SYS_ADMIN is privileged and gets everything."""
        try:
            lines = self.status.read_text(encoding="ascii").splitlines()
            bounds = next(line for line in lines if line.startswith("CapBnd:"))
            return bool(int(bounds.split()[1], 16) >> _SYS_ADMIN & 1)
        except (OSError, StopIteration, ValueError):
            return True  # nothing is proven
