"""What a container receives: environment, mounts, device nodes and CDI names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from gpu_device_plugin.domain.node.compute_policy import ComputePolicy
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer

CONFIG_DIR = "/run/gpu-device-plugin/config"
REGION_FILE = "/run/gpu-device-plugin/state/region"
CARDS_DIR = "/run/gpu-device-plugin/cards"
LIBRARY_FILE = "/usr/local/lib/gpu-device-plugin/libgpuslice.so"
SELFTEST_FILE = "/usr/local/lib/gpu-device-plugin/gpu-selftest"
PRELOAD_FILE = "/etc/ld.so.preload"
NIX_PRELOAD_FILE = "/etc/ld-nix.so.preload"
"""The same file for the loader of nixpkgs' glibc, which reads no other."""
VISIBLE_DEVICES_DIR = "/var/run/nvidia-container-devices"
"""Where the NVIDIA runtime looks for cards named by mounts instead of by environment."""
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""The variable that tells the NVIDIA runtime which devices a container gets."""
CDI_ANNOTATION_PREFIX = "cdi.k8s.io/"


class ListStrategy(StrEnum):
    """How devices are named to what brings them into containers (R-720)."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"
    AUTO = "auto"
    """Alone: CDI_CRI or ENVVAR, as the agent decides for what the node has."""


CARD_KIND = "gpu-device-plugin/card"
"""The kind of the specification that the toolkit writes for us."""
NVIDIA_KIND = "nvidia.com/gpu"


class CardsInCdi(NamedTuple):
    """By which kind the node's CDI specifications name its cards.

    `problem`: why they cannot be given by CDI, empty where they can. `is_misfit`: because what a
    specification of `kind` says is wrong.
    """

    kind: str = NVIDIA_KIND
    problem: str = ""
    is_misfit: bool = False


_CDI = frozenset({ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI})


@dataclass(frozen=True, slots=True)
class DeviceAccess:
    """How cards reach containers (R-720, R-721).

    Attributes:
        strategies: `--device-list-strategy`, at least one.
        passes_nodes: `--pass-device-specs`: answers contain device nodes.
        annotation_prefix: `--cdi-annotation-prefix`.
        cdi_kind: The vendor and class of cards' CDI names.
        is_by_index: Cards' CDI names are their indexes.
    """

    strategies: tuple[ListStrategy, ...] = (ListStrategy.ENVVAR,)
    passes_nodes: bool = False
    annotation_prefix: str = CDI_ANNOTATION_PREFIX
    cdi_kind: str = NVIDIA_KIND
    is_by_index: bool = False

    @property
    def is_auto(self) -> bool:
        return ListStrategy.AUTO in self.strategies

    @property
    def asks_for_cdi(self) -> bool:
        """Whether the settings ask for CDI, whatever the node has."""
        return not {*self.strategies}.isdisjoint(_CDI)

    def with_cdi(self, found: CardsInCdi, *, is_by_index: bool) -> "DeviceAccess":
        """What `AUTO` stands for on a node, and the names of cards there."""
        auto = ListStrategy.ENVVAR if found.problem else ListStrategy.CDI_CRI
        ways = tuple(auto if way is ListStrategy.AUTO else way for way in self.strategies)
        return replace(self, strategies=ways, cdi_kind=found.kind, is_by_index=is_by_index)

    @property
    def is_cdi_only(self) -> bool:
        """Whether the container engine alone brings the cards, by a CDI specification."""
        return {*self.strategies} <= _CDI

    def visible(self, names: Iterable[str]) -> str:
        """The value of `VISIBLE_DEVICES` for devices of these names."""
        if self.is_cdi_only:
            return "void"
        is_by_mounts = ListStrategy.VOLUME_MOUNTS in self.strategies
        return VISIBLE_DEVICES_DIR if is_by_mounts else ",".join(names)

    def mounts(self, names: Iterable[str]) -> tuple["Mount", ...]:
        """The mounts that name these devices, where mounts do that."""
        if ListStrategy.VOLUME_MOUNTS not in self.strategies:
            return ()
        paths = (f"{VISIBLE_DEVICES_DIR}/{name}" for name in names)
        return tuple(Mount(path, "/dev/null", is_read_only=False) for path in paths)

    def annotations(self, cdi_names: Sequence[str], answer_id: str) -> dict[str, str]:
        """The annotation of `cdi-annotations`.

        `answer_id`, at most 36 characters, distinguishes the answers of one pod.
        """
        if ListStrategy.CDI_ANNOTATIONS not in self.strategies:
            return {}
        key = f"{self.annotation_prefix}nvidia-device-plugin_{answer_id}"
        return {key: ",".join(cdi_names)}


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host in the container."""

    container_path: str
    host_path: str
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of the host in the container; `permissions` out of r, w and m."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """The whole answer to one Allocate; empty for a resource that does not carry it."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_names: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class MigPart(NamedTuple):
    """A GPU instance of the card of that minor, or one compute instance of it."""

    card_minor: int
    gpu_instance: int
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths on the host.

    Attributes:
        control_devices: Device nodes beside the cards' own that exist on this host, for instance
            `/dev/nvidiactl` and `/dev/nvidia-uvm`.
        driver: Files of a driver that no container runtime brings: the simulated one's.
        mig_minors: Part of a card in MIG mode -> minor of the device node that opens it.
    """

    run_dir: str = ""
    library_dir: str = ""
    library_version: str = ""
    has_selftest: bool = False
    driver_root: str = "/"
    control_devices: tuple[str, ...] = ()
    driver: tuple[Mount, ...] = ()
    mig_minors: Mapping[MigPart, int] = field(default_factory=dict)


class MountedSlice(NamedTuple):
    """The slice whose files a container has mounted; empty where its mounts do not tell."""

    slice_id: str
    library_version: str


def slice_of_mounts(mounts: Mapping[str, str]) -> MountedSlice:
    """The slice that an answer in the checkpoint names.

    `mounts` are container path -> host path, as in the kubelet's checkpoint.
    """
    config = mounts.get(CONFIG_DIR, "").split("/")
    preload = mounts.get(PRELOAD_FILE, "").split("/")
    return MountedSlice(
        config[-2] if len(config) > 1 else "", preload[-2] if len(preload) > 1 else ""
    )


LIMITS_VERSION = 1


@dataclass(frozen=True, slots=True)
class CardLimit:
    """What a container may take of one card (compute: 1 to 100); None is no cap of that kind."""

    uuid: str
    memory_bytes: int | None
    core_percent: int | None


def limits_text(
    slice_id: str,
    lines: Sequence[CardLimit],
    policy: ComputePolicy = ComputePolicy.FIXED,
    enforcer: MemoryEnforcer = MemoryEnforcer.LIBRARY,
    revision: int = 0,
) -> str:
    """The `limits` file that the isolation library reads: one line per card."""
    text = f"version={LIMITS_VERSION}\nslice={slice_id}\npolicy={policy}\n"
    if enforcer is not MemoryEnforcer.LIBRARY:  # which versions of before expect
        text += f"memory_enforcer={enforcer}\n"
    if revision:
        text += f"revision={revision}\n"
    for limit in lines:
        memory = "" if limit.memory_bytes is None else f" memory_bytes={limit.memory_bytes}"
        core = "" if limit.core_percent is None else f" core_percent={limit.core_percent}"
        text += f"device={limit.uuid}{memory}{core}\n"
    return text
