"""Annotations, by which parts of the system communicate: a node's cards, a pod's slice."""

import json
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.grants.ledger import DeviceUse
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import is_whole
from gpu_device_plugin.domain.node.state import NodeTerms

CARDS_ANNOTATION = "gpu-device-plugin/cards"
CARDS_VERSION = 2
UNINSTALL_ANNOTATION = "gpu-device-plugin/uninstall"
"""Marks a node for the agents of one installation. Its value is the uid of their DaemonSet, so
that the mark of an earlier installation has no effect on a later one."""
WITHDRAWN_ANNOTATION = "gpu-device-plugin/withdrawn"
WITHDRAWN_VERSION = 1


def cards_annotation(
    cards: Sequence[Card],
    healthy: Mapping[str, bool],
    terms: NodeTerms,
    replicas: Mapping[str, int] = MappingProxyType({}),
    by_claims: Mapping[str, DeviceUse] = MappingProxyType({}),
) -> str:
    """The node's cards for schedulers, tools and people, as compact JSON.

    Version 2 where a card is cut or replicated, and else version 1, whose readers need not know the
    other: beside fractions, a card in MIG mode has no units and is not healthy for them.

    `healthy` and `replicas` are by UUID, of cards and instances; `by_claims` has each card that is
    given by claims alone, with what prepared claims hold of it.
    """
    ordered = sorted(cards, key=lambda card: card.index)
    entries = [
        _card(card, healthy.get(card.uuid, False), terms, replicas)
        | _by_claims(by_claims.get(card.uuid), terms)
        for card in ordered
    ]
    is_plain = not any({"instances", "replicas"} & entry.keys() for entry in entries)
    return compact(
        {
            "version": 1 if is_plain else CARDS_VERSION,
            "mode": terms.mode,
            "unit_mib": terms.unit.mib,
            "cards": entries,
        }
    )


def _card(
    card: Card,
    is_healthy: bool,  # noqa: FBT001
    terms: NodeTerms,
    replicas: Mapping[str, int],
) -> dict[str, object]:
    is_cut = card.hardware.is_mig
    entry: dict[str, object] = {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "memory_mib": card.memory_mib,
        "units": 0 if is_cut else card.capacity(terms.unit),
        "healthy": is_healthy and (is_whole(terms.mode) or not is_cut),
    }
    if is_cut:
        entry["instances"] = [
            {
                "uuid": each.uuid,
                "index": each.index,
                "profile": each.profile,
                "memory_mib": each.memory_mib,
                "healthy": is_healthy,
                **_replicas(each.uuid, replicas),
            }
            for each in card.hardware.instances
        ]
    return entry | _replicas(card.uuid, replicas)


def _by_claims(use: DeviceUse | None, terms: NodeTerms) -> dict[str, object]:
    if use is None:
        return {}
    units = -(-use.memory_mib // terms.unit.mib)
    told = {"pods": len(use.pods), "units": units, "percent": use.core_percent}
    return {"door": AllocationApi.DRA.value} | ({"claimed": told} if use.pods else {})


def _replicas(uuid: str, replicas: Mapping[str, int]) -> dict[str, object]:
    return {"replicas": replicas[uuid]} if replicas.get(uuid, 1) > 1 else {}


def withdrawn_annotation(mark: str, kept: Sequence[str]) -> str:
    """An agent's answer to the mark, as compact JSON.

    `kept` are pods whose files stay, because they are running.
    """
    return compact({"version": WITHDRAWN_VERSION, "mark": mark, "kept": sorted(kept)})


def kept_pods(text: str, mark: str) -> tuple[str, ...] | None:
    """The pods whose files stay, or None where `text` is no answer to this mark.

    >>> kept_pods(withdrawn_annotation("u1", ["default/p"]), "u1")
    ('default/p',)
    >>> kept_pods(withdrawn_annotation("u1", []), "u2") is None
    True
    """
    plain = json_object(text)
    kept = plain.get("kept")
    if plain.get("mark") != mark or not isinstance(kept, list):
        return None
    return tuple(str(pod) for pod in kept)


def counted_unit_mib(text: str) -> int | None:
    """The memory unit of a node, by its annotation of cards; None if that does not say.

    >>> counted_unit_mib('{"version":1,"unit_mib":1024}')
    1024
    """
    found = json_object(text).get("unit_mib")
    return found if isinstance(found, int) else None


def served_mode(text: str) -> str:
    """The mode of a node, by its annotation of cards; empty if that does not say."""
    return str(json_object(text).get("mode", ""))


def holds_by_claims(text: str) -> bool:
    """Whether pods hold cards of a node by claims, by its annotation of cards.

    >>> holds_by_claims('{"cards":[{"claimed":{"pods":2,"units":4,"percent":60}},{}]}')
    True
    """
    cards = json_object(text).get("cards")
    return isinstance(cards, list) and any(
        "claimed" in card for card in cards if isinstance(card, dict)
    )


def json_object(text: str, most_characters: int = sys.maxsize) -> Mapping[str, object]:
    """What a JSON object says; empty where it is none, or longer."""
    try:
        plain: object = json.loads(text) if len(text) <= most_characters else None
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def compact(plain: object) -> str:
    """JSON without spaces."""
    return json.dumps(plain, separators=(",", ":"))
