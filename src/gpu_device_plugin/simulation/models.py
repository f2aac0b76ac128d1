"""Models of cards that can be simulated, as data (`models.yaml`)."""

from pathlib import Path
from typing import TypeVar

import msgspec

from gpu_device_plugin.errors import ConfigError

_T = TypeVar("_T")
DIRECTORY = Path(__file__).parent
"""Of all data files of the simulation."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is read from YAML: an unknown key is an error."""


class Watts(Data, frozen=True):
    """Power: what an idle card draws, its limit and the limit's range."""

    idle: int
    limit: int
    min: int
    max: int


class Clocks(Data, frozen=True):
    """The highest clocks."""

    graphics: int
    memory: int
    video: int


class Temperatures(Data, frozen=True):
    """An idle card's temperature, and where it slows down and shuts down."""

    idle: int
    slowdown: int
    shutdown: int


class MigProfile(Data, frozen=True):
    """One way to cut an instance off a card; `id` is the driver's number of it."""

    id: int
    compute_slices: int
    memory_slices: int
    memory_mib: int
    multiprocessors: int


class Model(Data, frozen=True):
    """A kind of card."""

    name: str
    brand: str
    architecture: str
    compute_capability: str
    memory_mib: int
    multiprocessors: int
    cores: int
    memory_bus_bits: int
    pci_device_id: int
    pci_subsystem_id: int
    pcie_generation: int
    power_watts: Watts
    clocks_mhz: Clocks
    temperature_celsius: Temperatures
    ecc: bool
    reserved_mib: int = 0
    mig: dict[str, MigProfile] = {}


def load_models() -> dict[str, Model]:
    """Every model of card by its key."""
    return load(DIRECTORY / "models.yaml", dict[str, Model])


def load(path: Path, kind: type[_T]) -> _T:
    """One YAML file as a value; ConfigError names the file and the key."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path.name}: {error}") from error
