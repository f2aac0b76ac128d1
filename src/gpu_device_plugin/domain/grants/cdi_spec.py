"""CDI files: what stands in those of claims and slices, and by which names a container runtime finds it."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.grants.claims import DRIVER, Claim, ClaimRef, PreparedDevice
from gpu_device_plugin.domain.grants.container_edits import (
    CARD_KIND,
    NVIDIA_KIND,
    CardsInCdi,
    ContainerEdits,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.node.memory_enforcer import LimitBy

CDI_KIND = "gpu-device-plugin/slice"
CDI_VERSION = "0.6.0"
HOOK = "gpu-limit-hook"
LIMIT_VARIABLE = "NVIDIA_GPU_MEMORY_LIMIT"
_HOOK_SECONDS = 30
_NVML = re.compile(r"/libnvidia-ml\.so\.(\d+\.[\d.]+)$")
_CLAIM_KEY, _SLICE_KEY = f"{DRIVER}/claim", f"{DRIVER}/slice"


def cdi_spec(ref: ClaimRef, slice_id: str, edits: ContainerEdits) -> dict[str, object]:
    """The CDI file of a claim: what an Allocate would answer, as edits of one device.

    Its annotations say whose it is, so that a lost grant can be made again.
    """
    content: dict[str, object] = {
        "env": [f"{name}={value}" for name, value in edits.envs.items()],
        "mounts": [cdi_mount(mount) for mount in edits.mounts],
        "deviceNodes": [
            {"path": d.container_path, "hostPath": d.host_path, "permissions": d.permissions}
            for d in edits.devices
        ],
    }
    shown = {key: value for key, value in content.items() if value}
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "annotations": {_CLAIM_KEY: str(ref), _SLICE_KEY: slice_id},
        "devices": [{"name": ref.uid, "containerEdits": shown}],
    }


class ClaimedSlice(NamedTuple):
    """A claim, and the slice that it was given."""

    claim: ClaimRef
    slice_id: str


def claim_of_spec(uid: str, spec: Mapping[str, object]) -> ClaimedSlice | None:
    """The claim that a CDI file was made for; None where the file does not say."""
    notes = spec.get("annotations")
    notes = notes if isinstance(notes, Mapping) else {}
    namespace, _, name = str(notes.get(_CLAIM_KEY, "")).partition("/")
    slice_id = str(notes.get(_SLICE_KEY, ""))
    is_told = namespace and name and slice_id.isalnum()
    return ClaimedSlice(ClaimRef(namespace, name, uid), slice_id) if is_told else None


def prepare_devices(claim: Claim, edits: ContainerEdits) -> list[PreparedDevice]:
    """What the kubelet is told: the first device carries everything that the containers receive."""
    # An annotation is the kubelet's to make, and it makes none for claims.
    by_annotation = [name for value in edits.annotations.values() for name in value.split(",")]
    names = tuple(dict.fromkeys((f"{CDI_KIND}={claim.ref.uid}", *edits.cdi_names, *by_annotation)))
    return [
        PreparedDevice(of, names if number == 0 else ()) for number, of in enumerate(claim.devices)
    ]


def cdi_mount(mount: Mount, bind: str = "rbind") -> dict[str, object]:
    """A mount in a CDI file; `bind` or `rbind`."""
    return {
        "containerPath": mount.container_path,
        "hostPath": mount.host_path,
        "options": ["ro" if mount.is_read_only else "rw", "nosuid", "nodev", bind],
    }


def limit_device(slice_id: str, memory_bytes: int, paths: Paths, by: LimitBy) -> dict[str, object]:
    """The CDI file of a slice whose memory NVIDIA's driver limits, before its container starts.

    By gpu-limit-hook, or by variables for the hook of NVIDIA's toolkit. Those are there in both cases:
    NVIDIA's hook may run beside it, a pod that set one of them would lift its limit, and what a CDI
    device sets stands over what a pod sets.
    """
    hook = {
        "hookName": "createRuntime",
        "path": f"{paths.library_dir}/{paths.library_version}/{HOOK}",
        "args": [
            *(HOOK, "--slice", f"{paths.run_dir}/slices/{slice_id}"),
            *("--driver-root", paths.driver_root),
        ],
        "timeout": _HOOK_SECONDS,
    }
    limit = f"{LIMIT_VARIABLE}={memory_bytes // 2**20}"
    edits: dict[str, object] = {"env": ["NVIDIA_GPU_MEMORY_REQUEST=0", limit]}
    edits |= {"hooks": [hook]} if by is LimitBy.HOOK else {}
    devices = [{"name": slice_id, "containerEdits": edits}]
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices}


class CdiCards(NamedTuple):
    """What a CDI specification of the node names, and the host's files that it brings."""

    kind: str
    names: frozenset[str]
    files: frozenset[str]


def cdi_names(cards: Iterable[Card], *, is_by_index: bool) -> list[str]:
    """The names of cards, and of the instances of those in MIG mode, as the toolkit writes them."""
    names = []
    for card in cards:
        parts = card.hardware.instances if card.hardware.is_mig else (None,)
        for part in parts:
            uuid, index = (part or card).uuid, f"{card.index}:{part.index}" if part else card.index
            names.append(str(index) if is_by_index else uuid)
    return names


def cards_in_cdi(specs: Sequence[CdiCards], wanted: Collection[str], driver: str) -> CardsInCdi:
    """By which kind every card that is wanted has a name, with libraries of the driver that runs, as far as these are known."""
    misfit: CardsInCdi | None = None
    for kind in (CARD_KIND, NVIDIA_KIND):
        of_kind = [spec for spec in specs if spec.kind == kind]
        missing = sorted({*wanted}.difference(*(spec.names for spec in of_kind)))
        versions = (_NVML.search(file) for spec in of_kind for file in spec.files)
        drivers = {version[1] for version in versions if version}
        why = f"does not name {missing[0]}" if missing else ""
        if driver and drivers and driver not in drivers:
            why = f"brings driver {min(drivers)}, and {driver} runs"
        if of_kind and not why:
            return CardsInCdi(kind)
        if of_kind and not misfit:
            misfit = CardsInCdi(kind, f"the CDI specification of {kind} {why}", is_misfit=True)
    absent = f"no CDI specification is of kind {CARD_KIND} or {NVIDIA_KIND}"
    return misfit or CardsInCdi(problem=absent)


def has_cdi(runtime: str) -> bool:
    """Whether a container runtime, for instance `containerd://2.4.2`, has CDI on by default."""
    name, _, version = runtime.partition("://")
    major = re.match(r"v?(\d+)\.", version)
    return name == "cri-o" or (name == "containerd" and major is not None and int(major[1]) >= 2)
