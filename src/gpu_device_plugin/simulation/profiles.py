"""Simulated nodes as data: which cards, which driver, how cut.

A profile is a YAML file in `profiles/`; it names models of `models.yaml`. `node_lines`
turns one into the lines that `gpusim_create` of the simulated driver reads, whose
names are those of `src/simulator/fields.def`.
"""

import re
import uuid
from collections.abc import Iterator

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.mig import UUID_SPACE, instance_lines, profile_lines
from gpu_device_plugin.simulation.models import DIRECTORY, Data, Model, load, load_models

MOST_CARDS = 16
_BRANDS = {"tesla": 2, "nvidia": 14}
_ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}


class Group(Data, frozen=True):
    """Equal cards; `mig` cuts each of them into the named instances, in this order."""

    model: str
    count: int
    mig: tuple[str, ...] = ()


class Links(Data, frozen=True):
    """How the cards of a machine are linked; by default each has a PCIe port of the one processor.

    Attributes:
        cards_per_pci_switch: Neighbours that share a PCIe switch.
        cards_per_socket: Neighbours that share a socket.
        nvlinks: A row a card, a digit for each card: the NVLinks between them.
        nvswitch_links: NVLinks of each card that end at NVSwitches.
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


class Profile(Data, frozen=True):
    """A node: its driver and its cards."""

    driver_version: str
    cards: tuple[Group, ...]
    links: Links = Links()


def profile_names() -> list[str]:
    """The profiles there are, sorted."""
    return sorted(path.stem for path in (DIRECTORY / "profiles").glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """The profile of that name, or ConfigError naming those there are."""
    if name not in profile_names():
        known = ", ".join(profile_names())
        raise ConfigError(f"profile {name!r} is unknown; there are {known}")
    return load(DIRECTORY / "profiles" / f"{name}.yaml", Profile)


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
    """A whole node as the simulated driver's lines.

    Args:
        name: The profile.
        seed: UUIDs and serial numbers follow from it: equal seeds give equal cards.
        cards: How many cards instead of the profile's; its models are repeated in turn.
        driver_version: Instead of the profile's.
    """
    profile = load_profile(name)
    models = load_models()
    groups = [group for group in profile.cards for _ in range(group.count)]
    count = len(groups) if cards is None else cards
    if not 0 <= count <= MOST_CARDS:
        raise ConfigError(f"{count} cards asked for; a simulated node has 0 to {MOST_CARDS}")
    lines = [f"profile={name}", f"cards_count={count}"]
    lines += driver_lines(driver_version or profile.driver_version)
    for slot in range(count):
        group = groups[slot % len(groups)]
        lines += _card_lines(models[group.model], group, slot, seed)
        lines += profile.links.lines(slot, count)
    return lines


def _card_lines(model: Model, group: Group, slot: int, seed: str) -> Iterator[str]:
    """One card, plugged in and healthy."""
    fields: dict[str, object] = {
        **_identity(model, slot, seed),
        **_sensors(model),
        "mig_capable": int(bool(model.mig)),
        "mig_enabled": int(bool(group.mig)),
        "mig_pending": int(bool(group.mig)),
    }
    for key, value in fields.items():
        yield f"cards.{slot}.{key}={value}"
    yield from profile_lines(model, slot)
    yield from instance_lines(model, group.mig, slot, seed)


def _identity(model: Model, slot: int, seed: str) -> dict[str, object]:
    card_uuid = uuid.uuid5(UUID_SPACE, f"{seed}/{slot}")
    major, minor = model.compute_capability.split(".")
    return {
        "present": 1,
        "order": slot,
        "minor_number": slot,
        "uuid": f"GPU-{card_uuid}",
        "name": model.name,
        "serial": f"{card_uuid.int % 10**13:013d}",
        "pci_bus": 0x1A + 0x0D * slot,
        "pci_device_id": model.pci_device_id,
        "pci_subsystem_id": model.pci_subsystem_id,
        "architecture": _ARCHITECTURES[model.architecture],
        "brand": _BRANDS[model.brand],
        "compute_major": major,
        "compute_minor": minor,
        "multiprocessors": model.multiprocessors,
        "cores": model.cores,
        "memory_bus_bits": model.memory_bus_bits,
        "memory_total_mib": model.memory_mib,
        "memory_reserved_mib": model.reserved_mib,
    }


def _sensors(model: Model) -> dict[str, object]:
    power, clocks, celsius = model.power_watts, model.clocks_mhz, model.temperature_celsius
    return {
        "temperature_celsius": celsius.idle,
        "temperature_slowdown": celsius.slowdown,
        "temperature_shutdown": celsius.shutdown,
        "power_milliwatts": power.idle * 1000,
        "power_limit_milliwatts": power.limit * 1000,
        "power_min_milliwatts": power.min * 1000,
        "power_max_milliwatts": power.max * 1000,
        "graphics_mhz": clocks.graphics,
        "graphics_max_mhz": clocks.graphics,
        "memory_mhz": clocks.memory,
        "memory_max_mhz": clocks.memory,
        "video_mhz": clocks.video,
        "video_max_mhz": clocks.video,
        "ecc_supported": int(model.ecc),
        "ecc_enabled": int(model.ecc),
        "pcie_generation": model.pcie_generation,
        "pcie_generation_max": model.pcie_generation,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
