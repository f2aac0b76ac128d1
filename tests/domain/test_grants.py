"""The promise: a grant tells what its container holds, and what follows for it from its mode."""

import pytest
from tests.domain.words import INIT, grant
from tests.held import changed

from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.fraction import is_bare, to_record, units_per_card
from gpu_device_plugin.domain.fractions.units import Resource, cards_of
from gpu_device_plugin.domain.node.pods import ContainerKind


def test_ids_are_kept_in_order() -> None:
    """So that two grants of the same units are equal."""
    held = grant("a").with_ids(Resource.MEM, {"m02", "m00"}).with_ids(Resource.CORE, ["c01", "c00"])

    assert (held.ids(Resource.MEM), held.ids(Resource.CORE)) == (("m00", "m02"), ("c00", "c01"))
    assert held.ids(Resource.COUNT) == ()
    assert cards_of(held.all_ids) == {0}


@pytest.mark.parametrize(
    ("mode", "isolated", "capped", "bare"),
    [
        ("core_mem", True, True, False),
        ("cgpu", False, False, True),
        ("share", True, False, False),
        ("share", False, False, False),
    ],
)
def test_who_is_capped(mode: str, *, isolated: bool, capped: bool, bare: bool) -> None:
    """R-505: `share` has no cap that one could go without."""
    written = changed(grant("a", "m00"), mode=mode, is_isolated=isolated)
    held = AliyunScheme().restore(written, to_record(written))

    assert (held.is_isolated, is_bare(held)) == (capped, bare)


def test_only_ordinary_init_containers_hand_on() -> None:
    """A native sidecar keeps its units as long as the pod lives."""
    kinds = {kind: changed(grant("a"), kind=kind).holder.is_handed_on for kind in ContainerKind}

    assert [kind for kind, handed in kinds.items() if handed] == [INIT]


def test_a_grant_of_several_cards_tells_units_a_card() -> None:
    """R-550: 8 units on 4 cards are 2 each; a grant without cards does not divide by 0."""
    assert units_per_card(changed(grant("a"), mem_units=8, cards=("a", "b", "c", "d"))) == 2
    assert units_per_card(changed(grant("a"), mem_units=8)) == 8
