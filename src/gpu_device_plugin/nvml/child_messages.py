"""The lines of the child, typed: bytes in, reports out.

The child writes them as plain dictionaries, because msgspec would cost it memory on every node.
A field that is missing or of another type is an error here, so the two sides cannot diverge.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from gpu_device_plugin.domain.cards.nvml_reports import (
    CardReport,
    DriverMissing,
    Inventory,
    NvmlReport,
    Probe,
    UnreadableCard,
    Xid,
)
from gpu_device_plugin.domain.nvidia.links import points_of
from gpu_device_plugin.errors import NvmlError

# NVML's error if the kernel module is not loaded; the next inventory is then a new load.
_UNLOADED = "DRIVER_NOT_LOADED"
MISMATCH = "LIB_RM_VERSION_MISMATCH"
_TEXTS = {
    _UNLOADED: "the NVIDIA kernel driver is not loaded",
    MISMATCH: "libnvidia-ml.so.1 and the NVIDIA kernel driver are of different versions",
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 is not {place}",
    "FUNCTION_NOT_FOUND": "libnvidia-ml.so.1 lacks a function that every driver since 418 has",
}


_NO_DRIVER = "the NVIDIA driver is not installed"
_NOT_INSIDE = f"{_NO_DRIVER}, or the container runtime did not inject it"
_CONTAINERS = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")


def driver_trouble(error: str) -> str:
    """What it means that NVML cannot be opened: its error, which may have details after a colon."""
    name, _, details = error.partition(": ")
    is_inside = any(map(os.path.exists, _CONTAINERS))
    place = f"in this container: {_NOT_INSIDE}" if is_inside else f"on this machine: {_NO_DRIVER}"
    text = _TEXTS.get(name, f"NVML says {name}").format(place=place)
    return f"{text} ({details})" if details else text


class _Line(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """A line of the child."""


class Starting(_Line, frozen=True, tag="starting"):
    """NVML is being opened, which may take long."""


class Beat(_Line, frozen=True, tag="beat"):
    """A sign of life.

    Attributes:
        reopen: Why NVML should be opened again: a card is `failing`, cards or driver have
            `changed`; else "".
    """

    reopen: Literal["", "failing", "changed"] = ""


class Asking(_Line, frozen=True, tag="asking"):
    """A question goes to a card. `index` is of the card that has owed an answer longest, None of the driver."""

    index: int | None


class NoDriver(_Line, frozen=True, tag="no_driver"):
    """NVML cannot be opened."""

    error: str


class XidLine(_Line, frozen=True, tag="xid"):
    """An XID."""

    uuid: str | None
    code: int
    instances: tuple[str, ...] = ()


class InventoryLine(_Line, frozen=True, tag="inventory"):
    """All cards; `links` are the PCI level and the NVLinks of each card to each other one, by UUID."""

    driver_version: str
    cuda_version: str
    driver_load: str
    cards: tuple[CardReport, ...]
    unreadable: tuple[UnreadableCard, ...]
    links: dict[str, dict[str, tuple[int, int]]]


class ProbesLine(_Line, frozen=True, tag="probes"):
    """Probes of some cards."""

    cards: tuple[Probe, ...]


Line = Starting | Asking | Beat | NoDriver | XidLine | InventoryLine | ProbesLine
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """One line of the child."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise NvmlError(f"the NVML child said {line[:200]!r}: {error}") from error


def reports(line: Line) -> tuple[NvmlReport, ...]:
    """The reports in a line."""
    match line:
        case InventoryLine():
            cards = tuple(_with_links(card, line.links.get(card.uuid, {})) for card in line.cards)
            versions = line.driver_version, line.cuda_version, line.driver_load
            return (Inventory(*versions, cards, line.unreadable),)
        case ProbesLine():
            return line.cards
        case XidLine():
            return (Xid(line.uuid, line.code, line.instances),)
        case NoDriver():
            reason = driver_trouble(line.error)
            return (DriverMissing(reason, is_unloaded=line.error == _UNLOADED),)
        case Starting() | Asking() | Beat():
            return ()


def _with_links(card: CardReport, links: Mapping[str, tuple[int, int]]) -> CardReport:
    points = {uuid: points_of(*link) for uuid, link in links.items()}
    return replace(card, hardware=replace(card.hardware, links=points))
