"""Whose a node's cards are, by what the kubelet says over time."""

import pytest

from gpu_device_plugin.domain.node.other_plugins import (
    QUIET_SECONDS,
    OtherPlugins,
    served_by_others,
)

MEM, VOLCANO = "aliyun.com/gpu-mem", "volcano.sh/vgpu-number"
OURS = frozenset({MEM})
FRESH, SERVED, THEIRS = (
    OtherPlugins(),
    OtherPlugins(is_known=True),
    OtherPlugins(OURS, is_known=True),
)
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("begin", "said", "is_theirs"),
    [
        pytest.param(FRESH, [(0, NOTHING)], False, id="a lost state directory is no other plugin"),
        pytest.param(FRESH, [(0, OURS)], True, id="a first start beside another"),
        pytest.param(THEIRS, [], True, id="a restart remembers it"),
        pytest.param(THEIRS, [(0, None), (60, None)], True, id="no answer ends nothing"),
        pytest.param(THEIRS, [(0, NOTHING), (29, NOTHING)], True, id="away for a moment"),
        pytest.param(THEIRS, [(0, NOTHING), (20, OURS), (40, NOTHING)], True, id="started again"),
        pytest.param(THEIRS, [(0, NOTHING), (20, None), (40, NOTHING)], True, id="not known gone"),
        pytest.param(THEIRS, [(0, NOTHING), (15, NOTHING), (30, NOTHING)], False, id="gone"),
        pytest.param(SERVED, [(0, None), (60, None)], False, id="no answer takes nothing from us"),
        pytest.param(SERVED, [(0, OURS)], True, id="it came while the agent was away"),
    ],
)
def test_a_node_is_anothers_until_the_kubelet_has_said_for_a_while_that_nothing_is_served(
    begin: OtherPlugins, said: list[tuple[float, frozenset[str] | None]], *, is_theirs: bool
) -> None:
    """Each row: what is known at the start, what the kubelet says at which second, and whose the node is then."""
    others = begin
    for now, found in said:
        others = others.after(found, now)
    assert bool(others.names) is is_theirs
    assert others.is_known is (begin.is_known or bool(said))


def test_nothing_is_known_of_a_node_whose_kubelet_has_not_answered_a_first_agent() -> None:
    """It must not take names over that another plugin may serve."""
    assert not FRESH.after(None, QUIET_SECONDS).is_known


@pytest.mark.parametrize(
    ("name", "beside_nothing_of_ours", "beside_ours"),
    [
        (MEM, True, False),
        ("nvidia.com/gpu", True, False),
        ("nvidia.com/mig-1g.5gb", True, False),
        (VOLCANO, True, True),
        ("nvidia.com/vgpu-number", True, True),
        ("tencent.com/vcuda-core", True, True),
        ("koordinator.sh/gpu-core", False, False),
        ("rdma/hca", False, False),
    ],
)
def test_our_own_names_are_anothers_only_while_nothing_of_ours_is_registered(
    name: str, *, beside_nothing_of_ours: bool, beside_ours: bool
) -> None:
    """Names of other sharing plugins are always theirs, and those of plugins for other hardware never matter."""
    assert bool(served_by_others([name], OURS, is_registered=False)) is beside_nothing_of_ours
    assert bool(served_by_others([name], OURS, is_registered=True)) is beside_ours
