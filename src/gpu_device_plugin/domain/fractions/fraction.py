"""What only this scheme knows of a grant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.units import Resource, foreign_ids
from gpu_device_plugin.domain.grants.grant import Grant, Resized, UnitsAndPercent
from gpu_device_plugin.domain.node.modes import NodeMode, is_isolated, parse_mode
from gpu_device_plugin.errors import StateError


@dataclass(frozen=True, slots=True)
class Fraction:
    """A grant in this scheme's units, with unit and mode when it was given.

    `mem_units` are as its pod asks, over all cards, `pod_units` of all app containers (`ALIYUN_COM_GPU_MEM_POD`).
    """

    mem_units: Units = Units(0)
    pod_units: Units = Units(0)
    unit_mib: MiB = MemoryUnit.GIB.mib
    mode: NodeMode = NodeMode.CORE_MEM

    @property
    def unit(self) -> MemoryUnit:
        return MemoryUnit.of_mib(self.unit_mib)


def fraction_of(grant: Grant) -> Fraction:
    """A grant in this scheme's units."""
    return grant.own if isinstance(grant.own, Fraction) else Fraction()


def extra_of(grant: Grant) -> UnitsAndPercent:
    """What a slice has beyond its request."""
    extra = grant.resized.extra if grant.resized else {}
    units, percent = (len(extra.get(each, ())) for each in (Resource.MEM, Resource.CORE))
    return UnitsAndPercent(Units(units), percent)


def request_of(grant: Grant) -> UnitsAndPercent:
    """What its pod asks for, over all cards."""
    return UnitsAndPercent(
        fraction_of(grant).mem_units, grant.core_percent - extra_of(grant).percent
    )


def limit_of(grant: Grant) -> UnitsAndPercent:
    """What it may use now, over all cards."""
    return grant.resized.limit if grant.resized else request_of(grant)


def units_per_card(grant: Grant) -> Units:
    """Memory units on each of its cards, as its pod asks."""
    return Units(fraction_of(grant).mem_units // max(1, len(grant.shares)))


def is_bare(grant: Grant) -> bool:
    """Whether the container has no cap although its mode has one."""
    return not grant.is_isolated and is_isolated(fraction_of(grant).mode)


def with_amounts(grant: Grant, own: Fraction, core_percent: int) -> Grant:
    """The grant of a request of these units; its shares count what they are, and what it has beyond that."""
    units, percent = UnitsAndPercent(own.mem_units, core_percent).plus(extra_of(grant))
    each_mib = MiB(units // max(1, len(grant.shares)) * own.unit_mib)
    shares = (replace(s, core_percent=percent, memory_mib=each_mib) for s in grant.shares)
    return replace(grant, own=own, shares=tuple(shares))


def with_limit(grant: Grant, limit: UnitsAndPercent, extra: Mapping[str, tuple[str, ...]]) -> Grant:
    """The grant with this limit, and these units beyond its request."""
    before = grant.resized or Resized(limit_of(grant))
    resized = Resized(limit, extra, before.revision + (limit != before.limit))
    percent = request_of(grant).percent
    return with_amounts(replace(grant, resized=resized), fraction_of(grant), percent)


def without_growth(grant: Grant) -> Grant:
    """The grant with its request, and a limit within it."""
    return with_limit(grant, limit_of(grant).at_most(request_of(grant)), {})


def with_amounts_read(grant: Grant, own: Fraction) -> Grant:
    """The grant as it counts on disk, where memory and percent are with what was grown.

    An agent that knows no resize may have written both without: it has its request, and a limit within both.
    """
    percent = grant.core_percent
    if (resized := grant.resized) is None:
        return with_amounts(grant, own, percent)
    units, percent = UnitsAndPercent(own.mem_units, percent).less(extra_of(grant))
    mem, core = (len(grant.ids(each)) for each in (Resource.MEM, Resource.CORE))
    own = replace(own, mem_units=Units(max(units, mem)))
    found = with_amounts(grant, own, max(percent, core))
    limit = resized.limit.at_most(request_of(found).plus(extra_of(found)))
    if limit == resized.limit:
        return found
    shares = tuple(replace(each, memory_bytes=None) for each in found.shares)
    return with_limit(replace(found, shares=shares), limit, resized.extra)


def to_record(grant: Grant) -> dict[str, object]:
    """Its keys in a grant on disk; memory as it counts, for agents that know no resize."""
    fraction = fraction_of(grant)
    return {
        "mem_units": fraction.mem_units + extra_of(grant).units,
        "pod_units": fraction.pod_units,
        "unit_mib": fraction.unit_mib,
        "mode": str(fraction.mode),
    }


def of_record(record: Mapping[str, object]) -> Fraction:
    """What a grant on disk says, by default for a missing key; StateError names the key of an unknown value."""
    mode = parse_mode(str(record.get("mode", NodeMode.CORE_MEM)))
    if mode is None:
        raise StateError(f"no node mode is named {record['mode']!r} - at `$.mode`")
    unit = MemoryUnit.of_mib(_count(record, "unit_mib", MemoryUnit.GIB.mib))
    units, pod_units = Units(_count(record, "mem_units")), Units(_count(record, "pod_units"))
    return Fraction(units, pod_units, unit.mib, mode)


def check_ids(units: Mapping[str, Sequence[str]]) -> None:
    """Raise StateError for an id that is none of its resource."""
    for name, ids in units.items():
        if odd := foreign_ids(name, ids):
            raise StateError(f"{odd} are no units of {name} - at `$.units`")


def _count(record: Mapping[str, object], key: str, default: int = 0) -> int:
    value = record.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise StateError(f"expected a whole number, got {value!r} - at `$.{key}`")
    return value
