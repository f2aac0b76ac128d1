"""The promise: a slice is a proportion of its card, and the library reads exactly that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import cards

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.slice_size import slice_bytes, slice_mib
from gpu_device_plugin.domain.grants.container_edits import CardLimit, limits_text
from gpu_device_plugin.domain.node.compute_policy import ComputePolicy
from gpu_device_plugin.errors import DoesNotFitError


@pytest.mark.parametrize(
    ("memory_mib", "units", "expected_mib"),
    [
        pytest.param(16160, 2, 2154, id="v100 driver 450, source S1"),
        pytest.param(16130, 2, 2150, id="v100 driver 418"),
        pytest.param(16130, 3, 3226, id="v100 driver 418, 3 units"),
        pytest.param(16130, 4, 4301, id="v100 driver 418, 4 units"),
        pytest.param(15079, 3, 3231, id="t4"),
        pytest.param(15360, 3, 3072, id="t4 of 15360 MiB"),
        pytest.param(23028, 8, 8373, id="a10"),
        pytest.param(143771, 2, 2053, id="h200"),
        pytest.param(16160, 15, 16160, id="all units are the whole card"),
    ],
)
def test_a_slice_is_a_proportion(memory_mib: int, units: Units, expected_mib: int) -> None:
    """Every published figure of R-129 comes out exactly."""
    card = cards(memory_mib)[0]

    assert slice_mib(card, units, MemoryUnit.GIB) == expected_mib
    assert slice_bytes(card, units, MemoryUnit.GIB) == expected_mib * 2**20


@given(st.integers(1024, 600_000), st.sampled_from(MemoryUnit), st.data())
def test_slices_of_a_card_never_exceed_it(
    memory_mib: int, unit: MemoryUnit, data: st.DataObject
) -> None:
    """However the units are dealt out, the slices fit; and no slice is below its units."""
    card = cards(memory_mib)[0]
    left, sizes = card.capacity(unit), []
    while left:
        units = Units(data.draw(st.integers(max(1, left // 3), left)))
        sizes.append(slice_mib(card, units, unit))
        assert sizes[-1] >= units * unit.mib
        left = Units(left - units)

    assert sum(sizes) <= memory_mib


@pytest.mark.parametrize("units", [-1, 0, 16])
def test_what_the_card_has_not_is_refused(units: Units) -> None:
    """The text names what was asked and what is there."""
    with pytest.raises(DoesNotFitError, match=rf"{units} units .*GPU-0.* has 15"):
        slice_mib(cards(16160)[0], units, MemoryUnit.GIB)


def test_the_limits_file_is_what_the_library_reads() -> None:
    """The contract between agent and library: one line a card, a missing pair is no cap."""
    lines = [CardLimit("GPU-a", 2258632704, 30), CardLimit("GPU-b", 1048576, None)]

    assert limits_text(
        "s1", [*lines, CardLimit("GPU-c", None, 5)], ComputePolicy.WORK_CONSERVING
    ) == (
        "version=1\n"
        "slice=s1\n"
        "policy=work-conserving\n"
        "device=GPU-a memory_bytes=2258632704 core_percent=30\n"
        "device=GPU-b memory_bytes=1048576\n"
        "device=GPU-c core_percent=5\n"
    )
