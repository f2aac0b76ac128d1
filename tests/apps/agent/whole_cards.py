"""A second, tiny scheme: whole cards under an invented name. It records what the kubelet chooses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.caller import Asker, Call
from gpu_device_plugin.domain.container_edits import ContainerEdits, DeviceAccess, Paths
from gpu_device_plugin.domain.decision import Offer, Pending
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import HeldUnits, PodRequest
from gpu_device_plugin.domain.pools import DeviceGroup, Pool, UnitCount
from gpu_device_plugin.domain.schemes.protocol import GrantedIn, NewGrant
from gpu_device_plugin.domain.shares import Demand, Holder, Share

WHOLE_CARD = "example.com/whole-card"


class WholeCards:
    """One unit a card; its id is the card's UUID."""

    resources: Collection[str] = frozenset({WHOLE_CARD})

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        healthy = state.healthy
        return (
            Pool(WHOLE_CARD, tuple(DeviceGroup((c.uuid,), healthy[c.uuid]) for c in state.cards)),
        )

    def serves(self, resource: str, state: NodeState) -> bool:
        return resource == WHOLE_CARD and bool(state.cards)

    def check_unit(self, mode: NodeMode, unit: MemoryUnit) -> None:
        """It has no unit."""

    def check_size(self, state: NodeState) -> None:
        """No list is long."""

    def card_numbers(self, _ids: Iterable[str]) -> frozenset[int]:
        return frozenset()

    def counts(self, state: NodeState, ledger: Ledger) -> Mapping[str, Sequence[UnitCount]]:
        held = ledger.ids()
        return {
            card.uuid: [UnitCount(WHOLE_CARD, int(card.uuid not in held), int(card.uuid in held))]
            for card in state.cards
        }

    def annotations(
        self, grants: Sequence[Grant], _state: NodeState, _assume_time_ns: int
    ) -> Mapping[str, str]:
        return (
            {"example.com/cards": ",".join(c for g in grants for c in g.devices)} if grants else {}
        )

    def asked_text(self, resource: str, amount: int, _state: NodeState) -> str:
        return f"{resource}: {amount} (cards)"

    def decide(self, asker: Asker, offer: Offer, state: NodeState) -> Pending:
        asked = Demand(0, cards=offer.call.size)
        free = tuple(card for card in state.cards if card.uuid in offer.available)
        return Pending(asker, asked, free, "any card")

    def choose(self, _pending: Pending, offer: Offer, _state: NodeState) -> tuple[str, ...]:
        rest = sorted(offer.available - offer.call.must_include)
        return (*sorted(offer.call.must_include), *rest)[: offer.call.size]

    def check_given(self, _asker: Asker, _offer: Offer, _state: NodeState) -> None:
        """Any cards do."""

    def check_follows(self, _pending: Pending, _ids: Collection[str]) -> None:
        """Any cards do."""

    def grant(self, pending: Pending, new: NewGrant, _state: NodeState) -> Grant:
        return Grant(
            slice_id=new.slice_id,
            holder=pending.asker.holder,
            is_isolated=False,
            is_checked=pending.asker.container is not None,
            created_seconds=new.created_seconds,
        )

    def give(self, grant: Grant, call: Call, state: NodeState, *, is_known: bool) -> Grant:
        del is_known
        return self.sized(grant.with_ids(call.resource, call.must_include), state)

    def sized(self, grant: Grant, state: NodeState) -> Grant:
        cards = {uuid: state.card(uuid) for uuid in grant.ids(WHOLE_CARD)}
        sizes = {uuid: card.memory_mib << 20 if card else None for uuid, card in cards.items()}
        shares = tuple(Share(uuid, size, is_exclusive=True) for uuid, size in sizes.items())
        return replace(grant, shares=shares)

    def checked(self, grant: Grant, _spec: PodRequest, _state: NodeState) -> Grant:
        return replace(grant, is_checked=True)

    def check_shape(self, grant: Grant, state: NodeState) -> None:
        """Every number of cards is one."""

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], _state: NodeState
    ) -> tuple[Grant, ...]:
        pods = {spec.ref.uid: spec.ref for spec in specs}
        by_place = {(units.pod.uid, units.container): units for units in held if units.pod.uid}
        return tuple(
            Grant(
                slice_id=f"whole-{units.pod.uid}-{units.container}",
                holder=Holder(pods.get(units.pod.uid, units.pod), units.container),
                units={WHOLE_CARD: tuple(sorted(units.ids))},
                is_isolated=False,
                is_checked=False,
            )
            for units in by_place.values()
        )

    def own_record(self, _grant: Grant) -> Mapping[str, object]:
        return {}

    def restored(self, grant: Grant, _record: Mapping[str, object]) -> Grant:
        return grant

    def granted_in(self, _grant: Grant) -> GrantedIn | None:
        return None

    def held_text(self, grant: Grant) -> str:
        return f"{len(grant.shares)} cards"

    def answers(self, _resource: str) -> bool:
        return True

    def edits(
        self,
        _grant: Grant,
        cards: Sequence[Card],
        _state: NodeState,
        _access: DeviceAccess,
        _paths: Paths,
    ) -> ContainerEdits:
        return ContainerEdits(envs={"EXAMPLE_CARDS": ",".join(card.uuid for card in cards)})
