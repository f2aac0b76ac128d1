"""Adoption: grants made again from a kubelet snapshot, after our own file was lost."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.modes import is_isolated
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import HeldUnits, PodRef, PodRequest
from gpu_device_plugin.domain.schemes.aliyun.fraction import Fraction, with_amounts
from gpu_device_plugin.domain.schemes.aliyun.requests import wants_whole_card
from gpu_device_plugin.domain.schemes.aliyun.units import Resource, cards_of
from gpu_device_plugin.domain.schemes.recording import Found, found
from gpu_device_plugin.domain.shares import Share

_Place: TypeAlias = tuple[PodRef, str]  # pod and container
_Holding: TypeAlias = tuple[str, str, frozenset[str]]  # container, and what it holds


def adopt(
    held: Iterable[HeldUnits],
    specs: Iterable[PodRequest],
    cards: Sequence[Card],
    terms: NodeTerms,
) -> tuple[Grant, ...]:
    """One grant for each container that holds units, as far as the kubelet snapshot shows.

    Slice ids come from the answers in the checkpoint, because running containers have those
    files mounted. Without one the id is derived from pod and container, so that adopting twice
    gives the same. What needs a pod spec that is not known stays unchecked.

    Args:
        held: From the checkpoint and from List, in any order; both may have the same container.
        specs: Pods as the API knows them; may be empty.
        cards: The node's cards; units of others wait until their card is there, since a grant
            without it could never be served.
        terms: The node's mode and unit now.
    """
    known = {card.number for card in cards}
    return tuple(
        _grant(each, cards, terms)
        for each in found(held, specs)
        if each.parts.keys() != {Resource.COUNT} and cards_of(each.ids) <= known
    )


def _grant(of: Found, cards: Sequence[Card], terms: NodeTerms) -> Grant:
    mem, core = (
        tuple(sorted(of.parts[resource].ids)) if resource in of.parts else ()
        for resource in (Resource.MEM, Resource.CORE)
    )
    numbers = cards_of((*mem, *core))
    version = max(part.library_version for part in of.parts.values())
    pod_units = of.spec.app_amount(Resource.MEM) if of.spec else len(mem)
    on = [c for c in sorted(cards, key=lambda c: c.index) if c.number in numbers]
    grant = Grant(
        slice_id=max(part.slice_id for part in of.parts.values()) or of.derived_id("adopted"),
        holder=of.holder,
        units={Resource.MEM: mem, Resource.CORE: core},
        shares=tuple(Share(card.uuid, is_exclusive=wants_whole_card(of.spec)) for card in on),
        is_isolated=bool(version) and is_isolated(terms.mode),
        is_checked=of.is_known,
        library_version=version,
    )
    own = Fraction(len(mem), pod_units, terms.unit.mib, terms.mode)
    return with_amounts(grant, own, len(core))
