"""Annotations, by which parts of the system communicate: a node's cards, a pod's slice."""

import json
from collections.abc import Mapping, Sequence

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.node_state import NodeTerms

CARDS_ANNOTATION = "gpu-device-plugin/cards"
CARDS_VERSION = 1
UNINSTALL_ANNOTATION = "gpu-device-plugin/uninstall"
"""Marks a node for the agents of one installation. Its value is the uid of their DaemonSet, so
that the mark of an earlier installation has no effect on a later one."""
WITHDRAWN_ANNOTATION = "gpu-device-plugin/withdrawn"
WITHDRAWN_VERSION = 1


def cards_annotation(cards: Sequence[Card], healthy: Mapping[str, bool], terms: NodeTerms) -> str:
    """The node's cards for schedulers, tools and people, as compact JSON.

    Args:
        cards: The node's cards.
        healthy: UUID -> whether the card may serve.
        terms: The node's mode and unit.
    """
    return compact(
        {
            "version": CARDS_VERSION,
            "mode": terms.mode,
            "unit_mib": terms.unit.mib,
            "cards": [
                {
                    "index": card.index,
                    "uuid": card.uuid,
                    "model": card.model,
                    "memory_mib": card.memory_mib,
                    "units": card.capacity(terms.unit),
                    "healthy": healthy.get(card.uuid, False),
                }
                for card in sorted(cards, key=lambda card: card.index)
            ],
        }
    )


def withdrawn_annotation(mark: str, kept: Sequence[str]) -> str:
    """An agent's answer to the mark, as compact JSON.

    Args:
        mark: The mark that is answered.
        kept: Pods whose files stay, because they are running.
    """
    return compact({"version": WITHDRAWN_VERSION, "mark": mark, "kept": sorted(kept)})


def kept_pods(text: str, mark: str) -> tuple[str, ...] | None:
    """The pods whose files stay, or None where `text` is no answer to this mark.

    >>> kept_pods(withdrawn_annotation("u1", ["default/p"]), "u1")
    ('default/p',)
    >>> kept_pods(withdrawn_annotation("u1", []), "u2") is None
    True
    """
    plain = _object(text)
    kept = plain.get("kept")
    if plain.get("mark") != mark or not isinstance(kept, list):
        return None
    return tuple(str(pod) for pod in kept)


def counted_unit_mib(text: str) -> int | None:
    """The memory unit of a node, by its annotation of cards; None if that does not say.

    >>> counted_unit_mib('{"version":1,"unit_mib":1024}')
    1024
    """
    found = _object(text).get("unit_mib")
    return found if isinstance(found, int) else None


def served_mode(text: str) -> str:
    """The mode of a node, by its annotation of cards; empty if that does not say."""
    return str(_object(text).get("mode", ""))


def _object(text: str) -> Mapping[str, object]:
    try:
        plain: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def compact(plain: object) -> str:
    """JSON without spaces."""
    return json.dumps(plain, separators=(",", ":"))
