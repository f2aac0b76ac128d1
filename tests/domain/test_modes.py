"""The promise: a mode says what a node offers, and nothing takes slices away from pods."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import CORE, COUNT, MEM, cards

from gpu_device_plugin.domain.cards.card import MAX_CARDS
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.room import check_message
from gpu_device_plugin.domain.fractions.units import Resource, resources_of
from gpu_device_plugin.domain.node.modes import (
    NodeMode,
    SwitchDecision,
    is_isolated,
    is_served,
    next_mode,
    parse_mode,
    parse_policy,
    switch,
)
from gpu_device_plugin.errors import ConfigError

HOLDERS = ["ml/a", "ml/b"]


@pytest.mark.parametrize(
    ("memory_mib", "unit", "units"),
    [
        pytest.param(16160, MemoryUnit.GIB, 15, id="v100"),
        pytest.param(16160, MemoryUnit.MIB128, 126, id="v100 in 128MiB, R-407"),
        pytest.param(15079, MemoryUnit.GIB, 14, id="t4"),
        pytest.param(23028, MemoryUnit.GIB, 22, id="a10"),
        pytest.param(143771, MemoryUnit.GIB, 140, id="h200"),
        pytest.param(143771, MemoryUnit.MIB128, 1123, id="h200 in 128MiB"),
    ],
)
def test_a_card_counts_whole_units(memory_mib: int, unit: MemoryUnit, units: int) -> None:
    """`floor(total / unit)` (R-111, R-407)."""
    assert cards(memory_mib)[0].capacity(unit) == units


@pytest.mark.parametrize(
    ("mode", "resources", "isolated", "served"),
    [
        (NodeMode.CORE_MEM, (MEM, CORE, COUNT), True, True),
        (NodeMode.CGPU, (MEM, COUNT), True, True),
        (NodeMode.SHARE, (MEM, COUNT), False, True),
        (NodeMode.DISABLED, (), False, True),
        (NodeMode.DEFAULT, (), False, True),
        (NodeMode.MPS, (), False, False),
        (NodeMode.TOPOLOGY, (), False, True),
        (NodeMode.MIG, (), False, True),
    ],
)
def test_a_mode_decides_the_resources(
    mode: NodeMode, resources: tuple[Resource, ...], *, isolated: bool, served: bool
) -> None:
    """The table of docs/node-modes.md (R-105, R-110)."""
    assert (resources_of(mode), is_isolated(mode), is_served(mode)) == (resources, isolated, served)


def test_labels_are_read_exactly() -> None:
    """A value that nobody defined names nothing."""
    assert [parse_mode("core_mem"), parse_mode("CGPU"), parse_mode("")] == [
        NodeMode.CORE_MEM,
        None,
        None,
    ]
    assert [parse_policy("spread"), parse_policy("packed")] == ["spread", None]


@pytest.mark.parametrize(
    ("memory_mib", "unit", "text"),
    [
        (2**19, MemoryUnit.MIB128, r"2\d{6} bytes long.* smallest unit that fits .* is GiB"),
        (2**22, MemoryUnit.GIB, "no unit fits 36 cards"),
    ],
)
def test_a_list_that_is_too_long_names_the_unit_that_fits(
    memory_mib: int, unit: MemoryUnit, text: str
) -> None:
    """36 cards of 512 GiB pass 2 MiB in small units; nothing is promised that does not hold."""
    with pytest.raises(ConfigError, match=text):
        check_message(cards(*[memory_mib] * MAX_CARDS), unit, NodeMode.SHARE)


def test_without_a_label_the_operators_mode_decides_at_first() -> None:
    """`--mode` is for nodes without the label."""
    assert next_mode(None, None, NodeMode.CGPU, []) == SwitchDecision(NodeMode.CGPU)


def test_the_label_decides_over_the_operators_mode() -> None:
    """At the first start there is nothing to switch from, so nothing is told."""
    assert next_mode(None, "share", NodeMode.CGPU, []) == SwitchDecision(NodeMode.SHARE)


def test_deleting_the_label_restores_nothing() -> None:
    """As at Alibaba Cloud: `default` has to be set explicitly."""
    assert next_mode(NodeMode.SHARE, None, NodeMode.CORE_MEM, []) == SwitchDecision(NodeMode.SHARE)


@pytest.mark.parametrize("current", [None, NodeMode.SHARE])
def test_an_unknown_label_keeps_the_old_mode_and_says_so(current: NodeMode | None) -> None:
    """A typing error takes nothing away."""
    decision = next_mode(current, "core-mem", NodeMode.CGPU, [])

    assert decision.value is (current or NodeMode.CGPU)
    assert (decision.is_switch_refused, decision.note_reason) == (False, "UnknownMode")
    assert "core-mem is not a known mode" in (decision.note or "")


def test_a_switch_waits_for_the_pods_that_hold_slices() -> None:
    """R-107, R-502: the Event lists them, each once."""
    decision = next_mode(NodeMode.CGPU, "core_mem", NodeMode.CGPU, HOLDERS)

    assert decision.value is NodeMode.CGPU
    assert (decision.is_switch_refused, decision.note_reason) == (True, "ModeSwitchRefused")
    assert "ml/a, ml/b" in (decision.note or "")


def test_a_switch_from_whole_cards_waits_until_an_mps_daemon_has_given_its_cards_back() -> None:
    """In exclusive mode they would serve nobody's slices; into mode default the way is free."""
    decision = next_mode(NodeMode.DEFAULT, "core_mem", NodeMode.CGPU, [], "/run/mps")

    assert decision.value is NodeMode.DEFAULT
    assert (decision.is_switch_refused, decision.note_reason) == (True, "ModeSwitchRefused")
    assert decision.note == (
        "label ack.node.gpu.schedule=core_mem waits: the node stays in mode default until the MPS daemon of "
        "/run/mps has given its cards back. Choose a configuration without sharing.mps first"
    )
    back = next_mode(NodeMode.CGPU, "default", NodeMode.CGPU, [], "/run/mps")
    assert back.value is NodeMode.DEFAULT


def test_an_empty_node_switches_and_says_so() -> None:
    """The Event names both modes."""
    decision = next_mode(NodeMode.CGPU, "core_mem", NodeMode.CGPU, [])

    assert (decision.value, decision.note_reason) == (NodeMode.CORE_MEM, "ModeSwitched")
    assert "from mode cgpu to core_mem" in (decision.note or "")


def next_unit(
    current: MemoryUnit | None, wanted: MemoryUnit, holders: list[str] | None
) -> SwitchDecision[MemoryUnit]:
    """A unit by the rule of every switch."""
    return switch("unit", current, wanted, "asked", holders, reason=("Switched", "Waits"))


@given(
    st.none() | st.sampled_from(NodeMode),
    st.none() | st.sampled_from([*NodeMode, "", "?"]),
    st.sampled_from(NodeMode),
)
def test_no_label_moves_a_node_that_holds_slices(
    current: NodeMode | None, label: str | None, fallback: NodeMode
) -> None:
    """Whatever is written on the node, the mode of running pods goes on (R-104)."""
    decision = next_mode(current, label, fallback, HOLDERS)

    assert current is None or decision.value is current
    assert bool(decision.note) == bool(decision.note_reason)


@pytest.mark.parametrize("current", [None, MemoryUnit.GIB])
def test_the_same_unit_is_no_change(current: MemoryUnit | None) -> None:
    """Nothing to tell."""
    decision = next_unit(current, MemoryUnit.GIB, HOLDERS)

    assert (decision.value, decision.note) == (MemoryUnit.GIB, None)


def test_a_unit_waits_for_the_pods_that_hold_slices() -> None:
    """R-403: counting old slices in new units would corrupt the ledger."""
    decision = next_unit(MemoryUnit.GIB, MemoryUnit.MIB128, HOLDERS)

    assert (decision.value, decision.is_switch_refused) == (MemoryUnit.GIB, True)
    assert "ml/a, ml/b" in (decision.note or "")
    assert next_unit(MemoryUnit.GIB, MemoryUnit.MIB128, []).value is MemoryUnit.MIB128


def test_while_nobody_knows_who_holds_slices_nothing_switches_and_nothing_is_said() -> None:
    """An empty ledger may be one that was lost, and the kubelet has not answered yet."""
    assert next_mode(NodeMode.CGPU, "core_mem", NodeMode.CGPU, None) == SwitchDecision(
        NodeMode.CGPU, is_switch_refused=True
    )
    assert next_unit(MemoryUnit.GIB, MemoryUnit.MIB128, None) == SwitchDecision(
        MemoryUnit.GIB, is_switch_refused=True
    )
    assert next_mode(None, None, NodeMode.CGPU, None) == SwitchDecision(NodeMode.CGPU)
