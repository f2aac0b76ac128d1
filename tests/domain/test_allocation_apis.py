"""Both allocation APIs of one node at once, with a scheduler that is behind: nothing is given twice.

A claim is allocated by what the scheduler saw, which may be an older slice of the node, and is prepared
some time later; units are taken by what the kubelet was last offered.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.test_claims import NODE, SCHEMES, allocated, with_claim
from tests.held import fraction

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.claims import (
    cards_behind_claims,
    cards_for_claims,
    pools_behind,
)
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import DoesNotFitError

Amount = tuple[int, int, int]
"""Card, units, percent."""


@dataclass
class Node:
    """A node of three cards, its kubelet's device lists, and the scheduler's view of claims.

    Attributes:
        ledger: What the agent has given.
        state: The node.
        withheld: Cards of which a claim may be allocated that is not prepared.
        seen: Cards that the scheduler believes to be offered; it may be behind.
        pending: Claim -> what is allocated to it and not prepared.
    """

    ledger: Ledger = field(default_factory=Ledger)
    state: NodeState = NODE
    withheld: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    pending: dict[str, Amount] = field(default_factory=dict)

    def switch(self, api: AllocationApi) -> None:
        """The label changes; what was offered for claims is withheld from the device plugin."""
        if api is self.state.allocation_api:
            return
        offered = cards_for_claims(self.state, self.ledger, self.withheld)
        if self.state.allocation_api is AllocationApi.DRA:
            self.withheld = frozenset(offered)
        self.state = replace(self.state, allocation_api=api)
        if api is AllocationApi.DRA:
            self.withheld = frozenset(cards_for_claims(self.state, self.ledger))

    def offer(self) -> None:
        """The slice reaches the scheduler; cards that go back and hold nothing are given back."""
        offered = cards_for_claims(self.state, self.ledger, self.withheld)
        self.seen = frozenset(uuid for uuid, api in offered.items() if not api)
        if self.state.allocation_api is AllocationApi.DRA:
            self.withheld = frozenset(offered)
        else:
            of_claims = {f"GPU-{card}" for card, _, _ in self.pending.values()}
            self.withheld &= of_claims | cards_behind_claims(self.state, self.ledger)

    def allocate(self, name: str, amount: Amount) -> None:
        """The scheduler counts the claims that it knows."""
        card, units, percent = amount
        used = [a for a in self.pending.values() if a[0] == card]
        claims = [g for g in self.ledger.grants.values() if g.holder.claim]
        shares = [s for g in claims for s in g.shares if s.device == f"GPU-{card}"]
        memory = sum(a[1] for a in used) + sum(s.memory_mib // 1024 for s in shares)
        core = sum(a[2] for a in used) + sum(s.core_percent for s in shares)
        if f"GPU-{card}" in self.seen and memory + units <= 15 and core + percent <= 100:
            self.pending[name] = amount

    def prepare(self) -> None:
        """The kubelet asks for each claim; what is refused is asked for again."""
        for name, amount in list(self.pending.items()):
            try:
                self.ledger = with_claim(self.ledger, name, [allocated(*amount)])
            except DoesNotFitError:
                continue
            del self.pending[name]

    def take_units(self, name: str, amount: Amount) -> None:
        """The kubelet gives units of what it is offered."""
        card, units, percent = amount
        behind = pools_behind(
            SCHEMES.pools(self.state), self.state.allocation_api, self.ledger, self.withheld
        )
        pools, held = {pool.resource: pool for pool in behind}, {}
        for resource, wanted in ((str(Resource.MEM), units), (str(Resource.CORE), percent)):
            ids = [i for g in pools[resource].groups if g.card == f"GPU-{card}" for i in g.ids]
            free = [text for text in ids if text not in self.ledger.ids()]
            if len(free) < wanted:
                return
            held[resource] = tuple(free[:wanted])
        pod = PodRef("default", name, name)
        grant = fraction(name, pod, "main", units=held, cards=(f"GPU-{card}",))
        self.ledger = self.ledger.hold(grant)

    def end(self, number: int) -> None:
        """A container ends, or a claim is given back."""
        if self.ledger.grants:
            names = sorted(self.ledger.grants)
            self.ledger = self.ledger.release([names[number % len(names)]])

    def check(self) -> None:
        """No card serves both allocation APIs, none is given beyond what it has, no unit twice."""
        for device, use in self.ledger.use().items():
            holders = [g for g in self.ledger.grants.values() if device in g.devices]
            assert len({bool(grant.holder.claim) for grant in holders}) == 1
            assert use.memory_mib <= 15 * 1024
            assert use.core_percent <= 100
        units = [text for g in self.ledger.grants.values() for text in g.all_ids]
        assert len(units) == len(set(units))


ALL = frozenset(card.uuid for card in NODE.cards)
STEPS = ("units", "allocate", "allocate", "prepare", "offer", "end", "dra", "device-plugin")
Step = st.tuples(
    st.sampled_from(STEPS),
    st.integers(0, 2),
    st.integers(1, 15),
    st.integers(1, 20).map(lambda fives: fives * 5),
)


def play(steps: list[tuple[str, int, int, int]], *, is_very_late: bool = False) -> Node:
    """A node after these steps.

    Args:
        steps: What happens.
        is_very_late: The scheduler believes for ever that every card is offered.
    """
    node = Node()
    for number, (what, *rest) in enumerate(steps):
        amount = (rest[0], rest[1], rest[2])
        if what == "units":
            node.take_units(f"h{number}", amount)
        elif what == "allocate":
            node.allocate(f"h{number}", amount)
        elif what == "prepare":
            node.prepare()
        elif what == "offer":
            node.offer()
        elif what == "end":
            node.end(rest[0])
        else:
            node.switch(AllocationApi(what))
        node.seen = ALL if is_very_late else node.seen
        node.check()
    return node


@settings(max_examples=200)
@given(st.lists(Step, min_size=12, max_size=40))
def test_with_a_scheduler_that_is_behind_nothing_is_given_twice(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """However far: what does not fit any more is refused."""
    play(steps)
    play(steps, is_very_late=True)


@settings(max_examples=200)
@given(st.lists(Step, min_size=12, max_size=40))
def test_a_claim_that_was_allocated_is_prepared_however_the_allocation_apis_change(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Its card is withheld from the device plugin meanwhile, so nobody has to make room for it."""
    node = play(steps)
    node.prepare()
    assert node.pending == {}
