"""The promise: the controller's arrays decide of every node as the domain's plain code does."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.controller.card_arrays import Judged
from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.domain.fractions.node_fit import Fit, Misfit, Score, fit, node_rooms
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.fractions.request_rules import WHOLE_CARD
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import (
    MAX_PODS_LABEL,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
)
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod

NODES = ("n0", "n1", "n2", "n3")
MODES = (NodeMode.CORE_MEM,) * 4 + (NodeMode.CGPU, NodeMode.CGPU, NodeMode.SHARE, NodeMode.DEFAULT)


@dataclass
class Cluster:
    """A ledger and what its history was."""

    ledger: ClusterLedger
    reserved: dict[PodRef, tuple[str, int]] = field(default_factory=dict)

    def arrays(self, asking: PodRequest) -> dict[str, object]:
        """What the controller says of each node."""
        for _ in self.ledger.count():
            pass
        checks = self.ledger.checks(asking)
        judged = self.ledger.judge([*NODES, "unknown"], checks)
        for names in judged.left:
            judged.decide(names, self.ledger.fit(names[0], checks))
        found: dict[str, object] = {n: why for why, names in judged.misfits for n in names}
        for fitting, policy, own, common in judged.fits:
            found |= {n: Score(policy, *s) for n, *s in zip(fitting, own, common, strict=True)}
        return found

    def plain(self, asking: PodRequest, default: PlacementPolicy) -> dict[str, object]:
        """What the domain says of those that are known."""
        found: dict[str, object] = {}
        for name, offer in self.ledger.offers.items():
            free = self.ledger.processors.free(name)
            others = [(on, m) for ref, (on, m) in self.reserved.items() if ref != asking.ref]
            free -= sum(milli for on, milli in others if on == name)
            holds = [hold for hold in self.ledger.holds(name) if hold.pod != asking.ref]
            rooms = node_rooms(offer, holds, AllocationApi.DEVICE_PLUGIN)
            answer = fit(offer, rooms, asking, default, free)
            found[name] = answer.score if isinstance(answer, Fit) else answer
        return found


Step = Callable[[Cluster], None]
CPU = st.integers(0, 40).map(lambda number: number * 600)  # the mix has such levels
PERCENT = [*[5, 10, 30, 50, 100] * 3, 7]


@st.composite
def nodes(draw: st.DrawFn) -> Step:
    """A node is there, is another one, or is gone."""
    name, mode = draw(st.sampled_from(NODES)), draw(st.sampled_from(MODES))
    unit = draw(st.sampled_from([128, 1024, 1024]))
    sizes = draw(st.lists(st.sampled_from([500, 4096, 16160, 16160, 24576]), max_size=4))
    cards = [
        {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "memory_mib": size,
            "healthy": draw(st.integers(0, 5)) > 0,
            **({"door": "dra"} if draw(st.integers(0, 4)) == 0 else {}),
        }
        for index, size in enumerate(sizes)
    ]
    told = json.dumps({"mode": mode, "unit_mib": unit, "cards": cards})
    labels = draw(
        st.fixed_dictionaries(
            {},
            optional={
                PLACEMENT_LABEL: st.sampled_from(PlacementPolicy),
                MAX_PODS_LABEL: st.sampled_from(["0", "1", "2", "17"]),
            },
        )
    )
    node = ClusterNode(name, told, labels) if draw(st.integers(0, 7)) else None
    cpu = draw(st.none() | CPU)

    def step(cluster: Cluster) -> None:
        cluster.ledger.node_changed(name, node)
        cluster.ledger.processors.node_changed(name, cpu)

    return step


@st.composite
def requests(draw: st.DrawFn, names: Sequence[str]) -> PodRequest:
    """A pod, mostly of one container that asks."""
    kinds = [ContainerKind.APP]
    if draw(st.integers(0, 3)) == 0:
        kinds = draw(st.lists(st.sampled_from(ContainerKind), min_size=1, max_size=3))
    asks_compute = draw(st.integers(0, 2)) > 0
    containers = tuple(
        ContainerRequest(
            f"c{number}",
            kind,
            number,
            {
                Resource.MEM: draw(st.sampled_from([1, 1, 2, 2, 3, 4, 5, 8, 15, 16, 0])),
                Resource.CORE: draw(st.sampled_from(PERCENT)) if asks_compute else 0,
            },
        )
        for number, kind in enumerate(kinds)
    )
    name = draw(st.sampled_from(names))
    return PodRequest(
        PodRef("ns", name, f"uid-{name}"),
        containers,
        card_count_label=draw(st.sampled_from([*[None] * 8, "1", "2", "3", "9", "x"])),
        placement=draw(st.sampled_from([*[None] * 3, *[*PlacementPolicy] * 3, "odd"])),
        card_label=draw(st.sampled_from([None, None, None, WHOLE_CARD])),
        cpu_milli=draw(CPU),
    )


@st.composite
def held(draw: st.DrawFn) -> Step:
    """A pod is bound to a node, or moves, or ends, or is about to be bound."""
    asks = draw(requests([f"p{number}" for number in range(6)]))
    name, kind = draw(st.sampled_from(NODES)), draw(st.sampled_from(["bound", "ended", "reserved"]))

    def step(cluster: Cluster) -> None:
        ledger, uid = cluster.ledger, asks.ref.uid
        if kind == "reserved":
            answer = ledger.fit(name, ledger.checks(asks))
            if isinstance(answer, Misfit):
                return
            ledger.pod_changed(asks.ref, ClusterPod(asks, "", {}, "1"))
            ledger.processors.drop(uid)
            ledger.reserve(name, answer.hold, asks.cpu_milli)
            cluster.reserved[asks.ref] = (name, asks.cpu_milli)
            return
        is_bound = kind == "bound"
        ledger.pod_changed(asks.ref, ClusterPod(asks, name, {}, "1") if is_bound else None)
        ledger.processors.put(uid, name if is_bound else "", asks.cpu_milli)
        cluster.reserved.pop(asks.ref, None)

    return step


@st.composite
def taken_out(draw: st.DrawFn) -> Step:
    """An operator takes cards out."""
    name, cards = draw(st.sampled_from(NODES)), draw(st.frozensets(st.integers(0, 2), max_size=1))
    return lambda cluster: cluster.ledger.taken_out(name, cards)


@settings(max_examples=150)
@given(
    st.sampled_from(PlacementPolicy),
    st.lists(nodes(), min_size=2, max_size=5),
    st.lists(
        st.one_of(held(), held(), nodes(), taken_out(), requests(["new", "p0", "p1"])), max_size=30
    ),
    st.lists(requests(["new", "p0"]), min_size=6, max_size=6),
)
def test_every_node_is_judged_as_by_the_plain_code(
    default: PlacementPolicy,
    first: Sequence[Step],
    history: Sequence[Step | PodRequest],
    last: Sequence[PodRequest],
) -> None:
    """Whatever the cluster, the pod and what happened before; scores are equal to the last bit."""
    cluster = Cluster(ClusterLedger(default))
    for each in (*first, *history, *last):
        if not isinstance(each, PodRequest):
            each(cluster)
            continue
        if each.ref not in cluster.reserved:  # a pod that is asked about is not bound
            cluster.ledger.pod_changed(each.ref, ClusterPod(each, "", {}, "1"))
            cluster.ledger.processors.drop(each.ref.uid)
        if not each.asks:
            continue
        arrays, plain = cluster.arrays(each), cluster.plain(each, default)
        assert {name: arrays[name] for name in plain} == plain
        unknown = {name for name in arrays if name not in plain}
        assert unknown == {*NODES, "unknown"} - plain.keys()


def test_nodes_of_different_policies_are_compared_by_the_default() -> None:
    """Each by its own way would be the best of all: the one is full, the other empty."""

    def scores(*found: Score) -> list[float]:
        judged = Judged([], [], [], [])
        for number, score in enumerate(found):
            judged.decide([f"n{number}"], Fit(score, PodHold(PodRef("ns", "p"))))
        return list(judged.scores()[1])

    full = Score(PlacementPolicy.BINPACK, own=0.8, common=0.8)
    empty = Score(PlacementPolicy.SPREAD, own=0.9, common=0.1)
    assert scores(full, empty) == [0.8, 0.1]
    assert scores(empty, replace(empty, own=0.2, common=0.8)) == [0.9, 0.2]
    assert scores() == []


def test_a_node_that_changes_while_others_are_decided_is_decided_by_itself() -> None:
    """A binding between two steps of an answer is not told for the nodes that were like its node."""
    ledger = ClusterLedger(PlacementPolicy.BINPACK)
    told = {"index": 0, "uuid": "GPU-0", "memory_mib": 16160, "healthy": True}
    cards = json.dumps({"mode": "core_mem", "unit_mib": 1024, "cards": [told]})
    for name in ("n1", "n2"):
        ledger.node_changed(name, ClusterNode(name, cards, {}))
    for _ in ledger.count():
        pass
    assert ledger.still_alike(["n1", "n2"]) == [["n1", "n2"]]
    ledger.node_changed("n1", ClusterNode("n1", cards.replace("16160", "8192"), {}))
    assert ledger.still_alike(["n1", "n2"]) == [["n2"], ["n1"]]
    assert ledger.still_alike(["n1"]) == [["n1"]]
