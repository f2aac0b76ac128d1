"""The promise: the controller's arrays and answers say of every node what the domain's plain code says."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.controller.replica import no_budgets
from tools.harness.objects import held, pod

from gpu_device_plugin.controller.card_arrays import Judged
from gpu_device_plugin.controller.cluster_ledger import ClusterLedger
from gpu_device_plugin.controller.scheduler_extender import MOST_NODES, Extender
from gpu_device_plugin.domain.fractions.demands import CARD_LABEL, COUNT_LABEL
from gpu_device_plugin.domain.fractions.node_fit import (
    NOT_ENOUGH_TEXT,
    Fit,
    Misfit,
    Score,
    fit,
    node_rooms,
)
from gpu_device_plugin.domain.fractions.pod_annotations import PodHold
from gpu_device_plugin.domain.fractions.request_rules import WHOLE_CARD
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.modes import (
    MAX_PODS_LABEL,
    PLACEMENT_ANNOTATION,
    PLACEMENT_LABEL,
    NodeMode,
    PlacementPolicy,
)
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.extender_messages import read_question
from gpu_device_plugin.settings.controller_settings import FilterKeeps

NAMES = [f"n{number:02}" for number in range(12)]
MODES = [*[NodeMode.CORE_MEM] * 12, NodeMode.CGPU, NodeMode.SHARE, NodeMode.SHARE, NodeMode.DEFAULT]
UNITS = [*[1, 2] * 4, 3, 4, 5, 8, 11, 15]
PERCENT = [5, 5, 10, 10, 20, 30, 40, 50, 60, 100]


class Cluster:
    """A ledger with a drawn history, and how often a question reached what is hard to decide."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.draw, self.seen = Random(seed), seen  # noqa: S311 - the same clusters each time
        self.default = self.draw.choice(list(PlacementPolicy))
        self.ledger = ClusterLedger(self.default)
        self.extender = Extender(self.ledger, no_budgets, self.draw.choice(list(FilterKeeps)))
        self.kinds = [self.a_kind_of_node() for _ in range(self.draw.randint(2, 3))]
        policies = self.draw.sample(list(PlacementPolicy), 2)
        self.labels: list[dict[str, str]] = [{PLACEMENT_LABEL: each} for each in policies]
        self.labels += [{}, {}, {}, {MAX_PODS_LABEL: self.draw.choice("012334")}]
        self.cpu = [None, *self.draw.sample(range(0, 24000, 600), 2)]
        self.reserved: dict[PodRef, tuple[str, int]] = {}
        for name in NAMES[:-1]:
            self.change_node(name)
        for _ in range(12):
            self.hold()

    def maybe(self, percent: int) -> bool:
        return self.draw.randrange(100) < percent

    def a_kind_of_node(self) -> str:
        """The annotation of a node: mostly of equal, healthy cards."""
        sizes = self.draw.choice([[16160], [16160], [24576, 16160], [500, 4096, 16160]])
        count = self.draw.choice([0, *range(1, 9), 2, 2, 2, 3, 4])
        cards: list[dict[str, Any]] = [
            {
                "index": index,
                "uuid": f"GPU-{index}",
                "memory_mib": self.draw.choice(sizes),
                "healthy": not self.maybe(5),
                **({"allocation_api": "dra"} if self.maybe(4) else {}),
            }
            for index in range(count)
        ]
        unit = 128 if self.maybe(15) else 1024
        return json.dumps({"mode": self.draw.choice(MODES), "unit_mib": unit, "cards": cards})

    def change_node(self, name: str) -> None:
        """A node is there, is another one, is gone, or its annotation cannot be read."""
        told = "{" if self.maybe(3) else self.draw.choice(self.kinds)
        slices = {"0": [self.draw.randint(1, 9), 20]}
        pods = {f"uid-p{self.draw.randrange(9)}": {"slices": slices}}
        holdings = {"version": 1, "cards": [f"GPU-{self.draw.randrange(9)}"], "pods": pods}
        says = json.dumps(holdings) if self.maybe(20) else ""
        node = ClusterNode(name, told, self.draw.choice(self.labels), holdings=says)
        self.ledger.node_changed(name, None if self.maybe(8) else node)
        self.ledger.processors.node_changed(name, self.draw.choice(self.cpu))

    def a_pod(self, name: str) -> dict[str, Any]:
        """Mostly one container that asks, or several apps; some with init containers and sidecars."""
        draw, asks_compute = self.draw, self.maybe(85)
        is_tight = self.maybe(50)  # Of several, each fits alone.
        units, percent = ([4, 5, 8, 11], [5]) if is_tight else (UNITS, PERCENT)

        def container(number: int) -> dict[str, Any]:
            limits = {Resource.MEM: draw.choice(units)}
            if asks_compute:
                limits[Resource.CORE] = 7 if self.maybe(1) else draw.choice(percent)
            told = {str(resource): str(amount) for resource, amount in limits.items()}
            return {"name": f"c{number}", "resources": {"limits": told}}

        apps = draw.choice([2, 2, 3] if is_tight else [1, 1, 1, 2, 3])
        value = pod(name, cpu=f"{draw.randrange(0, 9000, 300)}m")
        cpu = value["spec"]["containers"][0]["resources"]["requests"]
        containers = value["spec"]["containers"] = [container(n) for n in range(apps)]
        containers[0]["resources"]["requests"] = cpu
        if self.maybe(25):
            inits = [container(10 + number) for number in range(draw.randint(1, 2))]
            for each in inits:
                each |= {"restartPolicy": "Always"} if self.maybe(30) else {}
            value["spec"]["initContainers"] = inits
        labels, annotations = {}, {}
        if self.maybe(8):
            labels[COUNT_LABEL] = draw.choice(["1", "2", "2", "3", "x"])
        labels |= {CARD_LABEL: WHOLE_CARD} if self.maybe(10) else {}
        if self.maybe(40):
            annotations[PLACEMENT_ANNOTATION] = draw.choice([*list(PlacementPolicy) * 9, "odd"])
        value["metadata"] |= {"labels": labels, "annotations": annotations}
        return value

    def hold(self) -> None:
        """A pod is bound to a node, or moves, or ends, or is about to be bound."""
        ledger, draw = self.ledger, self.draw
        asks = question(self.a_pod(f"p{draw.randrange(20)}"))
        name, what = draw.choice(NAMES), draw.choice([*["bound"] * 4, "ended", "reserved"])
        if what == "reserved":
            answer = ledger.fit(name, ledger.checks(asks))
            if isinstance(answer, Misfit):
                return
            ledger.pod_changed(asks.ref, ClusterPod(asks, "", {}, "1"))
            ledger.processors.drop(asks.ref.uid)
            ledger.reserve(name, answer.hold, asks.cpu_milli)
            self.reserved[asks.ref] = (name, asks.cpu_milli)
            return
        app = asks.containers[-1].amount
        told = held(draw.randrange(3), app(Resource.MEM), app(Resource.CORE))
        bound = ClusterPod(asks, name, told if self.maybe(60) else {}, "1")
        ledger.pod_changed(asks.ref, bound if what == "bound" else None)
        ledger.processors.put(asks.ref.uid, name if what == "bound" else "", asks.cpu_milli)
        self.reserved.pop(asks.ref, None)

    def plain(self, asking: PodRequest, names: list[str]) -> dict[str, Score | Misfit]:
        """What the domain says of those that have cards."""
        found: dict[str, Score | Misfit] = {}
        for name in {*names} & self.ledger.offers.keys():
            offer, free = self.ledger.offers[name], self.ledger.processors.free(name)
            others = [each for ref, each in self.reserved.items() if ref != asking.ref]
            free -= sum(milli for on, milli in others if on == name)
            holds = [hold for hold in self.ledger.holds(name) if hold.pod != asking.ref]
            rooms = node_rooms(offer, holds)
            answer = fit(offer, rooms, asking, self.default, free)
            found[name] = answer.score if isinstance(answer, Fit) else answer
        return found

    def judged(self, asking: PodRequest, names: list[str]) -> dict[str, Score | Misfit]:
        """What the arrays say, and of nodes that they leave one for all that are alike."""
        for _ in self.ledger.count():
            pass
        checks = self.ledger.checks(asking)
        judged = self.ledger.judge(names, checks)
        self.seen["fits"] += sum(len(fitting) for fitting, *_ in judged.fits)
        self.seen["groups"] += sum(len(alike) > 1 for alike in judged.left)
        for alike in judged.left:
            judged.decide(alike, self.ledger.fit(alike[0], checks))
        self.seen["mixed"] += len({policy for _, policy, _, _ in judged.fits}) > 1
        found: dict[str, Score | Misfit] = {n: why for why, of in judged.misfits for n in of}
        for fitting, policy, own, common in judged.fits:
            found |= {n: Score(policy, *s) for n, *s in zip(fitting, own, common, strict=True)}
        return found

    async def ask(self) -> None:
        """One pod, new or known, about some nodes, some of them twice."""
        value = self.a_pod(self.draw.choice(["new", "new", "p0", "p1", "p2"]))
        names = self.draw.choices([*NAMES, "unknown"], k=self.draw.randint(1, 40))
        asking = question(value)
        plain, judged = self.plain(asking, names), self.judged(asking, names)
        no_cards = {name: judged[name] for name in {*names} - plain.keys()}
        assert judged == plain | no_cards
        for name, why in no_cards.items():
            assert isinstance(why, Misfit)
            assert why.is_final
            assert ("none of an agent" in why.text) == (name in self.ledger.left_out)
        body = json.dumps({"Pod": value, "NodeNames": names}).encode()
        self.check_filter(judged, json.loads(await self.extender.filter(body)))
        check_points(judged, json.loads(await self.extender.prioritize(body)))

    def check_filter(self, judged: Mapping[str, Score | Misfit], answer: Mapping[str, Any]) -> None:
        """All that fit, or the first of the best; why not of each of the others."""
        fitting = scores(judged)
        best = max(fitting.values(), default=0.0)
        equal = sorted(name for name, score in fitting.items() if score == best)
        keeps_all = self.extender.keeps is FilterKeeps.ALL
        kept = sorted(fitting) if keeps_all else equal[:MOST_NODES]
        lost = {
            name: f"fits, but {equal[0]} {'comes first' if name in equal else 'fits better'}"
            for name in fitting.keys() - kept
        }
        misfits = {name: why for name, why in judged.items() if isinstance(why, Misfit)}
        assert sorted(answer["NodeNames"]) == kept
        assert without_figures(answer, "FailedAndUnresolvableNodes") == {
            name: why.text for name, why in misfits.items() if why.is_final
        }
        assert without_figures(answer, "FailedNodes") == lost | {
            name: why.text for name, why in misfits.items() if not why.is_final
        }


def without_figures(answer: Mapping[str, Any], field: str) -> dict[str, str]:
    """The reasons, without what they say of the cards that are left."""
    reasons: Mapping[str, str] = answer.get(field, {})
    return {
        name: NOT_ENOUGH_TEXT if why.startswith(NOT_ENOUGH_TEXT) else why
        for name, why in reasons.items()
    }


def question(value: Mapping[str, Any]) -> PodRequest:
    """The pod as kube-scheduler asks about it."""
    return read_question(json.dumps({"Pod": value, "NodeNames": []}).encode()).pod


def scores(judged: Mapping[str, Score | Misfit]) -> dict[str, float]:
    """By the nodes' policy where all that fit have the same, else by the default."""
    fitting = {name: score for name, score in judged.items() if isinstance(score, Score)}
    is_one = len({score.policy for score in fitting.values()}) == 1
    return {name: score.own if is_one else score.common for name, score in fitting.items()}


def check_points(judged: Mapping[str, Score | Misfit], answer: list[Mapping[str, Any]]) -> None:
    """Each node once: 10 points for the first of the best, 0 to 9 for the others that fit."""
    fitting = scores(judged)
    worst, best = min(fitting.values(), default=0.0), max(fitting.values(), default=0.0)
    points = dict.fromkeys(judged, 0)
    points |= {n: int(9 / (best - worst or 1.0) * (s - worst)) for n, s in fitting.items()}
    if fitting:
        points[min(name for name, score in fitting.items() if score == best)] = 10
    assert sorted((each["Host"], each["Score"]) for each in answer) == sorted(points.items())


async def test_every_node_is_judged_as_by_the_plain_code() -> None:
    """Whatever the cluster, the pod and what happened before; scores are equal to the last bit."""
    seen: Counter[str] = Counter()
    for seed in range(140):
        cluster = Cluster(seed, seen)
        for _ in range(24):
            what = cluster.draw.randrange(10)
            if what < 4:
                cluster.hold()
            elif what == 4:
                cluster.change_node(cluster.draw.choice(NAMES))
            else:
                await cluster.ask()
                seen["questions"] += 1
    least = {"questions": 1000, "fits": 2500, "groups": 15, "mixed": 200}
    assert all(seen[what] >= count for what, count in least.items()), seen


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


def test_nodes_that_have_no_cards_are_not_kept_where_nobody_asks() -> None:
    """A replica that does not lead follows the watches for months; nodes come and go meanwhile."""
    ledger = ClusterLedger(PlacementPolicy.BINPACK)
    cards = json.dumps({"mode": "core_mem", "unit_mib": 1024, "cards": []})
    for number in range(100):
        name = f"n{number}"
        ledger.processors.put(f"uid-{number}", name, 1000)
        ledger.node_changed(name, ClusterNode(name, cards, {}))
        ledger.node_changed(name, None)
        ledger.processors.drop(f"uid-{number}")
    assert not list(ledger.count())
    ledger.node_changed("n1", ClusterNode("n1", cards, {}))
    assert len(list(ledger.count())) == 1
    ledger.node_changed("n1", None)
    assert len(list(ledger.count())) == 1
    assert "n1" in ledger.judge(["n1"], ledger.checks(question(pod("new", 1, 10)))).unknown
