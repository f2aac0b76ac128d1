"""What a simulated node looks like now, as values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceView:
    """A MIG slice."""

    profile: str
    uuid: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """A card by its slot, which stays when others are unplugged (NVML's index moves)."""

    slot: int
    uuid: str
    name: str
    is_present: bool
    is_lost: bool
    is_mig: bool
    memory_mib: int
    used_bytes: int
    gpu_percent: int
    temperature_celsius: int
    recovery_action: int
    compute_mode: int
    instances: tuple[InstanceView, ...]


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process that holds memory of a card."""

    pid: int
    card: int
    used_bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class SimulatedNodeView:
    """The whole node at one instant."""

    profile: str
    driver_version: str
    cuda_version: str
    driver_loads: int
    is_hanging: bool
    cards: tuple[SimulatedCard, ...]
    processes: tuple[ProcessView, ...]


def node_view(fields: Mapping[str, str]) -> SimulatedNodeView:
    """Reads what `library.describe` tells; a field that is missing is zero."""
    cuda = int(fields.get("cuda_version", "0"))
    return SimulatedNodeView(
        profile=fields.get("profile", ""),
        driver_version=fields.get("driver_version", ""),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        driver_loads=int(fields.get("driver_loads", "0")),
        is_hanging=fields.get("hang", "0") != "0",
        cards=tuple(
            _card(slot, _below(fields, f"cards.{slot}."))
            for slot in range(int(fields.get("cards_count", "0")))
        ),
        processes=tuple(_processes(fields)),
    )


def _below(fields: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The fields of one structure, without its prefix."""
    return {
        name.removeprefix(prefix): value
        for name, value in fields.items()
        if name.startswith(prefix)
    }


def _numbered(fields: Mapping[str, str], prefix: str) -> Iterator[dict[str, str]]:
    """The structures `prefix`0, `prefix`1, … that are there, by number."""
    numbers = {int(name.split(".")[1]) for name in fields if name.startswith(prefix)}
    for number in sorted(numbers):
        yield _below(fields, f"{prefix}{number}.")


def _card(slot: int, fields: Mapping[str, str]) -> SimulatedCard:
    def number(name: str) -> int:
        return int(fields.get(name, "0"))

    return SimulatedCard(
        slot=slot,
        uuid=fields.get("uuid", ""),
        name=fields.get("name", ""),
        is_present=bool(number("present")),
        is_lost=bool(number("lost")),
        is_mig=bool(number("mig_enabled")),
        memory_mib=number("memory_total_mib"),
        used_bytes=number("memory_used_bytes"),
        gpu_percent=number("gpu_percent"),
        temperature_celsius=number("temperature_celsius"),
        recovery_action=number("recovery_action"),
        compute_mode=number("compute_mode"),
        instances=tuple(
            InstanceView(found["profile"], found["uuid"], int(found["memory_mib"]))
            for found in _numbered(fields, "instances.")
            if "uuid" in found
        ),
    )


def _processes(fields: Mapping[str, str]) -> Iterator[ProcessView]:
    for found in _numbered(fields, "processes."):
        yield ProcessView(
            pid=int(found["pid"]),
            card=int(found.get("card", "0")),
            used_bytes=int(found.get("used_bytes", "0")),
            name=found.get("name", ""),
        )
