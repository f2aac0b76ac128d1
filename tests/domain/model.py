"""A model of the kubelet's admission, and of an agent that knows nothing but the domain.

The kubelet part does as a real one: pods one after the other, containers in order, resources in
random order; units of init containers are reused, picked at random; if nothing is left to choose,
the plugin is not asked first. The agent part gets no names: it has List, the pod specs as far as
the API shows them, and its own ledger.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from tests.held import fraction

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.fractions.demands import demand, demand_from_size
from gpu_device_plugin.domain.fractions.no_room import NoRoom
from gpu_device_plugin.domain.fractions.placement import place
from gpu_device_plugin.domain.fractions.room import rooms
from gpu_device_plugin.domain.fractions.units import (
    cards_of,
    lie_equally_on,
    pick_units,
    resources_of,
    unit_ids,
    units_of,
)
from gpu_device_plugin.domain.grants.caller import Call, Caller, find_allocating_caller, find_caller
from gpu_device_plugin.domain.grants.grant import Demand, Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import live
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodKey,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import DoesNotFitError, RefusalError


@dataclass(slots=True)
class Admitted:
    """A pod of the kubelet: what each container holds, and what is left to be handed on."""

    request: PodRequest
    held: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    reusable: dict[str, frozenset[str]] = field(default_factory=dict)

    def all_ids(self) -> frozenset[str]:
        """Everything that any container holds."""
        return frozenset(t for held in self.held.values() for ids in held.values() for t in ids)


@dataclass(slots=True)
class Pending:
    """The agent's decision for one container."""

    caller: Caller
    demand: Demand
    cards: tuple[Card, ...]
    preferred: dict[str, frozenset[str]] = field(default_factory=dict)
    allocated: set[str] = field(default_factory=set)
    slice_id: str = ""

    def is_awaited(self, call: Call) -> bool:
        """Whether this Allocate is the one that the last answer leads to: it comes once only.

        The next container may be given the very same units, handed on by an init container.
        """
        is_first = call.resource not in self.allocated
        return is_first and self.preferred.get(call.resource) == call.must_include


class Agent:
    """Answers the kubelet from the rules of the domain alone."""

    def __init__(self, cards: Sequence[Card], terms: NodeTerms, policy: PlacementPolicy) -> None:
        self.cards, self.terms, self.policy = cards, terms, policy
        self.ledger = Ledger()
        self.seen: frozenset[PodKey] = frozenset()
        self.specs: dict[tuple[str, str], PodRequest] = {}
        self.pending: Pending | None = None
        self.asked: list[Caller | Grant] = []
        """Who was taken to be asking, call by call."""

    def prefer(
        self, call: Call, available: frozenset[str], listed: Sequence[ListedPod]
    ) -> frozenset[str]:
        """Which units the container should get."""
        seen, self.seen = self.seen, frozenset(entry.pod.key for entry in listed)
        caller = find_caller(call, listed, self.specs, self.ledger, seen, self._session(call))
        self.asked.append(caller)
        alive = live(self.ledger, {entry.pod.key for entry in listed})
        pending = self._decide(caller, call, alive)
        ids = pick_units(call.resource, available, call.must_include, pending.cards, call.size)
        if ids is None:
            raise DoesNotFitError("not enough of it on the decided cards", reason="NoRoom")
        pending.preferred[call.resource] = frozenset(ids)
        return frozenset(ids)

    def allocate(self, call: Call) -> None:
        """The kubelet gives `call.must_include`; refuse what does not follow the decision."""
        pending = self.pending
        if pending is None or not pending.is_awaited(call):
            found = find_allocating_caller(call, self.specs, self.ledger, self._session(call))
            self.asked.append(found)
            if isinstance(found, Grant):
                return
            pending = self._decide(found, call, self.ledger)
            pending.preferred[call.resource] = call.must_include
        pending.allocated.add(call.resource)
        if not lie_equally_on(pending.cards, call.must_include):
            raise DoesNotFitError("units of another card than decided", reason="OtherCard")
        pending.slice_id = pending.slice_id or f"slice-{len(self.asked)}"
        grant = self.ledger.grants.get(pending.slice_id) or self._new_grant(pending)
        stale = self.ledger.rivals(grant.pod, call.must_include)
        self.ledger = self.ledger.release(g.slice_id for g in stale).hold(
            grant.with_ids(call.resource, call.must_include)
        )

    def _session(self, call: Call) -> Caller | None:
        is_open = self.pending is not None and call.resource not in self.pending.preferred
        return self.pending.caller if self.pending is not None and is_open else None

    def _decide(self, caller: Caller, call: Call, alive: Ledger) -> Pending:
        pending = self.pending
        if pending and pending.caller == caller and call.resource not in pending.preferred:
            return pending
        if caller.request is not None and caller.container is not None:
            needed = demand(caller.request, caller.container, self.terms)
        else:
            needed = demand_from_size(caller.pod, call.resource, call.size, self.terms)
        healthy = {card.uuid: True for card in self.cards}
        left = rooms(self.cards, healthy, alive, self.terms, caller.pod)
        found = place(
            left,
            needed,
            self.policy,
            prefer=[uuid for grant in alive.of_pod(caller.pod) for uuid in grant.devices],
            must=cards_of(call.must_include),
        )
        if isinstance(found, NoRoom):
            raise DoesNotFitError("no room", reason=found.reason)
        self.pending = Pending(caller, needed, found.cards)
        return self.pending

    def _new_grant(self, pending: Pending) -> Grant:
        container = pending.caller.container
        return fraction(
            pending.slice_id,
            pending.caller.pod,
            container.name if container else "",
            kind=container.kind if container else ContainerKind.APP,
            cards=tuple(card.uuid for card in pending.cards),
            mem_units=pending.demand.mem_units,
            core_percent=pending.demand.core_percent,
            is_checked=container is not None,
        )


class Kubelet:
    """Admits pods one after the other; `pods` are those that List shows."""

    def __init__(self, agent: Agent, random: Random) -> None:
        self.agent = agent
        self.random = random
        self.pods: dict[tuple[str, str], Admitted] = {}
        self.truth: list[tuple[PodRef, str]] = []
        """Who was really asking, call by call, as far as the agent had to find out."""

    def listed(self) -> list[ListedPod]:
        """PodResources List: in any order, without uids and without ordinary init containers."""
        entries = [
            ListedPod(
                PodRef(*key),
                {
                    c.name: dict(pod.held.get(c.name, {}))
                    for c in pod.request.containers
                    if c.kind is not ContainerKind.INIT
                },
            )
            for key, pod in self.pods.items()
        ]
        self.random.shuffle(entries)
        return entries

    def admit(self, request: PodRequest) -> RefusalError | None:
        """Admit a pod; what the agent refused it with, if it did."""
        pod = self.pods[request.ref.key] = Admitted(request)
        try:
            for container in request.containers:
                self._admit_container(pod, container)
        except RefusalError as error:
            self.agent.pending = None
            del self.pods[request.ref.key]
            return error
        return None

    def remove(self, ref: PodRef) -> None:
        """The pod is gone; the kubelet tells nobody."""
        del self.pods[ref.key]

    def _admit_container(self, pod: Admitted, container: ContainerRequest) -> None:
        served = resources_of(self.agent.terms.mode)
        asked = [r for r in served if container.amount(r)]
        self.random.shuffle(asked)
        for resource in asked:
            ids = self._choose(pod, container, Call(resource, container.amount(resource)))
            with self._asking(pod, container):
                self.agent.allocate(Call(resource, len(ids), ids))
            pod.held.setdefault(container.name, {})[resource] = ids
        for name, ids in pod.held.get(container.name, {}).items():
            left = pod.reusable.get(name, frozenset())
            is_init = container.kind is ContainerKind.INIT
            pod.reusable[name] = left | ids if is_init else left - ids

    def _choose(self, pod: Admitted, container: ContainerRequest, call: Call) -> frozenset[str]:
        reusable = sorted(pod.reusable.get(call.resource, ()))
        self.random.shuffle(reusable)
        must = frozenset(reusable[: call.size])
        if len(must) == call.size:
            return must
        taken = frozenset(text for other in self.pods.values() for text in other.all_ids())
        available = (self._all_ids(call.resource) - taken) | must
        if len(available) < call.size:
            raise DoesNotFitError("the kubelet itself has too few", reason="Kubelet")
        with self._asking(pod, container):
            chosen = self.agent.prefer(
                Call(call.resource, call.size, must), available, self.listed()
            )
        assert must <= chosen <= available
        assert len(chosen) == call.size
        return chosen

    @contextmanager
    def _asking(self, pod: Admitted, container: ContainerRequest) -> Iterator[None]:
        calls = len(self.agent.asked)
        try:
            yield
        finally:
            self.truth += [(pod.request.ref, container.name)] * (len(self.agent.asked) - calls)

    def _all_ids(self, resource: str) -> frozenset[str]:
        agent = self.agent
        return frozenset(
            text
            for card in agent.cards
            for text in unit_ids(resource, card.number, units_of(card, resource, agent.terms.unit))
        )
