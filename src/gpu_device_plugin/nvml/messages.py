"""The lines of the child, typed: bytes in, reports out.

The child writes them as plain dictionaries, because msgspec would cost it memory on every node.
An unknown or missing field is an error here, so the two sides cannot diverge.
"""

from typing import Literal

import msgspec

from gpu_device_plugin.domain.cards.card import Hardware, Instance
from gpu_device_plugin.domain.cards.reports import (
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
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 is not in this container: no driver, or not injected",
    "FUNCTION_NOT_FOUND": "libnvidia-ml.so.1 lacks a function that every driver since 418 has",
}


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


class NoDriver(_Line, frozen=True, tag="no_driver"):
    """NVML cannot be opened."""

    error: str


class XidLine(_Line, frozen=True, tag="xid"):
    """An XID."""

    uuid: str | None
    code: int


class HardwareLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A card's attributes; `links` are the PCI level and the NVLinks to each other card."""

    compute_capability: tuple[int, int] = (0, 0)
    pci_class: int = 0
    is_mig_capable: bool = False
    instances: tuple[Instance, ...] = ()
    links: dict[str, tuple[int, int]] = {}
    is_virtual: bool = False
    fabric: str = ""


class CardLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One card of an inventory."""

    uuid: str
    index: int
    minor: int
    name: str
    memory_mib: int
    pci_bus_id: str
    is_mig: bool
    numa_node: int | None
    hardware: HardwareLine = HardwareLine()


class InventoryLine(_Line, frozen=True, tag="inventory"):
    """All cards."""

    driver_version: str
    cuda_version: str
    driver_load: str
    cards: tuple[CardLine, ...]
    unreadable: tuple[UnreadableCard, ...]


class ProbeLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One card's probe."""

    uuid: str
    error: str | None = None
    recovery_action: int | None = None
    used_bytes: int | None = None


class ProbesLine(_Line, frozen=True, tag="probes"):
    """The probes of every card."""

    cards: tuple[ProbeLine, ...]


Line = Starting | Beat | NoDriver | XidLine | InventoryLine | ProbesLine
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
            return (_inventory(line),)
        case ProbesLine():
            return tuple(
                Probe(card.uuid, card.error, card.recovery_action, card.used_bytes)
                for card in line.cards
            )
        case XidLine():
            return (Xid(line.uuid, line.code),)
        case NoDriver():
            reason = _TEXTS.get(line.error, f"NVML says {line.error}")
            return (DriverMissing(reason, is_unloaded=line.error == _UNLOADED),)
        case Starting() | Beat():
            return ()


def _inventory(line: InventoryLine) -> Inventory:
    cards = tuple(
        CardReport(
            uuid=card.uuid,
            index=card.index,
            minor=card.minor,
            model=card.name.replace(" ", "-"),
            memory_mib=card.memory_mib,
            pci_bus_id=card.pci_bus_id,
            is_mig=card.is_mig,
            hardware=_hardware(card),
        )
        for card in line.cards
    )
    return Inventory(
        line.driver_version, line.cuda_version, line.driver_load, cards, line.unreadable
    )


def _hardware(card: CardLine) -> Hardware:
    shown = card.hardware
    return Hardware(
        compute_capability=shown.compute_capability,
        pci_class=shown.pci_class,
        is_mig_capable=shown.is_mig_capable,
        is_mig=card.is_mig,
        instances=shown.instances,
        links={uuid: points_of(*link) for uuid, link in shown.links.items()},
        numa_node=card.numa_node,
        is_virtual=shown.is_virtual,
        fabric=shown.fabric,
    )
