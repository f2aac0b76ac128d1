"""Simulated nodes as data: which cards, which driver, how cut.

A profile is a YAML file in `profiles/`; it names models of `simulated_models.yaml`. `node_lines`
turns one into the lines that `gpusim_create` of the simulated driver reads, whose
names are those of `src/simulator/fields.def`.

Models of cards that can be simulated, as data (`simulated_models.yaml`).

A simulated card's MIG profiles and instances, as the simulated driver's lines.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from gpu_device_plugin.errors import ConfigError

_T = TypeVar("_T")
DIRECTORY = Path(__file__).parent
"""Where all data files of the simulation are."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is read from YAML: an unknown key is an error."""


class MigProfile(Data, frozen=True):
    """One way to cut an instance off a card; `id` is the driver's number of it."""

    id: int
    compute_slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int


class SimulatedModel(Data, frozen=True):
    """A kind of card; `driver` has fields of the simulated driver by their names there."""

    name: str
    driver: dict[str, int]
    mig: dict[str, MigProfile] = {}


def load_models() -> dict[str, SimulatedModel]:
    """Every model of card by its key."""
    return load(DIRECTORY / "simulated_models.yaml", dict[str, SimulatedModel])


def load(path: Path, kind: type[_T]) -> _T:
    """One YAML file as a value; ConfigError names the file and the key."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path.name}: {error}") from error


UUID_SPACE = uuid.UUID("6d0b6c0e-7c6e-5f0e-9d4b-6f7a2f1c5a11")
"""Name space of the UUIDs of cards and instances."""
# NVML's numbers of an instance profile go by its slices.
_PROFILE_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
_MOST_COMPUTE_SLICES = 7
_MOST_MEMORY_SLICES = 8
_MOST_INSTANCES = 7
_FIRST_OWN_UUIDS = 470


def mig_ids(driver_version: str, card_uuid: str) -> str:
    """How ids of a card's instances begin: drivers before 470 name card and place (R-211), later ones nothing.

    >>> mig_ids("460.32.03", "GPU-1")
    'MIG-GPU-1/'
    """
    return f"MIG-{card_uuid}/" if int(driver_version.partition(".")[0]) < _FIRST_OWN_UUIDS else ""


def cut_lines(
    card_name: str, slot: int, cuts: tuple[str, ...] | None, seed: str, ids: str
) -> list[str]:
    """A card of a node cut into these instances (None: no MIG mode), as lines.

    Their UUIDs follow from `seed`, or from `ids`, which is by `mig_ids`.
    """
    model = next(model for model in load_models().values() if model.name == card_name)
    if cuts is not None and not model.mig:
        raise ConfigError(f"{card_name} cannot be cut into MIG instances")
    is_mig = int(cuts is not None)
    return [
        *(f"cards.{slot}.{name}={is_mig}" for name in ("mig_enabled", "mig_pending")),
        *(f"cards.{slot}.instances.{number}.present=0" for number in range(_MOST_INSTANCES)),
        *instance_lines(model, cuts or (), slot, seed, ids),
    ]


def profile_lines(model: SimulatedModel, slot: int) -> Iterator[str]:
    """What a card can be cut into through NVML."""
    for number, (name, profile) in enumerate(model.mig.items()):
        by_compute = _MOST_COMPUTE_SLICES // profile.compute_slices
        fields = {
            **msgspec.structs.asdict(profile),
            "number": _PROFILE_NUMBERS[profile.compute_slices],
            "count": min(by_compute, _MOST_MEMORY_SLICES // profile.memory_slices),
            "name": name,
        }
        yield from _lines(f"cards.{slot}.profiles.{number}", fields)


def instance_lines(
    model: SimulatedModel, cuts: tuple[str, ...], slot: int, seed: str, ids: str
) -> Iterator[str]:
    """The MIG slices of one card, placed one behind the other."""
    start = 0
    for number, name in enumerate(cuts):
        profile, compute_slices = _parse_cut(model, name)
        if start + profile.memory_slices > _MOST_MEMORY_SLICES or number == _MOST_INSTANCES:
            raise ConfigError(f"{', '.join(cuts)} do not fit one {model.name}")
        share = profile.multiprocessors * compute_slices // profile.compute_slices
        fields: dict[str, object] = {
            "present": 1,
            "is_empty": 0,
            "gpu_instance": number + 7,
            "gpu_profile": _PROFILE_NUMBERS[profile.compute_slices],
            "gpu_profile_id": profile.id,
            "gpu_slices": profile.compute_slices,
            "compute_profile": _PROFILE_NUMBERS[compute_slices],
            "compute_slices": compute_slices,
            "memory_slices": profile.memory_slices,
            "placement_start": start,
            "multiprocessors": share,
            "memory_mib": profile.memory_mib,
            "profile": name,
            "uuid": f"{ids}{number + 7}/0"
            if ids
            else f"MIG-{uuid.uuid5(UUID_SPACE, f'{seed}/{slot}/{number}')}",
        }
        yield from _lines(f"cards.{slot}.instances.{number}", fields)
        start += profile.memory_slices


def _parse_cut(model: SimulatedModel, name: str) -> tuple[MigProfile, int]:
    """`3g.20gb`, or a part of its compute as `1c.3g.20gb`: the profile and the compute slices."""
    part = re.fullmatch(r"(\d)c\.(.*)", name)
    profile = model.mig.get(part[2] if part else name)
    if profile is None:
        known = ", ".join(model.mig) or "none"
        raise ConfigError(f"{model.name} has MIG profiles {known}; not {name}")
    slices = int(part[1]) if part else profile.compute_slices
    if slices not in _PROFILE_NUMBERS or slices > profile.compute_slices:
        raise ConfigError(f"{name}: a compute instance has 1 to {profile.compute_slices} slices")
    return profile, slices


MOST_CARDS = 16


class Group(Data, frozen=True):
    """Equal cards; `mig` cuts each of them into the named instances, in this order."""

    model: str
    count: int
    mig: tuple[str, ...] = ()


class Links(Data, frozen=True):
    """How cards are linked; by default each has a PCIe port of the one processor.

    `nvlinks` has a row a card, a digit for each other card: the NVLinks between them.
    """

    cards_per_pci_switch: int = 1
    cards_per_socket: int = MOST_CARDS
    nvlinks: tuple[str, ...] = ()
    nvswitch_links: int = 0

    def lines(self, slot: int, count: int) -> Iterator[str]:
        """Those of one card on a node of `count`."""
        row = self.nvlinks[slot][:count] if slot < len(self.nvlinks) else ""
        yield f"cards.{slot}.nvlinks={row}"
        yield f"cards.{slot}.switch_links={self.nvswitch_links}"
        yield f"cards.{slot}.pci_switch={slot // self.cards_per_pci_switch + 1}"
        yield f"cards.{slot}.pci_socket={slot // self.cards_per_socket + 1}"


class NodeProfile(Data, frozen=True):
    """A node: its driver and its cards."""

    driver_version: str
    cards: tuple[Group, ...]
    links: Links = Links()


def profile_names() -> list[str]:
    """The profiles there are, sorted."""
    return sorted(path.stem for path in (DIRECTORY / "profiles").glob("*.yaml"))


def load_profile(name: str) -> NodeProfile:
    """The profile of that name, or ConfigError naming those there are."""
    if name not in profile_names():
        known = ", ".join(profile_names())
        raise ConfigError(f"profile {name!r} is unknown; there are {known}")
    return load(DIRECTORY / "profiles" / f"{name}.yaml", NodeProfile)


def driver_lines(driver_version: str) -> list[str]:
    """The node's versions: driver, NVML and CUDA belong together."""
    if not re.fullmatch(r"\d{3}(\.\d+){1,2}", driver_version):
        raise ConfigError(
            f"driver version {driver_version!r} is not of the form 535.309.01 or 610.43"
        )
    branch = int(driver_version.split(".", 1)[0])
    versions = load(DIRECTORY / "drivers.yaml", dict[int, str])
    known = [number for number in versions if number <= branch]
    if not known:
        raise ConfigError(
            f"driver {driver_version} is older than {min(versions)}, the oldest known"
        )
    major, minor = versions[max(known)].split(".")
    return [
        f"driver_version={driver_version}",
        f"nvml_version={major}.{driver_version}",
        f"cuda_version={int(major) * 1000 + int(minor) * 10}",
    ]


def node_lines(
    name: str, *, seed: str, cards: int | None = None, driver_version: str | None = None
) -> list[str]:
    """A whole node as the simulated driver's lines; equal seeds give equal UUIDs and serial numbers.

    With more `cards` than the profile has, its models are repeated in order.
    """
    profile = load_profile(name)
    models = load_models()
    groups = [group for group in profile.cards for _ in range(group.count)]
    count = len(groups) if cards is None else cards
    if not 0 <= count <= MOST_CARDS:
        raise ConfigError(f"{count} cards asked for; a simulated node has 0 to {MOST_CARDS}")
    lines = [f"profile={name}", f"cards_count={count}"]
    driver = driver_version or profile.driver_version
    lines += driver_lines(driver)
    for slot in range(count):
        group = groups[slot % len(groups)]
        lines += _card_lines(models[group.model], group, slot, seed, driver)
        lines += profile.links.lines(slot, count)
    return lines


def _card_lines(
    model: SimulatedModel, group: Group, slot: int, seed: str, driver: str
) -> Iterator[str]:
    """One card, plugged in and healthy."""
    card_uuid = uuid.uuid5(UUID_SPACE, f"{seed}/{slot}")
    fields = {
        "present": 1,
        "order": slot,
        "minor_number": slot,
        "uuid": f"GPU-{card_uuid}",
        "name": model.name,
        "serial": f"{card_uuid.int % 10**13:013d}",
        "pci_bus": 0x1A + 0x0D * slot,
        **model.driver,
        "mig_capable": int(bool(model.mig)),
        "mig_enabled": int(bool(group.mig)),
        "mig_pending": int(bool(group.mig)),
    }
    yield from _lines(f"cards.{slot}", fields)
    yield from profile_lines(model, slot)
    yield from instance_lines(model, group.mig, slot, seed, mig_ids(driver, f"GPU-{card_uuid}"))


def _lines(place: str, fields: Mapping[str, object]) -> Iterator[str]:
    return (f"{place}.{name}={value}" for name, value in fields.items())
