"""A slice that is resized while it runs: what is asked, what may be done of it now, and the answer.

Both are annotations of the pod. Its tenant writes what is asked, `main=mem:4,core:50,within:60s`; the
agent of its node answers. The request of the pod spec stays what schedulers count, so it stays reserved.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, Units
from gpu_device_plugin.domain.fractions.fraction import (
    extra_of,
    fraction_of,
    limit_of,
    request_of,
    with_limit,
)
from gpu_device_plugin.domain.fractions.pod_annotations import (
    GROWTH,
    MOST_ANSWERED,
    MOST_ASKED,
    RESIZE,
    PodHold,
)
from gpu_device_plugin.domain.fractions.request_rules import CORE_STEP_PERCENT, MOST_CONTAINERS
from gpu_device_plugin.domain.fractions.room import room_of
from gpu_device_plugin.domain.fractions.units import (
    CORE_UNITS_PER_CARD,
    Resource,
    pick_units,
    unit_ids,
    units_of,
)
from gpu_device_plugin.domain.grants.grant import Grant, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import DeviceUse, Ledger
from gpu_device_plugin.domain.grants.node_annotations import MOST_AMOUNT
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.wording import count_noun, few
from gpu_device_plugin.errors import DoesNotFitError, RequestError, clip

_Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST_AMOUNT)]
_FORMS = {
    RESIZE: 'main=mem:4,core:50,within:60s, with ";" between containers',
    GROWTH: "mem:8,core:100",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9})([smh])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class AskedSize:
    """What one container asks for; None leaves what it has.

    Attributes:
        units: Memory units over all of its cards, as in a request.
        percent: Of one card's compute.
        within_seconds: How long it waits; None for as long as it takes.
    """

    units: Units | None = None
    percent: int | None = None
    within_seconds: int | None = None

    def over(self, now: UnitsAndPercent) -> UnitsAndPercent:
        """What it is to have, where it has `now`."""
        return UnitsAndPercent(
            now.units if self.units is None else self.units,
            now.percent if self.percent is None else self.percent,
        )


def parse_resize(text: str) -> Mapping[str, AskedSize]:
    """What each container asks for, by its name; RequestError says what is wrong.

    >>> parse_resize("main=mem:4,core:50,within:1m;side=core:5")["main"]
    AskedSize(units=4, percent=50, within_seconds=60)
    """
    if len(text) > MOST_ASKED:
        raise _not_understood(f"{len(text)} characters", f"at most {MOST_ASKED} are read")
    found: dict[str, AskedSize] = {}
    for part in text.split(";"):
        name, _, amounts = part.partition("=")
        if not _NAME.fullmatch(name) or name in found:
            raise _not_understood(part, "each container is named once")
        found[name] = _asked(part, amounts)
    if len(found) > MOST_CONTAINERS:
        raise _not_understood(f"{len(found)} containers", f"a pod has at most {MOST_CONTAINERS}")
    return found


def understood(text: str) -> Mapping[str, AskedSize]:
    """The same of any text; nothing where it is not understood."""
    try:
        return parse_resize(text)
    except RequestError:
        return {}


def parse_growth(text: str) -> UnitsAndPercent:
    """What grown slices of a namespace may have beyond their requests on each node, by its annotation.

    >>> parse_growth("mem:8,core:100")
    UnitsAndPercent(units=8, percent=100)
    """
    return _asked(text, text, GROWTH).over(UnitsAndPercent()) if text else UnitsAndPercent()


def _asked(part: str, amounts: str, annotation: str = RESIZE) -> AskedSize:
    reads = {"mem": _number, "core": _number}
    if annotation == RESIZE:
        reads["within"] = _seconds
    given: dict[str, int] = {}
    for each in amounts.split(","):
        key, _, value = each.partition(":")
        read = reads.get(key)
        number = read(value) if read else None
        if number is None or key in given:
            raise _not_understood(part, f'"{clip(each)}" is no amount', annotation)
        given[key] = number
    if given.keys() <= {"within"}:
        raise _not_understood(part, "neither mem nor core is named", annotation)
    units = Units(given["mem"]) if "mem" in given else None
    return AskedSize(units, given.get("core"), given.get("within"))


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _seconds(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def _not_understood(part: str, why: str, annotation: str = RESIZE) -> RequestError:
    return RequestError(
        f'annotation {annotation}: "{clip(part)}" is not understood: {why}; write for instance '
        f"{_FORMS[annotation]}",
        reason="BadResize",
    )


def resize_text(asked: Mapping[str, AskedSize]) -> str:
    """The annotation's value.

    >>> resize_text({"main": AskedSize(Units(4), 50, 60), "side": AskedSize(percent=5)})
    'main=mem:4,core:50,within:60s;side=core:5'
    """
    return ";".join(f"{name}={_amounts_text(each)}" for name, each in asked.items())


def asked_still(before: str, now: str) -> set[str]:
    """The containers that ask the same as before, word for word."""
    return {part.partition("=")[0] for part in {*before.split(";")} & {*now.split(";")}}


def _amounts_text(asked: AskedSize) -> str:
    within = None if asked.within_seconds is None else f"{asked.within_seconds}s"
    amounts = {"mem": asked.units, "core": asked.percent, "within": within}
    return ",".join(f"{key}:{value}" for key, value in amounts.items() if value is not None)


class SliceSizes(NamedTuple):
    """A slice's sizes: memory units over all its cards, and percent of each.

    Attributes:
        request: What its pod's spec asks for, which stays reserved while the pod lives.
        booked: What counts as held of its cards: never less than the request.
        limit: What it may use: never more than is booked.
    """

    request: UnitsAndPercent
    booked: UnitsAndPercent
    limit: UnitsAndPercent

    @property
    def grown(self) -> UnitsAndPercent:
        """What it has beyond its request."""
        return self.booked.less(self.request)

    def is_more_than(self, target: UnitsAndPercent) -> bool:
        """Whether more is booked than a slice of that size needs."""
        return self.booked.less(_larger(self.request, target)) != UnitsAndPercent()

    def missing(self, target: UnitsAndPercent) -> UnitsAndPercent:
        """What has to be free beside what is booked, before it can have `target`."""
        return target.less(self.booked)

    def towards(self, target: UnitsAndPercent, used: Units) -> "SliceSizes":
        """The next step to `target`, each durable before the one after it; the same where none is left.

        Growing is booked, and the limits file tells of it then. Shrinking is forbidden first and given
        back when no more than what stays booked is in use. What is missing must be free.
        """
        needed = _larger(self.request, target)
        if self.limit != target:
            return self._replace(booked=_larger(self.booked, needed), limit=target)
        units = needed.units if used <= needed.units else self.booked.units
        return self._replace(booked=UnitsAndPercent(units, needed.percent))


def _larger(one: UnitsAndPercent, other: UnitsAndPercent) -> UnitsAndPercent:
    return one.plus(other.less(one))


def sizes_of(grant: Grant) -> SliceSizes:
    """What a grant's container asked for, has and may use."""
    request = request_of(grant)
    return SliceSizes(request, request.plus(extra_of(grant)), limit_of(grant))


def with_sizes(
    grant: Grant, sizes: SliceSizes, cards: Sequence[Card], others: frozenset[str]
) -> Grant | None:
    """The grant with these sizes, and as many ids of its cards beside its own; None where `others` have them."""
    before, extra = grant.resized, dict[str, tuple[str, ...]]()
    unit = fraction_of(grant).unit
    for resource, size in ((Resource.MEM, sizes.grown.units), (Resource.CORE, sizes.grown.percent)):
        held = before.extra.get(resource, ()) if before else ()
        found = held
        if size > len(held):
            ids = (
                t for c in cards for t in unit_ids(resource, c.number, units_of(c, resource, unit))
            )
            found = tuple(text for text in ids if text in held or text not in others)
        chosen = pick_units(resource, found, () if size < len(held) else held, cards, size)
        if chosen is None:
            return None
        extra |= {resource: chosen} if chosen else {}
    return with_limit(grant, sizes.limit, extra)


def growth_room(
    grant: Grant, ledger: Ledger, state: NodeState, waiting: Iterable[PodHold]
) -> tuple[UnitsAndPercent, str]:
    """What a slice may take more, over all its cards, and who has the rest; `waiting` pods are bound here without a grant."""
    use, blank = ledger.use(), DeviceUse()
    cards = [card for card in map(state.card, grant.devices) if card is not None]
    found, coming = [], list(waiting)
    for card in cards:
        healthy = state.healthy.get(card.uuid, False) and not state.mark
        room = room_of(
            card, use.get(card.uuid, blank), state.terms, is_healthy=healthy, pod=grant.pod
        )
        free = UnitsAndPercent(room.free_mem, room.free_core) if healthy else UnitsAndPercent()
        for hold in coming:
            demands = (demand.amounts_per_card for demand in hold.unplaced)
            for part in (hold.by_card().get(card.index, UnitsAndPercent()), *demands):
                free = free.less(part)
        found.append(free)
    if len(cards) < len(grant.devices) or not found:
        return UnitsAndPercent(), "a card of it is away"
    mine = [g for g in ledger.grants.values() if not {*g.devices}.isdisjoint(grant.devices)]
    names = [f"pod {g.pod} {size_text(sizes_of(g).booked, fraction_of(g).unit)}" for g in mine]
    names += [f"pod {hold.pod}, which is bound here," for hold in coming]
    units = Units(min(each.units for each in found) * len(cards))
    return UnitsAndPercent(units, min(each.percent for each in found)), f"held by {few(names)}"


def size_text(size: UnitsAndPercent, unit: MemoryUnit) -> str:
    """An amount for people.

    >>> size_text(UnitsAndPercent(Units(4), 50), MemoryUnit.GIB)
    '4 units of 1024 MiB and 50 % compute'
    """
    units = f"{count_noun(size.units, 'unit')} of {unit.mib} MiB" if size.units else ""
    percent = f"{size.percent} % compute" if size.percent else ""
    return " and ".join(filter(None, (units, percent))) or "nothing"


@dataclass(frozen=True, slots=True)
class ResizedSlice:
    """A slice as the rules see it; `subject` begins its refusal.

    Attributes:
        cards: How many cards it is on, in equal parts.
        card_units: Memory units of the smallest of them.
        divides_compute: Whether slices of its mode have percent.
        fixed: Why its size cannot change at all; or "".
    """

    subject: str
    sizes: SliceSizes
    unit: MemoryUnit = MemoryUnit.GIB
    cards: int = 1
    card_units: Units = Units(0)
    divides_compute: bool = True
    fixed: str = ""


def why_fixed(grant: Grant, *, follows_limits: bool) -> str:
    """Why the size of a slice cannot change; `follows_limits`: its library reads its limits again."""
    if grant.holder.kind is ContainerKind.INIT:
        return "an init container ends by itself; name another container"
    if not grant.is_isolated:
        return "nothing limits its slice (mode share, isolation off, or CGPU_DISABLE)"
    if not follows_limits:
        return f"its isolation library {grant.library_version} reads its limits once; create the pod again"
    return ""


def kept_text(of: ResizedSlice, sizes: SliceSizes, used: Units) -> str:
    """Why a slice which shrank keeps more than it may use, for people."""
    amounts = sizes.limit, sizes.booked, UnitsAndPercent(used)
    limit, booked, uses = (size_text(each, of.unit) for each in amounts)
    is_free = used <= _larger(sizes.request, sizes.limit).units
    until = "the next decision" if is_free else "it uses less"
    return f"{of.subject} may use {limit}, and uses {uses}; {booked} are kept for it until {until}"


class _NeverValid(NamedTuple):
    """Why a resize can never be."""

    refuses: object
    reason: str
    text: str


def check_resize(of: ResizedSlice, asked: AskedSize) -> UnitsAndPercent:
    """What the slice is to have; RequestError where it can never have it."""
    target, percent = asked.over(of.sizes.limit), asked.percent
    steps = range(CORE_STEP_PERCENT, CORE_UNITS_PER_CARD + 1, CORE_STEP_PERCENT)
    too_large = f"its card has {of.card_units} units of {of.unit.mib} MiB, and a slice stays there"
    each = size_text(UnitsAndPercent(Units(of.cards)), of.unit)
    uneven = f"it is on {of.cards} cards; ask a multiple of {each}"
    one = size_text(UnitsAndPercent(Units(1)), of.unit)
    no_compute = percent is not None and not of.divides_compute
    rules = (
        _NeverValid(of.fixed, reason="NotResizable", text=of.fixed),
        _NeverValid(
            no_compute, reason="ComputeNotServed", text="this mode does not divide compute; ask mem"
        ),
        _NeverValid(
            percent is not None and percent not in steps,
            reason="BadPercentage",
            text="the percentage must be one of 5, 10, ... 100",
        ),
        _NeverValid(not target.units, reason="BadAmount", text=f"memory must be {one} or more"),
        _NeverValid(target.units % of.cards, reason="UnevenShare", text=uneven),
        _NeverValid(
            target.units // of.cards > of.card_units, reason="LargerThanCard", text=too_large
        ),
    )
    for rule in rules:
        if rule.refuses:
            raise RequestError(f"{_asking(of, target)}: {rule.text}", reason=rule.reason)
    return target


def check_growth(  # noqa: PLR0913, PLR0917 - each amount is of another
    of: ResizedSlice,
    target: UnitsAndPercent,
    allowed: UnitsAndPercent,
    others: UnitsAndPercent,
    free: UnitsAndPercent,
    holders: str,
) -> None:
    """Raise RequestError where its namespace may never have so much more; DoesNotFitError where it has to wait.

    `allowed` is what grown slices of its namespace may have together here beyond their requests,
    `others` what others of them have. `free` is over all its cards, and `holders` says who has the rest.
    """
    missing, grown = of.sizes.missing(target), target.less(of.sizes.request)
    if missing == UnitsAndPercent():
        return
    subject, unit = _asking(of, target), of.unit
    beyond = f"{size_text(grown, unit)} beyond its request; its namespace is allowed {size_text(allowed, unit)} on a node"
    if grown.less(allowed) != UnitsAndPercent():
        raise RequestError(f"{subject}, {beyond}", reason="GrowthNotAllowed")
    if grown.plus(others).less(allowed) != UnitsAndPercent():
        text = f"{subject}, {beyond}, and other slices of it have {size_text(others, unit)}"
        raise DoesNotFitError(text, reason="GrowthNotAllowed")
    if missing.less(free) != UnitsAndPercent():
        text = f"{size_text(missing, unit)} more needed, {size_text(free, unit)} free on its card"
        raise DoesNotFitError(f"{subject}: {text}; {holders}", reason="NoRoom")


def _asking(of: ResizedSlice, target: UnitsAndPercent) -> str:
    return f"{of.subject} asks to have {size_text(target, of.unit)} instead of {size_text(of.sizes.limit, of.unit)}"


class ResizeState(StrEnum):
    """How far a resize has come."""

    DONE = "done"
    WAITS = "waits"
    REFUSED = "refused"
    """It ended: it can never be, or was not within the time."""


class ContainerAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a container has now: `mem` units and `core` percent.

    `since` is when the state became what it is, by the wall clock. `text` says what it waits for, or
    why it was refused.
    """

    mem: _Amount
    core: _Amount
    state: ResizeState
    since: Annotated[str, msgspec.Meta(max_length=32)] = ""
    text: str = ""


class ResizeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent says about a pod's resize.

    `asked` is the annotation that it answers, as it was written, or "" for one that is not understood.
    `text` says why that was refused as a whole.
    """

    asked: Annotated[str, msgspec.Meta(max_length=MOST_ASKED)]
    unit_mib: _Amount
    containers: Annotated[dict[str, ContainerAnswer], msgspec.Meta(max_length=MOST_CONTAINERS)] = {}
    text: str = ""


def resized_annotation(answer: ResizeAnswer) -> str:
    """The annotation's value, as compact JSON.

    >>> has = ContainerAnswer(4, 50, ResizeState.DONE, "2026-11-30T17:00:00Z")
    >>> resized_annotation(ResizeAnswer("main=mem:4", 1024, {"main": has}))
    '{"asked":"main=mem:4","unit_mib":1024,"containers":{"main":{"mem":4,"core":50,"state":"done","since":"2026-11-30T17:00:00Z"}}}'
    """
    text = msgspec.json.encode(answer).decode()
    if len(text) <= MOST_ANSWERED:
        return text
    shorten = partial(msgspec.structs.replace, text="", since="")
    short = {name: shorten(of) for name, of in answer.containers.items()}
    return msgspec.json.encode(msgspec.structs.replace(answer, containers=short)).decode()


def parse_resized(text: str) -> ResizeAnswer | None:
    """What the agent said; None where `text` is none that an agent writes."""
    try:
        return msgspec.json.decode(text[:MOST_ANSWERED], type=ResizeAnswer)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
