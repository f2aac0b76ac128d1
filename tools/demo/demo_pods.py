"""The pods of the story: what each asks for, and what must become of it."""

from dataclasses import dataclass

from gpu_device_plugin.domain.fractions.demands import COUNT_LABEL
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.modes import NodeMode
from tools.harness.kubelet_pods import StandInContainer, StandInPod

NAMESPACE = "default"
CONTAINER = "main"


@dataclass(frozen=True, slots=True)
class Role:
    """One pod of one container.

    Attributes:
        core_percent: What it asks of gpu-core.percentage; 0 for nothing.
        spread: Its label `aliyun.com/gpu-count`; 0 for no label.
        lands_on: Cards that it must get, by index; none for a pod that must be refused.
        refused_for: The reason it must be refused for; empty for one that must not.
    """

    name: str
    node: str
    mem_units: int
    core_percent: int = 0
    spread: int = 0
    lands_on: tuple[int, ...] = ()
    refused_for: str = ""

    @property
    def uid(self) -> str:
        """Unique in the demo, as a uid is for ever."""
        return f"uid-{self.node}-{self.name}"

    @property
    def path(self) -> str:
        """The pod's path at the API server."""
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{self.name}"

    @property
    def limits(self) -> dict[str, int]:
        """Its container's resource limits."""
        asked = {Resource.MEM: self.mem_units, Resource.CORE: self.core_percent}
        return {str(resource): amount for resource, amount in asked.items() if amount}

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return {COUNT_LABEL: str(self.spread)} if self.spread else {}

    @property
    def slice_mib(self) -> int:
        """Its part of each of its cards: in proportion, rounded down (R-129)."""
        return CARD_MIB * self.mem_units // max(1, self.spread) // UNITS_PER_CARD

    @property
    def asks(self) -> str:
        """What it asks for, in few words."""
        core = f", {self.core_percent} %" if self.core_percent else ""
        spread = f" on {self.spread} cards" if self.spread else ""
        return f"{self.mem_units} units{core}{spread}"

    def for_kubelet(self) -> StandInPod:
        """The pod as its node's kubelet is given it."""
        container = StandInContainer(name=CONTAINER, limits=self.limits)
        return StandInPod(NAMESPACE, self.name, self.uid, (container,), self.labels)

    def for_api(self) -> dict[str, object]:
        """The pod as the API keeps it, bound to its node."""
        limits = {name: str(amount) for name, amount in self.limits.items()}
        return {
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "uid": self.uid,
                "labels": self.labels,
            },
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": CONTAINER, "resources": {"limits": limits}}],
            },
            "status": {"phase": "Pending"},
        }


@dataclass(frozen=True, slots=True)
class ExpectedOffer:
    """What a node must offer: the mode of its label, and allocatable by resource."""

    node: str
    mode: NodeMode
    allocatable: tuple[int, int, int]


PROFILE = "v100"
CARDS_PER_NODE = 4
CARD_MIB = 16160
UNITS_PER_CARD = 15
CORE_MEM_NODE = "gpu-a"
CGPU_NODE = "gpu-b"
# Four cards of 15 whole GiB each.
OFFERS = (
    ExpectedOffer(CORE_MEM_NODE, NodeMode.CORE_MEM, (60, 400, 4)),
    ExpectedOffer(CGPU_NODE, NodeMode.CGPU, (60, 0, 4)),
)
FIRST = Role("cuda-sample", CORE_MEM_NODE, 2, 30, lands_on=(0,))
"""The example Job of Alibaba Cloud's documentation (R-113)."""
NEIGHBOUR = Role("chat", CORE_MEM_NODE, 4, 50, lands_on=(0,))
CROWDED_OUT = Role("batch", CORE_MEM_NODE, 8, 40, lands_on=(1,))
TWO_CARDS = Role("two-cards", CGPU_NODE, 8, spread=2, lands_on=(0, 1))
LATECOMER = Role("trainer", CORE_MEM_NODE, 8, 20, lands_on=(0,))
"""Comes when the limits are put to work: too large for what is left of card 1."""
CAST = (
    FIRST,
    NEIGHBOUR,
    CROWDED_OUT,
    Role("too-big", CORE_MEM_NODE, 16, 30, refused_for="NoRoom"),
    Role("odd-share", CORE_MEM_NODE, 2, 7, refused_for="BadPercentage"),
    TWO_CARDS,
    Role("notebook", CGPU_NODE, 3, lands_on=(0,)),
)
