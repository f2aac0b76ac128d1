"""NVIDIA's configuration, version v1, as values; the keys are those of its own device plugin."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from gpu_device_plugin.domain.grants.container_edits import DeviceAccess
from gpu_device_plugin.errors import ConfigError, clip

PREFIX = "nvidia.com/"
GPU = "nvidia.com/gpu"
SHARED_SUFFIX = ".shared"
LONGEST_RESOURCE_NAME = 63
FEWEST_REPLICAS = 2
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HEX = r"[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_REFERENCE = re.compile(rf"\d+(:\d+)?|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+")


class MigStrategy(StrEnum):
    """How MIG instances are offered (R-206, R-706)."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class IdStrategy(StrEnum):
    """The kind of name that a device has for the container runtime."""

    UUID = "uuid"
    INDEX = "index"


class AllocationPolicy(StrEnum):
    """Which replicas and instances are given first (R-703)."""

    DISTRIBUTED = "distributed"
    PACKED = "packed"


class SharingKind(StrEnum):
    """How the replicas of a card share it."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a resource that an entry replicates: the first `count`, `references` (`0`, `0:1`, UUIDs), or all."""

    count: int = 0
    references: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        return not self.count and not self.references


ALL_DEVICES = Devices()


@dataclass(frozen=True, slots=True)
class SharedResource:
    """One entry of `sharing.*.resources`; `name` has its prefix, and is that of the replicas without `rename`."""

    name: str
    replicas: int
    rename: str = ""
    devices: Devices = ALL_DEVICES


@dataclass(frozen=True, slots=True)
class Sharing:
    """`sharing.timeSlicing` or `sharing.mps`; `is_one_at_most` is failRequestsGreaterThanOne."""

    kind: SharingKind = SharingKind.NONE
    resources: tuple[SharedResource, ...] = ()
    is_renamed: bool = False
    is_one_at_most: bool = False

    def new_name(self, entry: SharedResource) -> str:
        """The resource under which the replicas of `entry` are offered (R-701)."""
        return entry.rename or (entry.name + SHARED_SUFFIX if self.is_renamed else entry.name)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Devices whose model (or MIG profile) matches are offered as `name`; `*` is any text."""

    pattern: str
    name: str

    def matches(self, text: str) -> bool:
        """Whether it matches the whole `text`; a space and a hyphen are the same.

        The inventory has a model's spaces as hyphens.
        """
        literal = re.sub(r"[?[]", r"[\g<0>]", self.pattern.replace(" ", "-"))
        return fnmatchcase(text.replace(" ", "-"), literal)


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """What is asked of the feature labels: on the node, in a file as well, with the time of their last change."""

    is_on: bool = False
    output_file: str = ""
    machine_type_file: str = "/sys/class/dmi/id/product_name"
    omits_timestamp: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """What decides over offers and answers; a default is that of NVIDIA's plugin.

    Attributes:
        fails_on_init_error: With False, a node that cannot serve is ready and offers nothing.
        dev_root: The host directory that has `dev/`; empty for that of the driver.
        imex_channels: IMEX channels that every container gets: none, or 0.
        mig_profile: Into which profile every card is to be cut; empty for any.
        gpu_patterns: Models and their resource names, before the default `*`.
        mig_patterns: Profiles and their resource names, before the defaults.
    """

    mig_strategy: MigStrategy = MigStrategy.NONE
    fails_on_init_error: bool = True
    access: DeviceAccess = field(default_factory=DeviceAccess)
    id_strategy: IdStrategy = IdStrategy.UUID
    allocation_policy: AllocationPolicy = AllocationPolicy.DISTRIBUTED
    driver_root: str = "/"
    dev_root: str = ""
    is_gdrcopy_on: bool = False
    is_gds_on: bool = False
    is_mofed_on: bool = False
    imex_channels: tuple[int, ...] = ()
    is_imex_required: bool = False
    mps_root: str = ""
    mig_profile: str = ""
    features: FeatureSettings = field(default_factory=FeatureSettings)
    sharing: Sharing = field(default_factory=Sharing)
    gpu_patterns: tuple[Pattern, ...] = ()
    mig_patterns: tuple[Pattern, ...] = ()

    @property
    def is_by_index(self) -> bool:
        """Whether devices are named by index, and not by UUID."""
        return self.id_strategy is IdStrategy.INDEX


def resource_name(text: str) -> str:
    """The resource with NVIDIA's prefix; ConfigError if it is no name of a Kubernetes resource."""
    name = text if text.startswith(PREFIX) else PREFIX + text
    if len(name) > LONGEST_RESOURCE_NAME:
        raise ConfigError(
            f"{clip(name)!r} has {len(name)} characters; a resource name has at most "
            f"{LONGEST_RESOURCE_NAME}"
        )
    if not _SUBDOMAIN.fullmatch(name.removeprefix(PREFIX)):
        raise ConfigError(
            f"{clip(name)!r} is not a resource name: wanted lower case letters, digits, . -"
        )
    return name


def devices(given: str | int | Sequence[str | int]) -> Devices:
    """The value of `devices`: `all`, a positive number or a list of references; else ConfigError."""
    if isinstance(given, str):
        if given != "all":
            raise ConfigError(f"{clip(given)!r}: the only text allowed is 'all'")
        return ALL_DEVICES
    if isinstance(given, int):
        if given <= 0:
            raise ConfigError(f"{given}: a count of devices must be > 0")
        return Devices(count=given)
    references = tuple(map(str, given))
    for reference in references:
        if not _REFERENCE.fullmatch(reference):
            raise ConfigError(
                f"{clip(reference)!r} is no device: wanted an index (0), a MIG index (0:1) or a UUID"
            )
    if not references:
        raise ConfigError("the list is empty; leave the key out for all devices")
    return Devices(references=references)


def check(configuration: Configuration) -> None:
    """Raise ConfigError, beginning with the path of the key, for what no node can mend."""
    sharing = configuration.sharing
    if sharing.kind is SharingKind.MPS:
        _check_mps(configuration)
    section = "timeSlicing" if sharing.kind is SharingKind.TIME_SLICING else "mps"
    for place, entry in enumerate(sharing.resources):
        path = f"sharing.{section}.resources[{place}]"
        if entry.replicas < FEWEST_REPLICAS:
            raise ConfigError(f"{path}.replicas: {entry.replicas}: number of replicas must be >= 2")
        name = sharing.new_name(entry)
        if not entry.devices.is_all and name == entry.name:
            raise ConfigError(
                f"{path}: replicates part of the devices of {entry.name}, so that its replicas "
                f"and its other devices would have one name; set 'rename'"
            )
        for other in sharing.resources[:place]:
            _check_apart(path, entry, other)


def _check_apart(path: str, entry: SharedResource, other: SharedResource) -> None:
    """Two entries replicate different devices."""
    if entry.name != other.name:
        return
    both = sorted(set(entry.devices.references) & set(other.devices.references))
    if both:
        raise ConfigError(
            f"{path}.devices: {both[0]!r} stands in another entry of {entry.name} too"
        )
    if not entry.devices.references or not other.devices.references:
        raise ConfigError(
            f"{path}: {entry.name} has another entry already; two entries of one resource must "
            f"both list their devices"
        )


def _check_mps(configuration: Configuration) -> None:
    if not configuration.mps_root:
        raise ConfigError("sharing.mps: needs flags.mpsRoot (--mps-root)")
    if configuration.mig_strategy is MigStrategy.MIXED:
        raise ConfigError("sharing.mps: is not possible with flags.migStrategy mixed")
