"""The promise: over any history of pods, everybody gets what it asked for, and only that."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.model import Agent, Kubelet
from tests.domain.words import APP, INIT, SIDECAR, cards, container, terms

from gpu_device_plugin.domain.fractions.card_limits import MAX_PODS_PER_CARD
from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.fractions.units import Resource, parse_unit_id
from gpu_device_plugin.domain.grants.caller import Caller
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import expired_grants, live
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy, is_isolated
from gpu_device_plugin.domain.node.pods import ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import UnknownPodError

MODES = (NodeMode.CORE_MEM, NodeMode.CGPU, NodeMode.SHARE)


@st.composite
def containers(draw: st.DrawFn, mode: NodeMode) -> tuple[ContainerRequest, ...]:
    """Init containers and sidecars, then app containers; most ask validly, some nothing."""
    first = draw(st.lists(st.sampled_from([INIT, SIDECAR]), max_size=2))
    kinds = [*first, *[APP] * draw(st.integers(1, 2))]
    found = []
    for index, kind in enumerate(kinds):
        mem = draw(st.sampled_from([0, 1, 2, 2, 4, 8]))
        core = draw(st.sampled_from([5, 30, 30, 100])) if mem and mode is NodeMode.CORE_MEM else 0
        if (mem or mode is NodeMode.CORE_MEM) and draw(st.integers(0, 15)) == 0:
            core = 7  # never valid
        found.append(container(f"c{index}", mem, core, kind, index))
    return tuple(found)


@st.composite
def histories(draw: st.DrawFn) -> tuple[NodeMode, PlacementPolicy, list[PodRequest | int], Random]:
    """Pods that come, and numbers of pods that go; twins are as likely as not."""
    mode = draw(st.sampled_from(MODES))
    shapes = draw(st.lists(containers(mode), min_size=1, max_size=3))
    steps: list[PodRequest | int] = []
    for step in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 3)) == 0:
            steps.append(draw(st.integers(0, 20)))
            continue
        label = draw(st.sampled_from([None, None, "2", "0"])) if mode is not MODES[0] else None
        ref = PodRef("default", f"p{step}", f"uid-{step}")
        steps.append(PodRequest(ref, draw(st.sampled_from(shapes)), card_count_label=label))
    return (
        mode,
        draw(st.sampled_from(PlacementPolicy)),
        steps,
        draw(st.randoms(use_true_random=False)),
    )


def check_identity(kubelet: Kubelet) -> None:
    """Every call was understood as what it was; a container may stay unknown, never be wrong."""
    for asked, (pod, name) in zip(kubelet.agent.asked, kubelet.truth, strict=True):
        known = asked.container if isinstance(asked, Grant) else None
        if isinstance(asked, Caller) and asked.container is not None:
            known = asked.container.name
        assert asked.pod.is_same_pod(pod)
        assert known in {None, "", name}


def check_ledger(kubelet: Kubelet) -> None:
    """No unit twice, sums within capacity, one set of cards a container, the kubelet agrees."""
    agent = kubelet.agent
    alive = live(agent.ledger, kubelet.pods.keys())
    for grant in alive.grants.values():
        assert alive.rivals(grant.pod, (*grant.ids(Resource.MEM), *grant.ids(Resource.CORE))) == ()
    for uuid, use in alive.use().items():
        (card,) = (card for card in agent.cards if card.uuid == uuid)
        assert use.memory_mib <= card.capacity(agent.terms.unit) * agent.terms.unit.mib
        assert use.core_percent <= 100
        assert not is_isolated(agent.terms.mode) or len(use.pods) <= MAX_PODS_PER_CARD
    for key, pod in kubelet.pods.items():
        for name, held in pod.held.items():
            for resource, ids in held.items():
                holders = alive.of_pod(pod.request.ref)
                assert any(set(ids) == set(grant.ids(resource)) for grant in holders), (key, name)
    for grant in alive.grants.values():
        check_grant(grant, agent)


def check_grant(grant: Grant, agent: Agent) -> None:
    """Both resources on the same cards, in equal parts, as many as were asked."""
    by_uuid = {card.uuid: card.number for card in agent.cards}
    numbers = sorted(by_uuid[uuid] for uuid in grant.devices)
    for resource, amount in (
        (Resource.MEM, fraction_of(grant).mem_units),
        (Resource.CORE, grant.core_percent),
    ):
        units = [parse_unit_id(text) for text in grant.ids(resource)]
        on_cards = [unit.card for unit in units if unit is not None]
        assert grant.container == "" or len(on_cards) in {0, amount}
        assert sorted(set(on_cards)) in ([], numbers)
        assert len({on_cards.count(number) for number in set(on_cards)}) <= 1


def run(kubelet: Kubelet, steps: list[PodRequest | int], *, is_seen: bool) -> list[Exception]:
    """Play a history; the refusals."""
    refusals: list[Exception] = []
    for step in steps:
        agent = kubelet.agent
        if isinstance(step, int):
            if kubelet.pods:
                gone = list(kubelet.pods.values())[step % len(kubelet.pods)].request
                kubelet.remove(gone.ref)
                agent.specs.pop(gone.ref.key, None)
            continue
        if is_seen:
            agent.specs[step.ref.key] = step
        error = kubelet.admit(step)
        if error is not None:
            refusals.append(error)
            if is_seen:
                agent.specs[step.ref.key] = replace(step, is_finished=True)
        check_identity(kubelet)
        check_ledger(kubelet)
    return refusals


@settings(max_examples=300)
@given(histories())
def test_every_history_keeps_the_ledger_true(
    history: tuple[NodeMode, PlacementPolicy, list[PodRequest | int], Random],
) -> None:
    """With the pods' texts known nobody is ever unknown; at the end all of it comes back."""
    mode, policy, steps, order = history
    agent = Agent(cards(16160, 16160, 8192), terms(mode), policy)
    kubelet = Kubelet(agent, order)

    refusals = run(kubelet, steps, is_seen=True)

    assert not [error for error in refusals if isinstance(error, UnknownPodError)]
    absent = expired_grants(agent.ledger, [], [], {}, 100.0, 0.0)[1]
    over, _ = expired_grants(agent.ledger, [], [], absent, 130.0, 0.0)
    assert agent.ledger.release(over) == Ledger()


@settings(max_examples=200)
@given(histories())
def test_without_the_api_nobody_is_taken_for_another(
    history: tuple[NodeMode, PlacementPolicy, list[PodRequest | int], Random],
) -> None:
    """Nothing but List is known: some pods are refused, but none gets another one's slice."""
    mode, policy, steps, order = history
    kubelet = Kubelet(Agent(cards(16160, 16160, 8192), terms(mode), policy), order)

    run(kubelet, steps, is_seen=False)
