"""The promise: the node's mode decides what the cards are offered as, and a bad layout is said."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import card, sevenths, whole

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import Paths
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    MigStrategy,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import RequestError

SEVENTH = "nvidia.com/mig-1g.5gb"
MIXED, SINGLE = (Configuration(mig_strategy=s) for s in (MigStrategy.MIXED, MigStrategy.SINGLE))
SLICED = Configuration(
    sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(GPU, 2),), is_one_at_most=True)
)
MPS = Configuration(mps_root="/m", sharing=Sharing(SharingKind.MPS, (SharedResource(GPU, 2),)))


def node(mode: NodeMode, cards: Sequence[Card]) -> NodeState:
    return NodeState("n1", mode=mode, cards=tuple(cards))


def schemes(configuration: Configuration) -> Schemes:
    return Schemes(lambda: configuration)


@pytest.mark.parametrize(
    ("mode", "cards", "configuration", "wanted"),
    [
        (NodeMode.DEFAULT, whole(2), SLICED, {GPU: 4}),
        (NodeMode.TOPOLOGY, whole(2), SLICED, {"aliyun.com/gpu": 2}),
        (NodeMode.MIG, sevenths(2), Configuration(), {SEVENTH: 14}),
        (NodeMode.MIG, sevenths(2), SINGLE, {GPU: 14}),
        (NodeMode.MIG, whole(2), MIXED, {}),
        (NodeMode.DISABLED, whole(2), SLICED, {}),
        (NodeMode.MPS, whole(2), SLICED, {}),
        (NodeMode.DEFAULT, whole(2), MPS, {}),
        (
            NodeMode.SHARE,
            [card(0), *sevenths(2)[1:]],
            MIXED,
            {"aliyun.com/gpu-mem": 40, "aliyun.com/gpu-count": 1, SEVENTH: 7},
        ),
        (
            NodeMode.SHARE,
            [card(0), *sevenths(2)[1:]],
            SINGLE,
            {"aliyun.com/gpu-mem": 40, "aliyun.com/gpu-count": 1},
        ),
        (NodeMode.SHARE, sevenths(2), SINGLE, {GPU: 14}),
        (NodeMode.SHARE, sevenths(2), Configuration(), {}),
    ],
)
def test_a_mode_decides_what_cards_are_offered_as(
    mode: NodeMode, cards: list[Card], configuration: Configuration, wanted: dict[str, int]
) -> None:
    """Fractions and whole cards never share a node; instances stand beside fractions."""
    pools = schemes(configuration).pools(node(mode, cards))

    found = {pool.resource: sum(len(group.ids) for group in pool.groups) for pool in pools}
    assert {name: count for name, count in found.items() if count} == wanted


@pytest.mark.parametrize(
    ("mode", "cards", "configuration", "words"),
    [
        (NodeMode.MIG, whole(1), MIXED, "no card of this node is in MIG mode"),
        (NodeMode.DEFAULT, whole(1), MPS, "the MPS daemon of"),
        (NodeMode.DEFAULT, [*sevenths(1), card(1)], SINGLE, "the same migEnabled value"),
    ],
)
def test_a_node_that_cannot_serve_is_not_ready_unless_it_may(
    mode: NodeMode, cards: list[Card], configuration: Configuration, words: str
) -> None:
    """With `failOnInitError: false` it is ready, and offers nothing."""
    state = node(mode, cards)

    assert words in schemes(configuration).layout(state).problem
    assert schemes(configuration).offers(state)
    may = schemes(replace(configuration, fails_on_init_error=False))
    assert (may.layout(state).problem, may.offers(state)) == ("", False)


@pytest.mark.parametrize("profile", ["1g.34gb", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me"])
def test_what_is_offered_is_served_whatever_profiles_the_card_has(profile: str) -> None:
    """Also those of models that we have no table of."""
    every, state = schemes(MIXED), node(NodeMode.DEFAULT, [card(0, profile)])

    (pool,) = every.pools(state)

    assert pool.resource == f"nvidia.com/mig-{profile.replace('+', '.')}"
    assert every.offers(state)
    assert every.serving_view(pool.resource, state) == every.view(every.nvidia, state)
    assert not every.divides(pool.resource)


@pytest.mark.parametrize(
    ("mode", "cards", "strategy", "names"),
    [
        (NodeMode.CORE_MEM, whole(2), MigStrategy.NONE, (GPU,)),
        (NodeMode.CORE_MEM, [card(0), *sevenths(2)[1:]], MigStrategy.MIXED, (GPU,)),
        (NodeMode.CORE_MEM, sevenths(1), MigStrategy.SINGLE, ()),
        (NodeMode.CORE_MEM, sevenths(1), MigStrategy.NONE, (GPU,)),
        (NodeMode.TOPOLOGY, whole(1), MigStrategy.NONE, (GPU,)),
        (NodeMode.DEFAULT, whole(1), MigStrategy.NONE, ()),
        (NodeMode.DISABLED, whole(1), MigStrategy.NONE, ()),
        (NodeMode.CORE_MEM, [], MigStrategy.NONE, ()),
    ],
)
def test_sharing_of_what_the_mode_offers_no_replicas_of_is_named(
    mode: NodeMode, cards: list[Card], strategy: MigStrategy, names: tuple[str, ...]
) -> None:
    """Else a configuration as NVIDIA's plugin takes it would do nothing without a word."""
    sharing = Sharing(SharingKind.TIME_SLICING, (SharedResource(GPU, 4),))
    asked = Configuration(mig_strategy=strategy, sharing=sharing)

    assert schemes(asked).layout(node(mode, cards)).unshared == names


def test_a_card_that_single_leaves_out_beside_fractions_is_named() -> None:
    """Else its instances would vanish without a word."""
    state = node(NodeMode.CORE_MEM, [card(0), *sevenths(2)[1:]])

    found = schemes(SINGLE).layout(state)

    assert found.problem == ""
    (note,) = found.left_out
    assert note.startswith("card 1 (GPU-1) is in MIG mode and left out")


@pytest.mark.parametrize(
    "configuration",
    [
        replace(MIXED, mig_patterns=(Pattern("*", GPU),)),
        replace(
            MIXED,
            sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(SEVENTH, 2, rename=GPU),)),
        ),
    ],
)
def test_instances_beside_fractions_have_another_name_than_whole_cards(
    configuration: Configuration,
) -> None:
    """By a pattern or a new name; a node without fractions may have it."""
    beside = node(NodeMode.CORE_MEM, [card(0), *sevenths(2)[1:]])
    every = schemes(configuration)

    assert "give the instances another name" in every.layout(beside).problem
    assert GPU not in {pool.resource for pool in every.pools(beside)}
    assert every.layout(node(NodeMode.CORE_MEM, sevenths(2))).problem == ""


def test_cards_of_the_last_run_are_not_taken_for_whole_ones() -> None:
    """Until NVML answers it is not known how they are cut."""
    remembered = Card("GPU-0", CardNumber(0), CardIndex(0), 0, "NVIDIA-A100-SXM4-40GB", MiB(40960))

    assert not schemes(MIXED).pools(node(NodeMode.DEFAULT, [remembered]))


def test_two_replicas_are_refused_where_one_is_the_most() -> None:
    """R-702, with NVIDIA's text; one of a whole card's is given."""
    scheme = schemes(SLICED).nvidia
    state = node(NodeMode.DEFAULT, whole(1))

    scheme.check_call(Call(GPU, 1, frozenset({"GPU-0::0"})), state)
    with pytest.raises(
        RequestError, match="maximum request size for shared resources is 1; found 2"
    ):
        scheme.check_call(Call(GPU, 2, frozenset({"GPU-0::0", "GPU-0::1"})), state)


def test_of_a_device_that_is_not_offered_now_nobody_else_gets_a_part() -> None:
    """A pod may hold a card whole that the node divides by now, or that is away."""
    state = node(NodeMode.CGPU, whole(1))
    every = schemes(Configuration())
    recorder = every.nvidia

    share = recorder.share(GPU, state.cards[0].uuid, every.view(recorder, state))

    assert share.is_exclusive
    assert share.memory_bytes is None


@pytest.mark.parametrize(
    ("mode", "configuration", "served", "wanted"),
    [
        (NodeMode.DEFAULT, MPS, "", "true"),
        (NodeMode.DEFAULT, SLICED, "", "false"),
        (NodeMode.DEFAULT, SLICED, "nvidia.com/gpu 50% GPU-0 1M\n", "true"),
        (NodeMode.CORE_MEM, MPS, "nvidia.com/gpu 50% GPU-0 1M\n", "false"),
    ],
)
def test_the_mps_daemon_is_wanted_in_mode_default_until_its_cards_are_back(
    mode: NodeMode, configuration: Configuration, served: str, wanted: str
) -> None:
    """Its DaemonSet selects nodes by that label; elsewhere it would take cards that are divided."""
    state = replace(node(mode, whole(1)), mps_served=served)
    scheme = schemes(configuration).nvidia
    labels = scheme.feature_labels(state.cards, state, Machine("535.1.2", "12.2"))

    assert labels["nvidia.com/mps.capable"] == wanted


@pytest.mark.parametrize(
    ("mode", "cards", "configuration", "wanted"),
    [
        (NodeMode.DEFAULT, whole(1), SLICED, ("2", "time-slicing")),
        (NodeMode.CORE_MEM, whole(1), SLICED, ("1", "none")),
        (NodeMode.TOPOLOGY, whole(1), SLICED, ("1", "none")),
        (NodeMode.DISABLED, whole(1), SLICED, ("1", "none")),
        (
            NodeMode.CORE_MEM,
            sevenths(1),
            replace(SLICED, mig_strategy=MigStrategy.SINGLE),
            ("2", "time-slicing"),
        ),
    ],
)
def test_feature_labels_tell_of_sharing_only_where_the_mode_shares(
    mode: NodeMode, cards: list[Card], configuration: Configuration, wanted: tuple[str, str]
) -> None:
    """A pod that a label sends to a node of fractions would find no replica there."""
    state = node(mode, cards)
    scheme = schemes(configuration).nvidia
    labels = scheme.feature_labels(cards, state, Machine("535.1.2", "12.2"))

    assert (labels[f"{GPU}.replicas"], labels[f"{GPU}.sharing-strategy"]) == wanted
    assert labels[f"{GPU}.product"].endswith("-SHARED") == (wanted[0] == "2")


def test_a_node_that_may_be_ready_with_a_bad_layout_still_says_what_is_wrong() -> None:
    """With failOnInitError false; else nobody would learn why there are no devices."""
    bad = replace(
        SLICED,
        sharing=replace(SLICED.sharing, resources=(SharedResource(GPU, 49),), kind=SharingKind.MPS),
    )
    state = node(NodeMode.DEFAULT, whole(1))

    layout = schemes(replace(bad, fails_on_init_error=False)).layout(state)

    assert not layout.problem
    assert layout.left_out[0].startswith(
        "nothing is offered: nvidia.com/gpu: maximum allowed replicas"
    )
    assert schemes(bad).layout(state).problem


def test_topology_gives_no_card_away_that_an_mps_daemon_has() -> None:
    """A daemon that was started by hand does not know the node's mode."""
    state = replace(node(NodeMode.TOPOLOGY, whole(2)), mps_root="/run/mps", mps_served="GPU-1\n")
    scheme = schemes(Configuration()).nvidia

    (pool,) = scheme.pools(state)
    assert [group.ids for group in pool.groups] == [("GPU-0",)]
    assert scheme.layout(state).waiting == (
        "card 1 (GPU-1) waits for the MPS daemon of /run/mps, which has not given it back",
    )


@pytest.mark.parametrize(
    ("there", "required", "cards", "problem", "channels"),
    [
        ((), "no", 1, "", None),
        ((0,), "yes", 1, "", "0"),
        ((), "yes", 0, "requested IMEX channel channel0 does not exist", None),
    ],
)
def test_an_imex_channel_that_the_node_lacks_is_left_out_or_keeps_it_from_serving(
    there: tuple[int, ...], required: str, cards: int, problem: str, channels: str | None
) -> None:
    """As NVIDIA's plugin has it, which ends where the channel is required."""
    configuration = Configuration(imex_channels=(0,), is_imex_required=required == "yes")
    state = replace(node(NodeMode.DEFAULT, whole(1)), imex_channels=there)
    ours = schemes(configuration)
    scheme = ours.nvidia
    layout = scheme.layout(state)

    assert sum(len(pool.groups) for pool in scheme.pools(state)) == cards
    assert layout.problem == problem
    assert any("channel0" in note for note in layout.left_out) == (not there and required == "no")
    if cards:
        call = Call(GPU, 1, frozenset({state.cards[0].uuid}))
        envs = scheme.edits(call, state, Paths()).envs
        assert envs.get("NVIDIA_IMEX_CHANNELS") == channels
