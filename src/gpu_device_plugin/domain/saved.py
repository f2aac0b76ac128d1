"""Health as plain values for the state file, so that it survives a restart of the agent.

Since when probes are clean is left out: nobody looks while the agent is away, so the next
run counts anew (`health.restored`). So is when a fault was last seen, which that count makes
idle: a card that repeats an XID a thousand times must not have its file written as often. And
so are faults that every inventory tells anew.
"""

from collections.abc import Mapping

from gpu_device_plugin.domain.faults import CardHealth, Fault, Health, Outage, Recovery
from gpu_device_plugin.errors import StateError

_VERSION = 1


def health_to_plain(health: Health) -> dict[str, object]:
    """Health as dictionaries, lists and words, as JSON knows them."""
    outage = health.outage
    return {
        "version": _VERSION,
        "boot_id": health.boot_id,
        "driver": health.driver,
        "outage": None if outage is None else {"reason": outage.reason, "text": outage.text},
        "cards": [
            {
                "uuid": card.uuid,
                "is_shown": card.is_shown,
                "faults": [
                    _fault_to_plain(fault)
                    for fault in card.faults
                    if fault.recovery is not Recovery.INVENTORY
                ],
            }
            for card in health.cards
        ],
    }


def health_from_plain(plain: object) -> Health:
    """What `health_to_plain` made. Raises StateError that names the wrong key."""
    top = _table(plain, "health")
    if top.get("version") != _VERSION:
        raise StateError(f"health.version is {top.get('version')!r}, this agent reads {_VERSION}")
    outage = top.get("outage")
    cards = tuple(
        _card(card, f"health.cards[{place}]")
        for place, card in enumerate(_list(top.get("cards"), "health.cards"))
    )
    return Health(
        boot_id=_text(top, "boot_id", "health"),
        driver=_text(top, "driver", "health"),
        outage=None if outage is None else _outage(outage),
        cards=tuple(sorted(cards, key=lambda card: card.uuid)),
    )


def _fault_to_plain(fault: Fault) -> dict[str, object]:
    return {
        "reason": fault.reason,
        "text": fault.text,
        "recovery": fault.recovery.value,
        "since_seconds": fault.since_seconds,
        "is_action_asked": fault.is_action_asked,
    }


def _outage(plain: object) -> Outage:
    table = _table(plain, "health.outage")
    reason = _text(table, "reason", "health.outage")
    return Outage(reason, _text(table, "text", "health.outage"))


def _card(plain: object, path: str) -> CardHealth:
    table = _table(plain, path)
    faults = tuple(
        _fault(fault, f"{path}.faults[{place}]")
        for place, fault in enumerate(_list(table.get("faults"), f"{path}.faults"))
    )
    uuid = _text(table, "uuid", path)
    return CardHealth(uuid, faults, is_shown=_truth(table, "is_shown", path))


def _fault(plain: object, path: str) -> Fault:
    table = _table(plain, path)
    try:
        recovery = Recovery(_text(table, "recovery", path))
    except ValueError as error:
        raise StateError(f"{path}.recovery: {error}") from error
    since_seconds = _seconds(table, "since_seconds", path)
    return Fault(
        reason=_text(table, "reason", path),
        text=_text(table, "text", path),
        recovery=recovery,
        since_seconds=since_seconds,
        last_seconds=since_seconds,
        is_action_asked=_truth(table, "is_action_asked", path),
    )


def _table(plain: object, path: str) -> Mapping[str, object]:
    if not isinstance(plain, dict):
        raise StateError(f"{path} is {plain!r}, not a table")
    return plain


def _list(plain: object, path: str) -> list[object]:
    if not isinstance(plain, list):
        raise StateError(f"{path} is {plain!r}, not a list")
    return plain


def _text(table: Mapping[str, object], key: str, path: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        raise StateError(f"{path}.{key} is {value!r}, not a text")
    return value


def _truth(table: Mapping[str, object], key: str, path: str) -> bool:
    value = table.get(key)
    if not isinstance(value, bool):
        raise StateError(f"{path}.{key} is {value!r}, neither true nor false")
    return value


def _seconds(table: Mapping[str, object], key: str, path: str) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StateError(f"{path}.{key} is {value!r}, not a number")
    return float(value)
