"""The replay of the openb trace: scores kept up to date, kube-scheduler around an extender, pods that grow."""

import math

from hypothesis import given
from hypothesis import strategies as st
from tools.bench.openb.growth import GrowingCluster, spread
from tools.bench.openb.players import Player, play, served_fgd
from tools.bench.openb.ranking import Ranking
from tools.bench.openb.replay import paper_fgd
from tools.bench.openb.scheduler import Cluster, schedule
from tools.bench.openb.served import served
from tools.bench.openb.trace import Node, Pod
from tools.bench.openb.workload import Shape

from gpu_device_plugin.domain.fractions.fragmentation import NodeRoom

_SHAPES_SEEN = (
    Shape(8000, 1, 500),
    Shape(500, 1, 10),
    Shape(12000, 1, 1000),
    Shape(96000, 8, 1000),
)
_SHAPES = st.sampled_from(_SHAPES_SEEN)
_CHOOSE, _ = paper_fgd([Pod(shape, 0) for shape in _SHAPES_SEEN])
_ROOMS = st.builds(
    NodeRoom,
    st.integers(0, 128000),
    st.lists(st.integers(0, 1000), min_size=1, max_size=8).map(tuple),
)


def test_a_node_without_room_has_no_choice_and_ranks_last() -> None:
    half = Shape(1000, 1, 500)
    ranking = Ranking(_CHOOSE, [NodeRoom(500, (1000,)), NodeRoom(4000, (1000,))])
    assert ranking.scores(half)[0] == -math.inf
    assert ranking.scores(half)[1] > -math.inf


@given(
    st.lists(_ROOMS, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), _ROOMS, _SHAPES), max_size=12),
)
def test_a_ranking_that_is_kept_up_to_date_is_the_one_made_again(
    rooms: list[NodeRoom], changes: list[tuple[int, NodeRoom, Shape]]
) -> None:
    kept = Ranking(_CHOOSE, rooms)
    for number, room, shape in changes:
        kept.put(number % len(rooms), room)
        rooms[number % len(rooms)] = room
        assert kept.scores(shape) == Ranking(_CHOOSE, rooms).scores(shape)


def test_kube_scheduler_prefers_the_emptier_and_counts_pods_without_requests() -> None:
    nodes = [Node(NodeRoom(10_000, (1000,)), 1000), Node(NodeRoom(10_000, (1000,)), 1000)]
    cluster, plain = Cluster(nodes), Pod(Shape(0, 0, 0), 0)
    cluster.take(Pod(Shape(5000, 0, 0), 500), 0)

    # 49 and 30 % are left of processor and memory on the first, 99 and 80 on the second; both are in balance.
    assert cluster.own(plain, [0, 1]).tolist() == [39 + 100, 89 + 100]
    assert cluster.fitting(Pod(Shape(6000, 1, 10), 0)).tolist() == [1]


async def test_pods_are_placed_by_the_controller_over_http_and_those_without_cards_are_not() -> (
    None
):
    """Two parts that only one card can have together, a pod of two cards, and one that fits nowhere."""
    nodes = [Node(NodeRoom(64_000, (1000,)), 1000), Node(NodeRoom(64_000, (1000, 1000)), 1000)]
    shapes = (Shape(1000, 1, 600), Shape(1000, 0, 0), Shape(1000, 1, 400), Shape(1000, 2, 1000))
    pods = [Pod(shape, 10) for shape in (*shapes, Shape(1000, 1, 10))]
    async with served(nodes) as extender:
        curve = await schedule(nodes, pods, extender, 1)

    assert curve[-1] == 100.0


def test_every_player_fills_a_cluster_and_they_differ_in_what_they_do_with_pods_without_cards() -> (
    None
):
    """LeastAllocated takes the emptier node, and FGD the one that serves fewer of the pods that come."""
    nodes = [Node(NodeRoom(10_000, (500,)), 1000), Node(NodeRoom(16_000, (1000,)), 1000)]
    pods = [Pod(shape, 10) for shape in (Shape(8000, 0, 0), Shape(9000, 1, 1000))]
    policies = served_fgd(), paper_fgd(pods)[0]

    last = {player: play(nodes, pods, policies, player, 1, draws=False)[-1] for player in Player}

    assert {player: round(percent) for player, percent in last.items()} == {
        Player.FIRST: 67,
        Player.DRAWN: 67,
        Player.TODAY: 0,
        Player.LEAST: 0,
    }


def test_a_pod_grows_into_what_is_free_of_its_card_and_waits_for_the_rest() -> None:
    """Two ask for 30 of 100 units with a peak of 60; a third one, which asks as much, comes while one has grown."""
    cluster, shape = GrowingCluster([NodeRoom(8000, (1000,))], spread, 0.5), Shape(1000, 1, 600)
    cluster.arrive(0.0, shape, iter([(1.0, 3.0), (6.0, 7.0)]))
    cluster.arrive(0.0, shape, iter([(2.0, 5.0)]))
    cluster.arrive(2.5, shape, iter(()))
    cluster.run(5.5)
    cluster.arrive(5.5, shape, iter(()))
    cluster.run(9.0)

    first, second, third = cluster.pods
    assert [(w.begin, w.had_from, w.end) for w in first.wishes] == [(1, 1, 3), (6, 7, 7)]
    assert [(w.begin, w.had_from, w.end) for w in second.wishes] == [(2, 3, 5)]
    assert third.wishes == []
