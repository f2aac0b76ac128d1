"""The node state: one writer, many readers; and signals, by which parts tell each other of changes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypedDict, TypeVar, Unpack

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy
from gpu_device_plugin.domain.node.memory_enforcer import DriverLimits, EnforcerChoice
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.settings.agent_settings import Isolation, Settings

T = TypeVar("T")


class Signal(Generic[T]):
    """Calls every listener with each value, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], None]] = []

    def subscribe(self, listener: Callable[[T], None]) -> None:
        self._listeners.append(listener)

    def emit(self, value: T) -> None:
        for listener in self._listeners:
            listener(value)


class NodeStateChange(TypedDict, total=False):
    """The fields of a `NodeState` that may change while the agent runs."""

    mode: NodeMode | None
    policy: PlacementPolicy
    compute_policy: ComputePolicy
    unit: MemoryUnit
    max_pods: int | None
    cards: tuple[Card, ...]
    unhealthy: Mapping[str, str]
    unhealthy_since: Mapping[str, float]
    strangers: Mapping[str, MiB]
    faults: Mapping[str, str]
    library_version: str
    memory_choice: EnforcerChoice
    driver_limits: DriverLimits
    mark: str
    mps_root: str
    mps_served: str
    mps_waits: str
    mig_profile: str
    imex_channels: tuple[int, ...]
    allocation_api: AllocationApi
    older_configuration: str
    kept: tuple[str, ...] | None


def first_state(settings: Settings) -> NodeState:
    """What is known before cards and labels are: the operator's settings."""
    return NodeState(
        node=settings.node_name,
        policy=settings.placement,
        compute_policy=settings.compute_policy,
        unit=settings.memory_unit,
        wants_isolation=settings.isolation is Isolation.ON,
        memory_choice=settings.memory_enforcer,
        honors_disable=settings.honor_cgpu_disable,
        honors_pod_policy=settings.honor_pod_compute_policy,
        driver_capabilities=settings.driver_capabilities,
        sandboxes=settings.sandbox_runtime_classes,
    )


class NodeStore:
    """Holds the current `NodeState` and calls listeners when it has changed."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._listeners: list[Callable[[NodeState], None]] = []

    def read(self) -> NodeState:
        return self._state

    def subscribe(self, listener: Callable[[NodeState], None]) -> None:
        self._listeners.append(listener)

    def update(self, **changes: Unpack[NodeStateChange]) -> None:
        """Put new values in place, and call the listeners if anything differs."""
        state = replace(self._state, **changes)
        if state != self._state:
            self._state = state
            for listener in self._listeners:
                # Not `state`: a listener may have changed it further.
                listener(self._state)

    def set_fault(self, reason: str, text: str | None) -> bool:
        """Note a fault of the whole node, or (None) its end; returns whether that is a change."""
        faults: Mapping[str, str] = self._state.faults
        if faults.get(reason) == text:
            return False
        others = {key: value for key, value in faults.items() if key != reason}
        self.update(faults=others if text is None else {**others, reason: text})
        return True
