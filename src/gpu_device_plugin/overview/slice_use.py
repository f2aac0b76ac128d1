"""What slices use, from the agents' metrics pages or from Prometheus; and what pods hold by namespace or team.

That is counted now, and kept for an hour as long as somebody notes it.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.prometheus import instant_query, query_past
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod
from gpu_device_plugin.overview.node_cards import NodeCards

_PREFIX = "gpu_device_plugin_slice_"
_FIELDS: Mapping[str, str] = {
    "memory_limit_bytes": "limit_bytes",
    "memory_used_bytes": "used_bytes",
    "core_percent": "percent",
    "core_used_ratio": "used_ratio",
    "refused_total": "refused",
    "enforcers": "enforcers",
}
_KEYS = ("namespace", "pod", "container", "card")
_SERIES = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_AT_ONCE = 16

GroupOf = Callable[[PodRef], str]
_NAMESPACE: GroupOf = attrgetter("namespace")


@dataclass(frozen=True, slots=True)
class SliceUse:
    """A container's slice of a card.

    Attributes:
        node: Where it runs; empty where Prometheus does not say.
        card: NVML's index of the card.
        limit_bytes: Memory that it may use.
        percent: Percent of the card's compute that it may use; 0 is no cap.
        used_ratio: Share of the card's time that it had of late; None while that is not known.
        refused: Allocations that were refused because the slice was full; None as above.
        enforcers: Who holds it to memory and compute, `driver/library`, or one name for both; empty where that is not told.
    """

    node: str
    namespace: str
    pod: str
    container: str
    card: str
    limit_bytes: float = 0
    percent: float = 0
    used_bytes: float | None = None
    used_ratio: float | None = None
    refused: float | None = None
    enforcers: str = ""


async def from_agents(
    survey: Survey, agents: Iterable[SurveyedPod]
) -> tuple[tuple[SliceUse, ...], tuple[str, ...]]:
    """Every slice, and for each agent that could not be asked its name and why."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(agent: SurveyedPod) -> tuple[SliceUse, ...] | str:
        async with gate:
            try:
                page = await survey.metrics(agent)
            except ClusterError as error:
                return f"{agent.spec.node_name}: {error}"
        found = slices(series(page), agent.spec.node_name)
        # One that has just started does not know yet what is held.
        return (
            found if found or agent.is_ready else f"{agent.spec.node_name}: its agent is not ready"
        )

    found = await asyncio.gather(*(ask(agent) for agent in agents))
    uses = tuple(use for each in found if not isinstance(each, str) for use in each)
    return uses, tuple(each for each in found if isinstance(each, str))


async def from_prometheus(survey: Survey, prometheus: str) -> tuple[SliceUse, ...]:
    """Every slice, by Prometheus: its address, or NAMESPACE/SERVICE:PORT."""
    found = await instant_query(survey.api, prometheus, f'{{__name__=~"{_PREFIX}.+"}}')
    return slices((labels.get("__name__", ""), labels, value) for labels, value in found)


async def last_day(survey: Survey, prometheus: str) -> Mapping[str, str]:
    """Namespace -> the memory of its slices as in `History.line`, a step for 24 minutes."""
    query = f"sum by (namespace, exported_namespace) ({_PREFIX}memory_limit_bytes)[1d:24m]"
    found = await query_past(survey.api, prometheus, query)
    now = max((at for _, past in found for at, _ in past), default=0.0)
    lines = {}
    for labels, past in found:
        known = ((at, round(value)) for at, value in past if math.isfinite(value))
        places = [(round(_WIDTH - (now - at) / _DAY_STEP_SECONDS), value) for at, value in known]
        lines[_label(labels, "namespace")] = _line(places)
    return lines


def series(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    r"""Name, labels and value of each series of a metrics page.

    >>> list(series('# HELP a b\nup{pod="p"} 1.0\n'))
    [('up', {'pod': 'p'}, 1.0)]
    """
    for line in page.splitlines():
        match = _SERIES.match(line)
        with suppress(ValueError):  # an agent's page has numbers only
            if match is not None:
                yield match[1], dict(_LABEL.findall(match[2])), float(match[3])


def slices(
    rows: Iterable[tuple[str, dict[str, str], float]], node: str = ""
) -> tuple[SliceUse, ...]:
    """The slices that these series tell of, by namespace and pod; what is no number is not known."""
    found: dict[tuple[str, ...], SliceUse] = {}
    for name, labels, value in rows:
        field = _FIELDS.get(name.removeprefix(_PREFIX))
        if field is None or not name.startswith(_PREFIX) or not math.isfinite(value):
            continue
        where = node or _label(labels, "node")
        namespace, pod, container, card = (_label(labels, key) for key in _KEYS)
        key = (where, namespace, pod, container, card)
        use = found.get(key) or SliceUse(*key)
        by = "/".join(dict.fromkeys(labels.get(each, "") for each in ("memory", "compute")))
        found[key] = replace(use, **{field: by if field == "enforcers" else value})  # type: ignore[arg-type]
    return tuple(sorted(found.values(), key=lambda use: (use.namespace, use.pod, use.container)))


def _label(labels: Mapping[str, str], key: str) -> str:
    """Prometheus renames our labels that its scrape configuration has too."""
    return labels.get(f"exported_{key}", labels.get(key, ""))


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
