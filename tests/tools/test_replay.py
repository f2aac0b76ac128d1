"""The replay measures what is served: the same node for a pod, and the same cards of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.bench.openb.ranking import Ranking
from tools.bench.openb.replay import served
from tools.bench.openb.workload import Shape

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.fragmentation import NodeRoom
from gpu_device_plugin.domain.fractions.node_fit import Misfit, fit, node_rooms
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.grant import UnitsAndPercent
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest

_CARD = 1000
"""Units of memory a card: a unit is a thousandth."""
_SHAPES = st.sampled_from(
    [Shape(8000, 1, 500), Shape(500, 1, 10), Shape(12000, 1, 1000), Shape(96000, 8, 1000)]
)
_ROOMS = st.builds(
    NodeRoom,
    st.integers(0, 128000),
    st.lists(st.integers(0, _CARD), min_size=1, max_size=8).map(tuple),
)


@given(_ROOMS, _SHAPES)
def test_the_controller_answers_what_is_replayed(room: NodeRoom, shape: Shape) -> None:
    """kube-scheduler asks for no node without the processor, so a pod that has it not is left out."""
    cards = tuple(
        Card(f"GPU-{n}", CardNumber(n), CardIndex(n), -1, "", _CARD * 128)
        for n in range(len(room.cards))
    )
    offer = NodeOffer(
        "n",
        NodeMode.CGPU,
        MemoryUnit.MIB128,
        cards,
        frozenset(card.index for card in cards),
        None,
        None,
    )
    other = PodRef("ns", "other", "uid-other")
    held = {
        CardIndex(n): UnitsAndPercent(_CARD - free)
        for n, free in enumerate(room.cards)
        if free < _CARD
    }
    rooms = node_rooms(offer, [PodHold(other, {0: held})])
    units = shape.cards * shape.card_milli
    pod = PodRequest(
        PodRef("ns", "p", "uid-p"),
        (ContainerRequest("c", ContainerKind.APP, 0, {Resource.MEM: units}),),
        str(shape.cards) if shape.cards > 1 else None,
        cpu_milli=shape.cpu_milli,
    )

    if room.cpu_milli < shape.cpu_milli:
        return
    found, wanted = fit(offer, rooms, pod, PlacementPolicy.FGD, room.cpu_milli), served(room, shape)

    assert isinstance(found, Misfit) == (wanted is None)
    if wanted is not None and not isinstance(found, Misfit):
        assert tuple(found.hold.by_container[0]) == wanted.cards
        assert found.score.own == pytest.approx(wanted.score)


def test_a_node_without_room_has_no_choice_and_ranks_last() -> None:
    half = Shape(1000, 1, 500)
    ranking = Ranking(served, [NodeRoom(500, (1000,)), NodeRoom(4000, (1000,))])
    assert ranking.scores(half)[0] == -math.inf
    assert ranking.scores(half)[1] > -math.inf


@given(
    st.lists(_ROOMS, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), _ROOMS, _SHAPES), max_size=12),
)
def test_a_ranking_that_is_kept_up_to_date_is_the_one_made_again(
    rooms: list[NodeRoom], changes: list[tuple[int, NodeRoom, Shape]]
) -> None:
    kept = Ranking(served, rooms)
    for number, room, shape in changes:
        kept.put(number % len(rooms), room)
        rooms[number % len(rooms)] = room
        assert kept.scores(shape) == Ranking(served, rooms).scores(shape)
