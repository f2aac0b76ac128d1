"""PodDisruptionBudgets: which evictions they allow, as kube-scheduler counts them."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import structlog

from gpu_device_plugin.controller.preemption import CountBroken
from gpu_device_plugin.domain.models.label_selector import LabelSelector
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import list_items
from gpu_device_plugin.kubernetes.client.reflector import Reflection, Source, listen_by_key
from gpu_device_plugin.kubernetes.client.wire import Bare

_PATH = "/apis/policy/v1/poddisruptionbudgets"
_SECONDS = 1.0
"""For all questions about one pod: kube-scheduler waits."""
_MOST = 32
"""Budgets that are looked into for one pod; the pods of a namespace with more count as kept."""
_log = structlog.get_logger("budgets")


class _Spec(msgspec.Struct):
    selector: LabelSelector | None = None


class _Status(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0


class Budget(Bare):
    """A PodDisruptionBudget."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class DisruptionBudgets:
    """Follows all of them; whom they select is asked when a pod has to be evicted.

    Labels of all pods would be as much memory as all that is known of them.
    """

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self.found: dict[str, Budget] = {}
        listener = listen_by_key(_key, lambda: self.found, self._put, self._drop)
        self.reflection = Reflection(api, Source(_PATH, "", is_optional=True), Budget, listener)

    def _put(self, budget: Budget) -> None:
        self.found[_key(budget)] = budget

    def _drop(self, key: str) -> None:
        self.found.pop(key, None)

    async def of(self, pods: Collection[PodRef]) -> CountBroken:
        """How many of evictions among these pods are not allowed.

        Pods whose budgets nobody tells count as kept by one that allows nothing.
        """
        spaces = {ref.namespace for ref in pods}
        budgets = [
            b for b in self.found.values() if b.spec.selector and b.metadata.namespace in spaces
        ]
        looked_into = budgets[:_MOST]
        unknown = {budget.metadata.namespace for budget in budgets[_MOST:]}
        if not self.reflection.is_synced:
            unknown |= spaces
        members: dict[str, list[str]] = {}
        try:
            async with asyncio.timeout(_SECONDS):
                selected = await asyncio.gather(*map(self._selected, looked_into))
        except (ClusterError, TimeoutError) as error:
            _log.warning("budgets not known", error=str(error) or "no answer in time")
            selected = []
            unknown |= {budget.metadata.namespace for budget in looked_into}
        for budget, uids in zip(looked_into, selected, strict=False):
            for uid in uids:
                members.setdefault(uid, []).append(_key(budget))
        allowed = {_key(b): b.status.disruptions_allowed for b in looked_into}
        return lambda evicted: _count_broken(evicted, members, allowed, unknown)

    async def _selected(self, budget: Budget) -> Sequence[str]:
        path = f"/api/v1/namespaces/{budget.metadata.namespace}/pods"
        query = {"labelSelector": str(budget.spec.selector)}
        return [pod.metadata.uid async for pod in list_items(self._api, path, Bare, query)]


def _key(budget: Budget) -> str:
    return f"{budget.metadata.namespace}/{budget.metadata.name}"


def _count_broken(
    evicted: Iterable[PodRef],
    members: Mapping[str, Sequence[str]],
    allowed: Mapping[str, int],
    unknown: Collection[str],
) -> int:
    """Evictions beyond what each pod's budgets allow, one after the other."""
    used: Counter[str] = Counter()
    broken = 0
    for ref in evicted:
        budgets = members.get(ref.uid, ())
        used.update(budgets)
        is_over = any(used[each] > allowed[each] for each in budgets)
        broken += is_over or ref.namespace in unknown
    return broken
