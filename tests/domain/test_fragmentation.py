"""Fragmentation placement spoils the least room for the pods that usually come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.bench.openb.workload import Shape, Workload, has_room, with_pod

from gpu_device_plugin.domain.fractions.fragmentation import CPU_PER_CARD, NodeRoom, grade_placement

_HALF = Shape(1000, 1, 500)
_SMALL = Shape(1000, 1, 200)
_WHOLE = Shape(4000, 1, 1000)
_EIGHT = Shape(32000, 8, 1000)
_SHAPES = st.sampled_from([_HALF, _SMALL, _WHOLE, _EIGHT, Shape(8000, 0, 0)])
_ROOMS = st.builds(
    NodeRoom,
    st.integers(0, 64000),
    st.lists(st.integers(0, 1000), min_size=1, max_size=8).map(tuple),
)


def _slow_fragmentation(pods: dict[Shape, int], room: NodeRoom) -> float:
    """The paper's definition, written out."""
    lost = 0.0
    for shape, number in pods.items():
        fits = has_room(room, shape) and shape.cards > 0
        free = [card for card in room.cards if not fits or card < shape.card_milli]
        lost += number * sum(free)
    return lost / sum(pods.values())


@given(
    st.dictionaries(_SHAPES, st.integers(1, 50), min_size=1).filter(
        lambda pods: any(shape.cards for shape in pods)
    ),
    _ROOMS,
)
def test_the_prepared_measure_is_the_papers_definition(
    pods: dict[Shape, int], room: NodeRoom
) -> None:
    assert Workload(pods).fragmentation(room) == pytest.approx(_slow_fragmentation(pods, room))


@given(_ROOMS)
def test_the_controllers_mix_is_as_many_pods_of_each_tenth_of_a_card(room: NodeRoom) -> None:
    even = Workload({Shape(CPU_PER_CARD * 100 * part, 1, 100 * part): 1 for part in range(1, 11)})
    assert room.fragmentation == even.fragmentation(room)


def _score(room: NodeRoom, shape: Shape, card: int = 0) -> float:
    return grade_placement(room, with_pod(room, shape, (card,)))


def test_a_part_goes_to_the_card_that_it_fills_up() -> None:
    room = NodeRoom(64000, (1000, 500, 1000, 700))
    assert max(range(4), key=lambda card: _score(room, _HALF, card)) == 1


def test_a_rare_pod_of_eight_cards_keeps_a_node_whole_for_it() -> None:
    whole, broken = NodeRoom(96000, (1000,) * 8), NodeRoom(96000, (500,) + (1000,) * 7)
    assert _score(broken, _HALF) > _score(whole, _HALF)


def test_a_pod_goes_where_cards_are_not_left_without_processor() -> None:
    hungry = Shape(16000, 1, 500)
    poor, rich = NodeRoom(18000, (1000, 1000)), NodeRoom(64000, (1000, 1000))
    assert _score(rich, hungry) > _score(poor, hungry)


def test_the_mix_can_leave_out_the_rarest_shapes() -> None:
    pods = {_HALF: 95, _EIGHT: 5}
    room = NodeRoom(96000, (500,))
    assert Workload(pods, 0.95).fragmentation(room) == 0
    assert Workload(pods).fragmentation(room) == pytest.approx(25)


def test_a_node_that_is_whole_does_not_win_over_one_that_is_used() -> None:
    """Else every pod would break one more node, and pods of eight cards would soon find none."""
    part = Shape(12000, 1, 1000)
    whole, used = NodeRoom(96000, (1000,) * 8), NodeRoom(60000, (0, 0, 0, *(1000,) * 5))

    def grade(room: NodeRoom, card: int) -> float:
        return grade_placement(room, with_pod(room, part, [card]))

    assert grade(used, 7) >= grade(whole, 7)
