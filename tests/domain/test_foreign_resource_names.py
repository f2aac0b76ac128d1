"""The promise: what a pod asks by the names of Koordinator or HAMi is what it would ask by ours (R-590)."""

import pytest

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.foreign_resource_names import (
    HAMI,
    KOORDINATOR,
    Dialect,
    translate_amounts,
)
from gpu_device_plugin.domain.fractions.units import Resource

MEM, CORE = str(Resource.MEM), str(Resource.CORE)


def asked(dialect: Dialect, **amounts: int) -> dict[str, int]:
    """Amounts under the dialect's names: `memory`, `ratio`, `core`, `cards`."""
    return {getattr(dialect, key): amount for key, amount in amounts.items()}


@pytest.mark.parametrize(
    ("dialect", "amounts", "expected", "cards"),
    [
        (KOORDINATOR, {"memory": 1536 << 20, "core": 30}, {MEM: 2, CORE: 30}, 1),
        (KOORDINATOR, {"memory": 5 << 30, "cards": 2}, {MEM: 6}, 2),
        (KOORDINATOR, {"ratio": 50, "core": 50}, {MEM: 8, CORE: 50}, 1),
        (KOORDINATOR, {"ratio": 200}, {MEM: 30}, 2),
        (KOORDINATOR, {"ratio": 100, "cards": 2}, {MEM: 16}, 2),
        (KOORDINATOR, {"core": 30}, {CORE: 30}, 1),
        (KOORDINATOR, {"both": 50}, {MEM: 8, CORE: 50}, 1),
        (KOORDINATOR, {"both": 100}, {MEM: 15, CORE: 100}, 1),
        (KOORDINATOR, {"both": 200}, {MEM: 30}, 2),
        (HAMI, {"cards": 1, "memory": 3000, "core": 30}, {MEM: 3, CORE: 30}, 1),
        (HAMI, {"cards": 2, "memory": 3000}, {MEM: 6}, 2),
        (HAMI, {"cards": 2, "ratio": 50}, {MEM: 16}, 2),
        (HAMI, {"cards": 1, "core": 30}, {MEM: 15, CORE: 30}, 1),
    ],
)
def test_a_request_has_the_same_meaning(
    dialect: Dialect, amounts: dict[str, int], expected: dict[str, int], cards: int
) -> None:
    """R-590, with cards of 15 units; Koordinator's amounts are of all cards, HAMi's of each."""
    found = translate_amounts(dialect, asked(dialect, **amounts), MemoryUnit.GIB, lambda: {15})

    assert (found.amounts, found.cards, found.refusal) == (expected, cards, "")


@pytest.mark.parametrize(
    ("amounts", "sizes", "text"),
    [
        ({"memory": 1, "ratio": 1}, {15}, "gpu-memory and koordinator.sh/gpu-memory-ratio exclude"),
        ({"ratio": 150}, {15}, "gpu-memory-ratio is more than 1 cards have"),
        (
            {"ratio": 50},
            {15, 79},
            "cards of this cluster have 15, 79 units: ask koordinator.sh/gpu-m",
        ),
        ({"ratio": 50}, set(), "cards of this cluster have no units"),
        ({"memory": 1 << 30, "core": 100, "cards": 2}, {15}, "gpu-core: 100 on 2 cards is not"),
        ({"core": 200}, {15}, "gpu-core: 200 on 1 cards is not translated"),
        ({"memory": -3}, {15}, "koordinator.sh/gpu-memory: -3 is negative"),
        ({"both": 50, "core": 10}, {15}, "koordinator.sh/gpu and koordinator.sh/gpu-core exclude"),
        ({"both": 150}, {15}, "koordinator.sh/gpu is more than 1 cards have"),
        ({"both": 50}, {15, 79}, "koordinator.sh/gpu is a part of one card"),
    ],
)
def test_what_has_no_translation_is_refused_with_the_reason(
    amounts: dict[str, int], sizes: set[int], text: str
) -> None:
    """Half a translation would be another request."""
    found = translate_amounts(
        KOORDINATOR, asked(KOORDINATOR, **amounts), MemoryUnit.GIB, lambda: sizes
    )

    assert text in found.refusal
    assert found.amounts == {}


def test_whole_cards_alone_are_no_fraction() -> None:
    """HAMi counts cards by the name under which NVIDIA's plugin gives whole ones."""
    assert not HAMI.is_spoken({"nvidia.com/gpu"})
    assert HAMI.is_spoken({"nvidia.com/gpu", "nvidia.com/gpucores"})
