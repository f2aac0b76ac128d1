"""What slices use, from the agents' metrics pages or from Prometheus."""

import asyncio
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.prometheus import instant_query
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPod

PREFIX = "gpu_device_plugin_slice_"
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
    found = await instant_query(survey.api, prometheus, f'{{__name__=~"{PREFIX}.+"}}')
    return slices((labels.get("__name__", ""), labels, value) for labels, value in found)


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
        field = _FIELDS.get(name.removeprefix(PREFIX))
        if field is None or not name.startswith(PREFIX) or not math.isfinite(value):
            continue
        where = node or own_label(labels, "node")
        namespace, pod, container, card = (own_label(labels, key) for key in _KEYS)
        key = (where, namespace, pod, container, card)
        use = found.get(key) or SliceUse(*key)
        by = "/".join(dict.fromkeys(labels.get(each, "") for each in ("memory", "compute")))
        found[key] = replace(use, **{field: by if field == "enforcers" else value})  # type: ignore[arg-type]
    return tuple(sorted(found.values(), key=lambda use: (use.namespace, use.pod, use.container)))


def own_label(labels: Mapping[str, str], key: str) -> str:
    """Prometheus renames our labels that its scrape configuration has too."""
    return labels.get(f"exported_{key}", labels.get(key, ""))
