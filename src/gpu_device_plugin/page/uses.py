"""What slices use, by Prometheus: asked again and again, for bars and lines of the page."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_device_plugin.domain.node.pods import PodKey, PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.survey import Survey
from gpu_device_plugin.overview.slice_use import SliceUse, from_prometheus
from gpu_device_plugin.overview.totals import last_day

_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class PodUse:
    """What a pod uses: percent of its slice's memory and of the card's time; None while it is not known."""

    memory: int | None = None
    compute: int | None = None


UseOf = Callable[[PodRef, int], PodUse]


_NONE = "not shown: start the page with `--prometheus`"
_MIB = 1024 * 1024
_DAY_SECONDS = 600.0


class Uses:
    """Asks Prometheus again and again.

    Attributes:
        trouble: Why there is no use to show, or "".
        days: What namespaces held in the last day, as lines (`last_day`); asked for every ten minutes.
    """

    def __init__(self, survey: Survey, prometheus: str, every_seconds: float) -> None:
        """`prometheus` is as `instant_query` takes it; empty for none."""
        self.trouble = "Prometheus has not answered yet" if prometheus else _NONE
        self._survey, self._prometheus, self._every_seconds = survey, prometheus, every_seconds
        self._by_pod: dict[PodKey, tuple[SliceUse, ...]] = {}
        self.days: Mapping[str, str] = {}
        self._days_until = 0.0

    @property
    def is_wanted(self) -> bool:
        return bool(self._prometheus)

    def of_pod(self, namespace: str, name: str) -> Sequence[SliceUse]:
        """What each container uses of each card; empty where that is not known."""
        return self._by_pod.get((namespace, name), ())

    def of_slice(self, pod: PodRef, card: int) -> PodUse:
        """What a pod uses of its slice of a card, over all containers."""
        found = [use for use in self._by_pod.get(pod.key, ()) if use.card == str(card)]
        used = [use.used_bytes for use in found if use.used_bytes is not None]
        busy = [use.used_ratio for use in found if use.used_ratio is not None]
        limit = sum(use.limit_bytes for use in found if use.used_bytes is not None)
        memory = _percent(sum(used) / limit) if used and limit else None
        return PodUse(memory, _percent(sum(busy)) if busy else None)

    async def run(self, changed: Callable[[set[PodKey]], None]) -> None:
        """Ask until cancelled; `changed` gets the pods of which something else is known than before."""
        while self._prometheus:
            before, trouble = self._by_pod, self.trouble
            await self._ask()
            pods = before.keys() | self._by_pod.keys()
            moved = {pod for pod in pods if before.get(pod) != self._by_pod.get(pod)}
            if moved or trouble != self.trouble:
                changed(moved)
            await asyncio.sleep(self._every_seconds)

    async def _ask(self) -> None:
        try:
            found = await from_prometheus(self._survey, self._prometheus)
            if time.monotonic() >= self._days_until:
                self.days = await last_day(self._survey, self._prometheus)
                self._days_until = time.monotonic() + _DAY_SECONDS
        except ClusterError as error:
            if not self.trouble or not self._by_pod:
                _log.warning("use is not known", error=str(error))
            self._by_pod, self.trouble = {}, f"Prometheus gives no figures: {error}"
            return
        by_pod: dict[PodKey, list[SliceUse]] = {}
        for use in found:
            by_pod.setdefault((use.namespace, use.pod), []).append(use)
        self._by_pod = {key: tuple(uses) for key, uses in by_pod.items()}
        self.trouble = "" if found else "Prometheus knows no slice: does it scrape the agents?"


def use_lines(uses: Sequence[SliceUse]) -> list[dict[str, object]]:
    """For people: MiB and percent, as `story.html` shows them."""
    return [
        {
            "container": use.container,
            "card": use.card,
            "limit_mib": int(use.limit_bytes) // _MIB,
            "used_mib": None if use.used_bytes is None else int(use.used_bytes) // _MIB,
            "busy": None if use.used_ratio is None else _percent(use.used_ratio),
            "percent": int(use.percent),
            "refused": int(use.refused or 0),
        }
        for use in uses
    ]


def _percent(ratio: float) -> int:
    return round(100 * ratio)
