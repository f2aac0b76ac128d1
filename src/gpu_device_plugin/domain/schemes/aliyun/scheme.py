"""Fractions of a card under the names of Alibaba Cloud's shared GPU scheduling."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.caller import Asker, Call
from gpu_device_plugin.domain.claims import AllocatedDevice, Capacity
from gpu_device_plugin.domain.compute_policy import (
    COMPUTE_POLICY_KEY,
    KNOWN_POLICIES,
    ComputePolicy,
)
from gpu_device_plugin.domain.container_edits import ContainerEdits, DeviceAccess, Paths
from gpu_device_plugin.domain.decision import Offer, Pending, Reservation
from gpu_device_plugin.domain.devices import Card, CardNumber
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode, is_isolated
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import HeldUnits, PodRequest
from gpu_device_plugin.domain.pools import DeviceGroup, Pool, UnitCount
from gpu_device_plugin.domain.schemes.aliyun.adoption import adopt
from gpu_device_plugin.domain.schemes.aliyun.annotations import pod_annotations, whole_cards
from gpu_device_plugin.domain.schemes.aliyun.claim_amounts import capacity, claim_demand
from gpu_device_plugin.domain.schemes.aliyun.claim_counts import claiming_container, with_claims
from gpu_device_plugin.domain.schemes.aliyun.decision import (
    check_parts,
    choose_units,
    decide,
    follows,
    reserve,
    unequal_parts,
)
from gpu_device_plugin.domain.schemes.aliyun.edits import container_edits
from gpu_device_plugin.domain.schemes.aliyun.fraction import (
    Fraction,
    check_ids,
    fraction_of,
    of_record,
    to_record,
    units_per_card,
    with_amounts,
)
from gpu_device_plugin.domain.schemes.aliyun.late_check import checked
from gpu_device_plugin.domain.schemes.aliyun.modes import check_message, check_unit, resources_of
from gpu_device_plugin.domain.schemes.aliyun.requests import asked_text, demand_from_size
from gpu_device_plugin.domain.schemes.aliyun.rules import Ask, Known, check
from gpu_device_plugin.domain.schemes.aliyun.units import (
    Resource,
    cards_of,
    slice_bytes,
    unit_ids,
    units_of,
)
from gpu_device_plugin.domain.schemes.protocol import Decides, GrantedIn, NewGrant
from gpu_device_plugin.domain.shares import Demand, Holder, Share
from gpu_device_plugin.errors import RequestError


class AliyunScheme(Decides):
    """gpu-mem, gpu-core.percentage and gpu-count, as the node's mode serves them."""

    resources: Collection[str] = frozenset(Resource)

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """Every unit of every card; a card that is out stays in capacity."""
        if state.mode is None:
            return ()
        return tuple(
            Pool(resource, tuple(_groups(resource, state))) for resource in resources_of(state.mode)
        )

    def serves(self, resource: str, state: NodeState) -> bool:
        """By the node's mode."""
        return state.mode is not None and resource in resources_of(state.mode)

    def check_unit(self, mode: NodeMode, unit: MemoryUnit) -> None:
        """Small units are for whole cards only (R-404)."""
        check_unit(mode, unit)

    def check_size(self, state: NodeState) -> None:
        """By the number of units."""
        if state.mode is not None:
            check_message(state.cards, state.unit, state.mode)

    def card_numbers(self, ids: Iterable[str]) -> frozenset[CardNumber]:
        """Each id names its card."""
        return cards_of(ids)

    def annotations(
        self, grants: Sequence[Grant], state: NodeState, assume_time_ns: int
    ) -> Mapping[str, str]:
        """In both published generations (R-540)."""
        return pod_annotations(grants, state.cards, assume_time_ns) | whole_cards(grants)

    def claiming_container(self, grant: Grant, spec: PodRequest) -> str:
        """By the claim's name; one of whole cards is of the only container that asks."""
        return claiming_container(grant, spec)

    def counts(self, state: NodeState, ledger: Ledger) -> Mapping[str, Sequence[UnitCount]]:
        """What claims hold has no ids."""
        found = super().counts(state, ledger)
        return {card: with_claims(card, units, ledger) for card, units in found.items()}

    def asked_text(self, resource: str, amount: int, state: NodeState) -> str:
        """`aliyun.com/gpu-mem: 2 (units of 1024 MiB)`."""
        return asked_text(resource, amount, state.unit)

    def decide(self, asker: Asker, offer: Offer, state: NodeState) -> Pending:
        """One card, or as many as the pod's label says."""
        _compute_policy(asker.request, state)
        return decide(asker, offer, state)

    def choose(self, pending: Pending, offer: Offer, state: NodeState) -> tuple[str, ...]:
        """In equal parts on the cards decided on."""
        if pending.asker.container is None:
            # The pod spec is not known, so only the size of each call can be checked.
            call = offer.call
            demand_from_size(pending.asker.pod, call.resource, call.size, state.terms)
        return choose_units(pending, offer, state)

    def check_given(self, asker: Asker, offer: Offer, state: NodeState) -> None:
        """In equal parts on as many cards as asked."""
        check_parts(asker, offer, state)

    def check_follows(self, pending: Pending, ids: Collection[str]) -> None:
        """In equal parts on the cards decided on."""
        if not follows(ids, pending.chosen.cards):
            raise unequal_parts(ids, len(pending.chosen.cards))

    def reserve(
        self,
        holder: Holder,
        demand: Demand,
        live: Ledger,
        state: NodeState,
        devices: Collection[str] = (),
    ) -> Reservation:
        """One card, or as many as the demand says, by amounts."""
        return reserve(holder, demand, live, state, devices)

    def capacity(self, card: Card, state: NodeState) -> Capacity | None:
        """Memory in units, and compute where the mode divides it."""
        return capacity(card, state.terms) if state.mode else None

    def claim_demand(self, devices: Sequence[AllocatedDevice], state: NodeState) -> Demand:
        """In units and percent, the same of each card."""
        return claim_demand(devices, state.terms)

    def grant(self, chosen: Reservation, new: NewGrant, state: NodeState) -> Grant:
        """The decision, in units and percent."""
        asked, request, holder = chosen.demand, chosen.request, chosen.holder
        pod_units = request.app_amount(Resource.MEM) if request else asked.mem_units
        grant = Grant(
            slice_id=new.slice_id,
            holder=holder,
            shares=tuple(
                Share(card.uuid, is_exclusive=asked.is_exclusive) for card in chosen.cards
            ),
            is_isolated=new.is_isolated,
            is_checked=bool(holder.container or holder.claim),
            library_version=state.library_version if new.is_isolated else "",
            created_seconds=new.created_seconds,
            compute_policy=_compute_policy(request, state),
        )
        own = Fraction(asked.mem_units, pod_units, state.unit.mib, state.terms.mode)
        return with_amounts(grant, own, asked.core_percent)

    def give(self, grant: Grant, call: Call, state: NodeState, *, is_known: bool) -> Grant:
        """Without the pod spec, only the units given so far are known of its request."""
        grant = grant.with_ids(call.resource, call.must_include)
        if not is_known:
            units, percent = len(grant.ids(Resource.MEM)), len(grant.ids(Resource.CORE))
            own = replace(fraction_of(grant), mem_units=units, pod_units=units)
            grant = with_amounts(grant, own, percent)
        return grant if is_known and grant.is_sized else self.sized(grant, state)

    def sized(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with its memory on each card in bytes, as the cards are now.

        A card that is away leaves the sizes unknown; one that shows less than was granted (for
        instance to a grant made again from the kubelet's checkpoint) gives what it has.
        """
        unit, each = fraction_of(grant).unit, units_per_card(grant)
        cards = [card for card in map(state.card, grant.devices) if card is not None]
        sizes: Iterable[int | None] = [None] * len(grant.shares)
        if each and len(cards) == len(grant.shares):
            units = [min(each, card.capacity(unit)) for card in cards]
            sizes = [slice_bytes(c, n, unit) if n else 0 for c, n in zip(cards, units, strict=True)]
        sized = zip(grant.shares, sizes, strict=True)
        return replace(grant, shares=tuple(replace(s, memory_bytes=size) for s, size in sized))

    def checked(self, grant: Grant, spec: PodRequest, state: NodeState) -> Grant:
        """The percentage, the label for several cards, and what goes with what."""
        grant = checked(grant, spec, state.terms)
        return replace(grant, compute_policy=_compute_policy(spec, state))

    def check_shape(self, grant: Grant, state: NodeState) -> None:
        """core_mem serves memory and compute together (R-526)."""
        subject = (
            f"pod {grant.pod}, container {grant.container or '(not known)'}, asks for one of "
            f"gpu-mem and gpu-core.percentage only; node {state.node} is in mode core_mem and "
            f"serves them together"
        )
        amounts = {str(resource): len(grant.ids(resource)) for resource in Resource}
        check(Ask(Known.UNITS, subject, fraction_of(grant).mode, amounts))

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        """By the units' ids, which tell card and amount."""
        specs = tuple(specs)
        known = {spec.ref: spec.compute_policy for spec in specs}
        return tuple(
            replace(
                grant,
                compute_policy=state.policy_for(known.get(grant.pod)) or state.compute_policy,
            )
            for grant in adopt(held, specs, state.cards, state.terms)
        )

    def own_record(self, grant: Grant) -> Mapping[str, object]:
        """Units, their size, and the node mode."""
        return to_record(fraction_of(grant))

    def restored(self, grant: Grant, record: Mapping[str, object]) -> Grant:
        """A slice of a mode without isolation has no cap, whatever was written (R-505)."""
        check_ids(grant.units)
        own = of_record(record)
        isolates = grant.is_isolated and is_isolated(own.mode)
        return with_amounts(replace(grant, is_isolated=isolates), own, grant.core_percent)

    def granted_in(self, grant: Grant) -> GrantedIn | None:
        """Both decide what its units mean."""
        return fraction_of(grant).mode, fraction_of(grant).unit

    def held_text(self, grant: Grant) -> str:
        """`2 units, 30 % compute (fixed)`."""
        percent = grant.core_percent
        core = f", {percent} % compute ({grant.compute_policy})" if percent else ""
        return f"{fraction_of(grant).mem_units} units{core}"

    def answers(self, resource: str) -> bool:
        """The whole answer rides on gpu-mem (R-550): the kubelet merges several at random."""
        return resource == Resource.MEM

    def edits(
        self,
        grant: Grant,
        cards: Sequence[Card],
        state: NodeState,
        access: DeviceAccess,
        paths: Paths,
    ) -> ContainerEdits:
        """Cards, figures for applications, and what isolation mounts."""
        return container_edits(grant, cards, state.terms, access, paths)


def _compute_policy(spec: PodRequest | None, state: NodeState) -> ComputePolicy:
    """The policy of a pod's containers.

    Raises:
        RequestError: Its annotation decides here, and names none.
    """
    asked = spec.compute_policy if spec else None
    policy = state.policy_for(asked)
    if spec is not None and policy is None:
        raise RequestError(
            f"pod {spec.ref} on node {state.node}: annotation {COMPUTE_POLICY_KEY}={asked} names no "
            f"policy; known: {KNOWN_POLICIES}",
            reason="UnknownComputePolicy",
        )
    return policy or state.compute_policy


def _groups(resource: Resource, state: NodeState) -> Iterable[DeviceGroup]:
    healthy = state.healthy
    for card in state.cards:
        units = units_of(card, resource, state.unit)
        yield DeviceGroup(unit_ids(resource, card.number, units), healthy[card.uuid], card.uuid)
