"""What pods hold by namespace or team: counted now, kept for an hour as long as somebody notes it, and of a day by Prometheus."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.kubernetes.objects.prometheus import query_past
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.overview.node_cards import NodeCards
from gpu_device_plugin.overview.slice_use import PREFIX, own_label

GroupOf = Callable[[PodRef], str]
_NAMESPACE: GroupOf = attrgetter("namespace")
MOST_NAMESPACES = 50
_MINUTES = 60
_WIDTH, _HEIGHT = 60, 16
_DAY_STEP_SECONDS = 24 * 60


@dataclass(frozen=True, slots=True)
class NamespaceTotal:
    """What pods hold: MiB of slices, percent of cards' compute, and cards, replicas and instances as a whole."""

    pods: frozenset[PodRef] = frozenset()
    mib: int = 0
    percent: int = 0
    devices: int = 0

    @property
    def gib(self) -> str:
        return f"{self.mib / 1024:.0f}"

    @property
    def cards(self) -> str:
        return f"{self.percent / 100:.1f}"


def team_of(labels: Mapping[str, str] | None, key: str) -> str:
    """The team of a pod: the value of its label `key`, or `no KEY` without one."""
    return (labels or {}).get(key) or f"no {key}"


def held_on(view: NodeCards, group_of: GroupOf = _NAMESPACE) -> Mapping[str, NamespaceTotal]:
    """What the pods of each group hold of a node; one whose pods only wait for it holds nothing."""
    parts = [(group_of(pod), NamespaceTotal()) for pod in view.pods]
    for each in (holder for card in view.cards for holder in card.holders):
        held = NamespaceTotal(frozenset({each.pod}), each.units * view.unit_mib, each.percent)
        parts.append((group_of(each.pod), held))
    whole = chain(*(card.pods for card in view.cards), *view.instances.values())
    parts += [(group_of(pod), NamespaceTotal(frozenset({pod}), devices=1)) for pod in whole]
    return _sums(parts)


def totals(by_node: Iterable[Mapping[str, NamespaceTotal]]) -> Mapping[str, NamespaceTotal]:
    """Over all nodes, by group, who holds most first."""
    found = _sums(part for node in by_node for part in node.items())
    return dict(sorted(found.items(), key=lambda each: (-each[1].mib, -each[1].devices, each[0])))


def sum_of(found: Mapping[str, NamespaceTotal]) -> NamespaceTotal:
    """What all groups hold together."""
    return _sums(("all", held) for held in found.values()).get("all", NamespaceTotal())


def _sums(parts: Iterable[tuple[str, NamespaceTotal]]) -> Mapping[str, NamespaceTotal]:
    by_group: dict[str, list[NamespaceTotal]] = {}
    for name, part in parts:
        by_group.setdefault(name, []).append(part)
    return {
        name: NamespaceTotal(
            frozenset[PodRef]().union(*(each.pods for each in found)),
            sum(each.mib for each in found),
            sum(each.percent for each in found),
            sum(each.devices for each in found),
        )
        for name, found in by_group.items()
    }


class History:
    """The memory that namespaces, or teams, held in each minute of the last hour, of at most `MOST_NAMESPACES` each."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Mapping[str, int]]] = deque(maxlen=_MINUTES)

    def note(self, seconds: float, found: Mapping[str, NamespaceTotal]) -> None:
        """What they hold now, who holds most first, by a clock that never jumps; a later word in the same minute counts."""
        minute = int(seconds // 60)
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes.pop()
        kept = islice(found.items(), MOST_NAMESPACES)
        self._minutes.append((minute, {name: held.mib for name, held in kept}))

    def line(self, namespace: str) -> str:
        """Points of an SVG polyline of 60 by 16, a minute a step to the right; the highest is the top."""
        now = self._minutes[-1][0] if self._minutes else 0
        past = ((m, held.get(namespace, 0)) for m, held in self._minutes if m > now - _MINUTES)
        return _line([(_WIDTH - (now - m), mib) for m, mib in past])


def _line(past: Sequence[tuple[int, int]]) -> str:
    """Level until the next point: nothing was drawn because nothing changed. Begins a step before the first."""
    most = max((amount for _, amount in past), default=0) or 1
    points = [(x, _HEIGHT - _HEIGHT * amount // most) for x, amount in past]
    corners = [(x - 1, y) for x, y in points[:1]]
    for x, y in points:
        corners += [(x, corners[-1][1]), (x, y)]
    return " ".join(f"{x},{y}" for x, y in corners)


async def last_day(survey: Survey, prometheus: str) -> Mapping[str, str]:
    """Namespace -> the memory of its slices as in `History.line`, a step for 24 minutes."""
    query = f"sum by (namespace, exported_namespace) ({PREFIX}memory_limit_bytes)[1d:24m]"
    found = await query_past(survey.api, prometheus, query)
    now = max((at for _, past in found for at, _ in past), default=0.0)
    lines = {}
    for labels, past in found:
        known = ((at, round(value)) for at, value in past if math.isfinite(value))
        places = [(round(_WIDTH - (now - at) / _DAY_STEP_SECONDS), value) for at, value in known]
        lines[own_label(labels, "namespace")] = _line(places)
    return lines
