"""Pods as the stand-in kubelet is given them, and what it says became of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.domain.node.pods import ContainerKind


@dataclass(frozen=True, slots=True)
class StandInContainer:
    """One container of a pod: limits of extended resources, and drivers whose devices it has by claims."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP
    env: Mapping[str, str] = field(default_factory=dict)
    drivers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StandInPod:
    """A pod bound to this node; containers as in the spec, init containers and sidecars first."""

    namespace: str
    name: str
    uid: str
    containers: tuple[StandInContainer, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""


@dataclass(frozen=True, slots=True)
class PodAdmission:
    """How the admission of a pod ended; `message` carries the plugin's own text."""

    is_admitted: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """What a starting container receives.

    Attributes:
        env: Its environment: the plugins' first, its own over them.
        mounts: container path -> (host path, is read-only).
        devices: container path -> (host path, permissions).
    """

    env: Mapping[str, str]
    mounts: Mapping[str, tuple[str, bool]]
    devices: Mapping[str, tuple[str, str]]
    cdi_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One call made to a plugin, for tests; `ids` are those available, or those given."""

    method: str
    resource: str
    ids: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class KubeletTimes:
    """A kubelet's own limits, in seconds."""

    dial: float = 10.0
    pre_start: float = 30.0
    stop_grace: float = 300.0


@dataclass(slots=True)
class KubeletFaults:
    """Faults of the next registrations, and reasons for which a later admission step rejects the next pods."""

    register_errors: list[str] = field(default_factory=list)
    unopened_lists: int = 0
    rejections_after_allocate: list[str] = field(default_factory=list)
