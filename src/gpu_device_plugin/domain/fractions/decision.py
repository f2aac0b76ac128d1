"""The decision for one container: its cards, which units of them, and both in words."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.cards.card import CardIndex
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.demands import demand_from_size, demands, policy_of
from gpu_device_plugin.domain.fractions.no_room import NoRoom, demand_text, no_room_text, room_lines
from gpu_device_plugin.domain.fractions.placement import place
from gpu_device_plugin.domain.fractions.room import Room, at_most, rooms
from gpu_device_plugin.domain.fractions.units import (
    Resource,
    cards_of,
    lie_equally_on,
    parse_unit_id,
    pick_units,
)
from gpu_device_plugin.domain.grants.call_state import Offer, Pending, Reservation
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.grant import Demand, Holder
from gpu_device_plugin.domain.grants.init_containers import demands_ahead
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import DoesNotFitError


class FractionDecisions:
    """The part of the scheme that chooses cards and units."""

    def decide(self, caller: Caller, offer: Offer, state: NodeState) -> Pending:
        """One card, or as many as the pod's label says."""
        state.check_runtime(caller.request)
        state.policy_for(caller.request)
        needed, ahead = _demands_of(caller, offer.call, state)
        card_rooms = _rooms_for_call(caller, offer, state)
        begun = _follow_grant(caller, needed, offer, state)
        if begun is not None:
            numbers = {card.number for card in begun.chosen.cards}
            if any(room.is_apart(needed) for room in card_rooms if room.card.number in numbers):
                raise _no_units(begun, offer, state)  # given meanwhile, when the call was cut off
            return begun
        placed = place(
            card_rooms,
            needed,
            policy_of(caller.request, state.policy),
            ahead=ahead,
            prefer=_cards_of_pod(caller.pod, offer.live),
            wish=_wish(caller),
            must=cards_of(offer.call.must_include),
        )
        if isinstance(placed, NoRoom):
            text = no_room_text(caller, needed, placed, state.terms)
            raise DoesNotFitError(text, reason=placed.reason, rooms=room_lines(card_rooms, needed))
        asked, lines = demand_text(needed, state.terms), room_lines(card_rooms, needed)
        holder, request = caller.holder, caller.request
        return Pending(
            caller, Reservation(holder, needed, placed.cards, placed.why, asked, lines, request)
        )

    def choose(self, pending: Pending, offer: Offer, state: NodeState) -> tuple[str, ...]:
        """The units of a call, in equal parts on the cards decided on."""
        call, caller = offer.call, pending.caller
        if caller.container is None:
            # The pod spec is not known, so only the size of each call can be checked.
            demand_from_size(caller.pod, call.resource, call.size, state.terms)
        usable, cards = _usable(caller, offer), pending.chosen.cards
        chosen = pick_units(call.resource, usable, call.must_include, cards, call.size)
        if chosen is None:
            raise _no_units(pending, offer, state)
        return chosen

    def check_given(self, caller: Caller, offer: Offer, state: NodeState) -> None:
        """Refuse ids that do not lie in equal parts on as many cards as asked."""
        needed, _ = _demands_of(caller, offer.call, state)
        ids = offer.call.must_include
        numbers = cards_of(ids)
        cards = [card for card in state.cards if card.number in numbers]
        if len(numbers) != needed.cards or not lie_equally_on(cards, ids):
            raise _unequal_parts(ids, needed.cards)

    def check_follows(self, pending: Pending, ids: Collection[str]) -> None:
        """Refuse ids that do not lie in equal parts on the cards decided on."""
        if not lie_equally_on(pending.chosen.cards, ids):
            raise _unequal_parts(ids, len(pending.chosen.cards))

    def reserve(
        self,
        holder: Holder,
        demand: Demand,
        live: Ledger,
        state: NodeState,
        devices: Collection[str] = (),
    ) -> Reservation:
        """One card, or as many as the demand says, by amounts."""
        shown = [card for card in state.cards if card.is_shown]
        card_rooms = _rooms_for_pod(state, live, holder.pod)
        must = frozenset(card.number for card in shown if card.uuid in devices)
        prefer = _cards_of_pod(holder.pod, live)
        placed = place(card_rooms, demand, state.policy, prefer=prefer, must=must)
        is_known = len(must) == len(frozenset(devices))
        if isinstance(placed, NoRoom) or not is_known:
            named = [room for room in card_rooms if not devices or room.card.number in must]
            placed = place(named, demand, state.policy)
            if isinstance(placed, NoRoom):
                text = no_room_text(Caller(holder.pod), demand, placed, state.terms)
                raise DoesNotFitError(text, reason=placed.reason, rooms=room_lines(named, demand))
            raise DoesNotFitError(
                f"pod {holder.pod} asks for {demand.cards} of the devices "
                f"{', '.join(sorted(devices))}; node {state.node} has {len(must)} of them",
                reason="NoRoom",
            )
        asked, lines = demand_text(demand, state.terms), room_lines(card_rooms, demand)
        why = "the scheduler's choice" if devices else placed.why
        return Reservation(holder, demand, placed.cards, why, asked, lines)


def _follow_grant(caller: Caller, needed: Demand, offer: Offer, state: NodeState) -> Pending | None:
    """The decision already made for its other resource, before agent or kubelet restarted.

    A kubelet that has lost its checkpoint asks for all again. It may fail after the first resource
    and ask for the second one later: then the grant has units of both, and those of the first count.
    """
    if caller.container is None:
        return None
    grant = offer.live.of_container(caller.pod, caller.container.name)
    if grant is None:
        return None
    others = grant.all_ids - frozenset(grant.ids(offer.call.resource))
    if grant.ids(offer.call.resource) and not (others and others <= offer.held):
        return None
    cards = tuple(card for card in map(state.card, grant.devices) if card is not None)
    if len(cards) != needed.cards:
        return None
    why = "the card of its other resource"
    asked = demand_text(needed, state.terms)
    chosen = Reservation(caller.holder, needed, cards, why, asked, request=caller.request)
    return Pending(caller, chosen, slice_id=grant.slice_id)


def _unequal_parts(ids: Iterable[str], cards: int) -> DoesNotFitError:
    """The refusal for reused units that do not make a slice."""
    wanted = "all on one card" if cards == 1 else f"equal parts of {cards} cards"
    return DoesNotFitError(
        f"the kubelet reuses the units {', '.join(sorted(ids))} of an init container, which are "
        f"not {wanted}; it picks them at random, so create the pod again, or let "
        f"its init containers ask exactly what the container after them asks",
        reason="OtherCard",
    )


def _no_units(pending: Pending, offer: Offer, state: NodeState) -> DoesNotFitError:
    """The refusal if the card was chosen for the other resource and lacks this one."""
    call, caller = offer.call, pending.caller
    lacking = pending.chosen.demand
    if call.resource == Resource.MEM:
        lacking = replace(lacking, mem_units=Units(call.size))
    elif call.resource == Resource.CORE:
        lacking = replace(lacking, core_percent=call.size)
    numbers = frozenset(card.number for card in pending.chosen.cards)
    card_rooms = _rooms_for_call(caller, offer, state)
    if any(room.lack(lacking) for room in card_rooms if room.card.number in numbers):
        no_room = NoRoom(card_rooms, lacking, numbers, "its other resource is")
        return DoesNotFitError(
            no_room_text(caller, lacking, no_room, state.terms), reason=no_room.reason
        )
    indexes = ", ".join(str(card.index) for card in pending.chosen.cards)
    return DoesNotFitError(
        f"card {indexes} was decided on, but the kubelet has not as many of its units free; create "
        f"the pod again",
        reason="NoRoom",
    )


def _demands_of(caller: Caller, call: Call, state: NodeState) -> tuple[Demand, Demand | None]:
    """What a container needs, alone and with those that reuse its units; without the pod spec, what a call shows."""
    if caller.request is None or caller.container is None:
        return (demand_from_size(caller.pod, call.resource, call.size, state.terms),) * 2
    needs = demands(caller.request, state.terms)[caller.request.asking.index(caller.container) :]
    return needs[0].demand, demands_ahead(needs)[0]


def _usable(caller: Caller, offer: Offer) -> frozenset[str]:
    """The forced ids, and free ones that no other live pod holds (see kubernetes #137534)."""
    held = {
        text
        for grant in offer.live.holders(offer.available)
        if not grant.pod.is_same_pod(caller.pod)
        for text in grant.ids(offer.call.resource)
    }
    return (offer.available - held) | offer.call.must_include


def _rooms_for_call(caller: Caller, offer: Offer, state: NodeState) -> Sequence[Room]:
    """What all cards have left; of the asked resource at most what the kubelet has free.

    What the container itself holds is not in its way: its first resource, or what it had before
    the kubelet lost its checkpoint.
    """
    free = Counter(unit.card for text in _usable(caller, offer) if (unit := parse_unit_id(text)))
    own = offer.live.of_pod(caller.pod, caller.container.name) if caller.container else ()
    others = offer.all_live.release([grant.slice_id for grant in own])
    card_rooms = _rooms_for_pod(state, others, caller.pod)
    if offer.is_given:
        return card_rooms
    return [at_most(room, offer.call.resource, free[room.card.number]) for room in card_rooms]


def _rooms_for_pod(state: NodeState, ledger: Ledger, pod: PodRef) -> Sequence[Room]:
    shown = [card for card in state.cards if card.is_shown]
    card_rooms = rooms(shown, state.healthy, ledger, state.terms, pod)
    return [replace(room, has_strangers=room.card.uuid in state.strangers) for room in card_rooms]


def _cards_of_pod(pod: PodRef, live: Ledger) -> tuple[str, ...]:
    """The cards that the pod's earlier containers are on, first container first."""
    return tuple(dict.fromkeys(uuid for grant in live.of_pod(pod) for uuid in grant.devices))


def _wish(caller: Caller) -> tuple[CardIndex, ...]:
    if caller.request is None or caller.container is None:
        return ()
    kind, request = caller.container.kind, caller.request
    wish = request.wish if kind is ContainerKind.APP else request.init_wish
    of_first = request.wish[0][1] if request.wish and kind is ContainerKind.INIT else ()
    # An init container's units go to the app container after it, on the same card.
    return next((cards for index, cards in wish if index == caller.container.index), of_first)
