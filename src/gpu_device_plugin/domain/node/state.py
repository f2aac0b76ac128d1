"""The node state: what the agent knows of its node, as one immutable value."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy, pod_compute_policy
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy, is_isolated
from gpu_device_plugin.domain.node.pods import PodRequest
from gpu_device_plugin.errors import RequestError, clip

ANY_CARD = "*"
MEMORY_ENFORCER_LABEL = "gpu-device-plugin/memory-enforcer"
"""Of a node, over `--memory-enforcer`."""


class MemoryEnforcer(StrEnum):
    """Who refuses what is above a slice's memory; the library stays beside the driver for all else."""

    DRIVER = "driver"
    LIBRARY = "library"


class EnforcerChoice(StrEnum):
    """The operator's `--memory-enforcer`; `auto` is the driver on cards where it is proven."""

    AUTO = "auto"
    DRIVER = "driver"
    LIBRARY = "library"


class LimitBy(StrEnum):
    """What sets the driver's limit of a container that starts: our hook, or that of NVIDIA's toolkit."""

    HOOK = "hook"
    TOOLKIT = "toolkit"


_UNPROBED = "no probe has run"
USUAL_ENFORCER = f"library ({_UNPROBED})"
"""Who enforces memory where nothing has been set up for it; not told in annotations."""
_SANDBOX = (
    "runtimeClassName {} is of a sandbox, in which neither the isolation library nor the driver's limit "
    "holds a slice; use another runtime class, or a whole card"
)
_SAID = ("driver=", "reason=")


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """What a probe has proved.

    Attributes:
        backends: UUID -> how the driver counts on that card: dmem or misc.
        reasons: UUID -> why that card's memory cannot be limited.
        missing: Why nothing is proved of any card, or "".
    """

    backends: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    missing: str = _UNPROBED


def read_report(text: str, driver_version: str) -> DriverLimits:
    r"""The report of `gpu-limit-hook --probe`; one of another driver proves nothing ("": not known yet).

    >>> read_report("driver=615.71.09\ndevice=GPU-a backend=misc\n", "615.71.09").backends
    {'GPU-a': 'misc'}
    >>> read_report("reason=/sys/fs/cgroup is not cgroup v2\n", "615.71.09").missing
    '/sys/fs/cgroup is not cgroup v2'
    >>> read_report("driver=615.71.09\ndevice=GPU-a backend=misc\n", "620.10").missing
    'the probe was of driver 615.71.09'
    """
    said = dict(line.split("=", 1) for line in text.splitlines() if line.startswith(_SAID))
    if "driver" not in said:
        return DriverLimits(missing=said.get("reason", _UNPROBED))
    if driver_version and said["driver"] != driver_version:
        return DriverLimits(missing=f"the probe was of driver {said['driver']}")
    found: dict[str, dict[str, str]] = {"backend": {}, "reason": {}}
    for line in text.splitlines():
        uuid, _, told = line.removeprefix("device=").partition(" ")
        kind, _, value = told.partition("=")
        if line.startswith("device=") and kind in found:
            found[kind][uuid] = value
    return DriverLimits(found["backend"], found["reason"], "")


def unproven(limits: DriverLimits, cards: Iterable[str]) -> str:
    """Why the driver is not proven to limit the memory of each of these cards, or ""."""
    missing = [uuid for uuid in cards if uuid not in limits.backends]
    each = (f"{uuid}: {limits.reasons.get(uuid, 'not probed')}" for uuid in missing)
    return (limits.missing or "; ".join(each)) if missing else ""


def why_library(
    choice: EnforcerChoice, limits: DriverLimits, sizes: Mapping[str, int], *, is_shared: bool
) -> str:
    """Why the driver does not enforce the memory of a new slice, or ""; `sizes` are its bytes by card.

    The driver's variables, which keep NVIDIA's own hook from lifting the limit, have one size for
    all cards of a container; and the limit is of one container, `is_shared` among several or not.

    >>> proven = DriverLimits({"a": "misc", "b": "misc"}, {}, "")
    >>> why_library(EnforcerChoice.DRIVER, proven, {"a": 1, "b": 2}, is_shared=False)
    "its parts of the cards differ in size, and NVIDIA's hook has one size for all"
    """
    if choice is EnforcerChoice.LIBRARY:
        return f"--memory-enforcer {choice}"
    if why := unproven(limits, sizes):
        return why
    if len(set(sizes.values())) > 1:
        return "its parts of the cards differ in size, and NVIDIA's hook has one size for all"
    return "containers that run at once share it, and the limit is of one" if is_shared else ""


def unmet_choice(
    choice: EnforcerChoice, limits: DriverLimits, cards: Collection[str]
) -> str | None:
    """Why the node cannot do what was chosen: `driver` is never silently less."""
    why = unproven(limits, cards) if choice is EnforcerChoice.DRIVER else ""
    text = "--memory-enforcer driver: NVIDIA's driver is not proven to limit memory here"
    return f"{text}: {why}" if why else None


@dataclass(frozen=True, slots=True)
class NodeTerms:
    """What a node offers, as far as requests are checked."""

    node: str
    mode: NodeMode
    unit: MemoryUnit
    max_pods: int | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """The node as of now; a change is a new value.

    Attributes:
        other_cards: How many cards more the node has, in a view of it with one scheme's cards.
        unhealthy: UUID -> reason of the cards that are out of service.
        faults: Reason -> text of each fault that keeps the whole node from serving.
        mark: The uninstall mark that this agent acts on, or "".
        mps_root: Directory of the MPS daemon that `mps_served` is of, or "".
        mps_served: What a living MPS daemon serves, as it says; UUIDs alone are cards that a daemon has
            not given back, and `ANY_CARD` says that it is not known which these are.
        mps_waits: What keeps the configured MPS daemon from serving, in its words, or "".
        mig_profile: Into which profile every card is to be cut, or ""; None before that is known.
        allocation_api: By what requests reach the node.
        driver_limits: On which cards NVIDIA's driver is proven to limit memory.
        sandboxes: Names of RuntimeClasses whose pods get no enforced slice; `kata*` are all that begin so.
        kept: Pods whose files stay after the withdrawal; None while it is not done.
    """

    node: str
    mode: NodeMode | None = None
    policy: PlacementPolicy = PlacementPolicy.BINPACK
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    unit: MemoryUnit = MemoryUnit.GIB
    max_pods: int | None = None
    cards: tuple[Card, ...] = ()
    other_cards: int = 0
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    wants_isolation: bool = True
    memory_choice: EnforcerChoice = EnforcerChoice.AUTO
    driver_limits: DriverLimits = field(default_factory=DriverLimits)
    honors_disable: bool = False
    honors_pod_policy: bool = False
    driver_capabilities: str = "compute,utility"
    sandboxes: tuple[str, ...] = ()
    library_version: str = ""
    mark: str = ""
    mps_root: str = ""
    mps_served: str = ""
    mps_waits: str = ""
    mig_profile: str | None = None
    imex_channels: tuple[int, ...] = ()
    allocation_api: AllocationApi = AllocationApi.DEVICE_PLUGIN
    kept: tuple[str, ...] | None = None

    @property
    def terms(self) -> NodeTerms:
        """What a request is checked against; only while a mode is known."""
        return NodeTerms(self.node, self.mode or NodeMode.DISABLED, self.unit, self.max_pods)

    def policy_for(self, pod: PodRequest | None) -> ComputePolicy:
        """The compute policy of a pod's containers; RequestError as `pod_compute_policy` has it."""
        honors = self.honors_pod_policy
        return pod_compute_policy(pod, self.node, self.compute_policy, honors_annotation=honors)

    def check_runtime(self, pod: PodRequest | None) -> None:
        """RequestError where a pod that is to get a slice runs in a sandbox, in which nothing enforces it."""
        if pod and self.isolates and any(fnmatchcase(pod.runtime_class, s) for s in self.sandboxes):
            raise RequestError(
                f"pod {pod.ref} on node {self.node}: {_SANDBOX.format(pod.runtime_class)}",
                reason="SandboxedRuntime",
            )

    def memory_by(self, uuid: str) -> str:
        """Who will hold a new slice of a card to its memory: `driver (dmem)`, or why the library does.

        Where the driver was chosen and cannot, why there are none: `no slices (...)`.
        """
        if not self.isolates:
            return "nobody"
        limits, choice = self.driver_limits, self.memory_choice
        why = why_library(choice, limits, {uuid: 0}, is_shared=False)
        other = "no slices" if choice is EnforcerChoice.DRIVER else "library"
        text = clip(why.removeprefix(f"{uuid}: "))
        return f"{other} ({text})" if why else f"driver ({limits.backends[uuid]})"

    @property
    def mps_keeper(self) -> str:
        """Directory of an MPS daemon that serves cards or has not given them back, or ""."""
        return self.mps_root if self.mps_served else ""

    @property
    def isolates(self) -> bool:
        """Whether containers get limits and the library here."""
        return self.mode is not None and is_isolated(self.mode) and self.wants_isolation

    @property
    def healthy(self) -> dict[str, bool]:
        """UUID -> whether the card may serve now."""
        return {c.uuid: not self.faults and c.uuid not in self.unhealthy for c in self.cards}

    @property
    def is_leaving(self) -> bool:
        """Marked for uninstalling, and not withdrawn yet."""
        return bool(self.mark) and self.kept is None

    def card(self, uuid: str) -> Card | None:
        """The card of that UUID, if it is there."""
        return next((card for card in self.cards if card.uuid == uuid), None)


StateReader = Callable[[], NodeState]
