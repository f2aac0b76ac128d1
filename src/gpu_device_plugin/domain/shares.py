"""Shares of devices: what a holder has of one, and what a container needs."""

from dataclasses import dataclass
from typing import NamedTuple

from gpu_device_plugin.domain.pods import ContainerKind, PodRef


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one device.

    Attributes:
        device: Its id: the UUID of a card or of a MIG instance.
        memory_bytes: The memory of this part; None while it is not known. It stays the same if the
            device shows less memory later (ECC, another driver).
        is_exclusive: Nobody else may hold anything of the device.
        memory_mib: The memory that was asked for, which the ledger counts: `memory_bytes` is what
            the device makes of it.
    """

    device: str
    memory_bytes: int | None = None
    core_percent: int = 0
    is_exclusive: bool = False
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds shares: a container, or a claim on behalf of the containers of one pod.

    Attributes:
        container: Name of the container; empty while it is not known, and for a claim.
        index: The container's position in `spec.containers` (or `spec.initContainers`).
        claim: Uid of the ResourceClaim; empty for a container.
        claim_name: The claim's name in its pod, or its own name where the pod names none.
    """

    pod: PodRef
    container: str = ""
    kind: ContainerKind = ContainerKind.APP
    index: int = 0
    claim: str = ""
    claim_name: str = ""

    def __str__(self) -> str:
        """The container or the claim, for people; its pod is left out."""
        if self.claim:
            return f"claim {self.claim_name or self.claim}"
        return f"container {self.container or '(not known)'}"

    @property
    def is_handed_on(self) -> bool:
        """Whether later containers of the pod reuse what it holds: an ordinary init container."""
        return self.kind is ContainerKind.INIT and not self.claim

    def is_same(self, other: "Holder") -> bool:
        """Whether both are one container or one claim, as far as both are known."""
        if self.claim or other.claim:
            return self.claim == other.claim
        return self.pod.is_same_pod(other.pod) and self.container == other.container


@dataclass(frozen=True, slots=True)
class Demand:
    """What one container needs, checked: `mem_units` over `cards` cards in equal parts.

    Attributes:
        mem_units: Memory units in all; 0 only while it is not known how many.
        core_percent: Percent of one card's compute; 0 is no cap, or not known yet.
        is_exclusive: No other pod may be on its cards (R-528).
    """

    mem_units: int
    core_percent: int = 0
    cards: int = 1
    is_exclusive: bool = False

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // self.cards


class Hold(NamedTuple):
    """A share that a pod holds; of one that is handed on, later containers of the pod take."""

    pod: PodRef
    share: Share
    is_handed_on: bool = False
