"""Nodes for these tests."""

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber, Hardware, Instance
from gpu_device_plugin.domain.cards.memory_unit import MiB


def instance(card: int, index: int, profile: str = "1g.5gb", compute_slices: int = 0) -> Instance:
    """The instance of that index on a card; by default it has all of its GPU instance."""
    slices = int(profile.split("g.", maxsplit=1)[0].rpartition(".")[2])
    return Instance(
        uuid=f"MIG-{card}-{index}",
        index=index,
        gpu_instance=index + 7,
        compute_instance=0,
        profile=profile,
        memory_mib=MiB(4864 * slices),
        gpu_slices=slices,
        compute_slices=compute_slices or slices,
        multiprocessors=14 * slices,
        engines={"copy": 1, "decoder": 0, "encoder": 0, "jpeg": 0, "ofa": 0},
    )


def card(
    index: int, *profiles: str, is_mig: bool = False, capability: tuple[int, int] = (8, 0)
) -> Card:
    """An A100; with profiles it is in MIG mode and cut so."""
    instances = tuple(instance(index, place, name) for place, name in enumerate(profiles))
    hardware = Hardware(
        capability,
        0x0302,
        is_mig_capable=True,
        is_mig=is_mig or bool(profiles),
        instances=instances,
    )
    return Card(
        f"GPU-{index}",
        CardNumber(index),
        CardIndex(index),
        index,
        "NVIDIA-A100-SXM4-40GB",
        MiB(40960),
        hardware,
    )


def whole(count: int) -> list[Card]:
    """So many cards outside MIG mode."""
    return [card(index) for index in range(count)]


def sevenths(count: int) -> list[Card]:
    """So many cards, each cut into seven."""
    return [card(index, *["1g.5gb"] * 7) for index in range(count)]
