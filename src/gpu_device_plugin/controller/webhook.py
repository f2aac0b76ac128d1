"""The webhook for pods: models, drivers and profiles by label."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from gpu_device_plugin.controller.model_rules import ModelRules
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.demands import COUNT_LABEL
from gpu_device_plugin.domain.fractions.foreign_resource_names import Dialect, translate_amounts
from gpu_device_plugin.domain.fractions.request_rules import MOST_CONTAINERS
from gpu_device_plugin.domain.models.pod_admission import Denied, admit
from gpu_device_plugin.errors import ClusterError, clip
from gpu_device_plugin.kubernetes.objects.admission_review import (
    ContainerResources,
    Review,
    allow_pod,
    deny_pod,
    patch_pod,
    read_review,
)

_log = structlog.get_logger("webhook")


@dataclass(eq=False)
class Webhook:
    """Answers what the API server asks before a pod is stored; it changes nothing by itself.

    `card_units` are the different numbers of units that cards of the cluster have.
    """

    rules: ModelRules
    dialects: Mapping[Dialect, MemoryUnit]
    card_units: Callable[[], Collection[int]]
    judged: Callable[[str], None]
    needs_model: bool

    @property
    def _droppable(self) -> frozenset[str]:
        return frozenset(each.dropped for each in self.dialects if each.dropped)

    async def mutate(self, body: bytes) -> bytes:
        """The answer to one AdmissionReview.

        ClusterError: The body is none. The API server then does what the webhook's failurePolicy says.
        """
        review = read_review(body)
        if review.pod is None:
            return allow_pod(review.uid)
        namespace = await self.rules.namespace_labels(review.namespace)
        pod = replace(review.pod, namespace=namespace)
        rules = self.rules
        found = admit(pod, rules.profile, rules.catalogue, needs_model=self.needs_model)
        translated = self._translate(review)
        if isinstance(found, Denied):
            return self._refuse(review, found)
        if isinstance(translated, Denied):
            return self._refuse(review, translated)
        resources, cards, dropped = translated
        if cards > 1:
            found = replace(found, labels={**found.labels, COUNT_LABEL: str(cards)})
        self.judged("admitted")
        told = "is left out: slices have no such rank"
        return patch_pod(review, found, resources, [f"{name} {told}" for name in sorted(dropped)])

    def _refuse(self, review: Review, why: Denied) -> bytes:
        self.judged("refused")
        _log.info("pod refused", pod=f"{review.namespace}/{review.name}", error=why.text)
        return deny_pod(review.uid, why.text)

    def _translate(
        self, review: Review
    ) -> tuple[dict[str, Mapping[str, Any]], int, Collection[str]] | Denied:
        """Path -> resources, of containers that use other projects' names (R-590).

        And on how many cards they are, and which names are left out.
        """
        found: dict[str, Mapping[str, Any]] = {}
        counts, dropped = {1}, set[str]()
        for each in review.resources() if self.dialects else ():
            dropped |= self._droppable & each.limits.keys()
            new = self._of_container(each)
            if isinstance(new, Denied):
                return Denied(f"container {clip(each.container)}: {new.text}")
            if new is None:
                continue
            found[each.path], cards = new
            counts.add(cards)
            if len(found) > MOST_CONTAINERS:
                return Denied(
                    f"more than {MOST_CONTAINERS} containers ask under names of other projects"
                )
        label = review.pod.labels.get(COUNT_LABEL) if review.pod else None
        if len(counts) > 2 or (max(counts) > 1 and label not in {None, str(max(counts))}):
            return Denied(
                "containers ask for different numbers of cards: all containers of a pod ask for the same number"
            )
        return found, max(counts), dropped

    def _of_container(
        self, each: ContainerResources
    ) -> tuple[Mapping[str, Any], int] | Denied | None:
        """The new resources of one container and its number of cards; None where it stays as it is."""
        spoken = [dialect for dialect in self.dialects if dialect.is_spoken(each.limits)]
        if not spoken:
            is_dropped = self._droppable & each.limits.keys()
            return (each.rename(self._droppable, {}), 1) if is_dropped else None
        dialect = spoken[0]
        try:
            amounts = each.amounts(dialect.names)
        except ClusterError as error:
            return Denied(str(error))
        new = translate_amounts(dialect, amounts, self.dialects[dialect], self.card_units)
        twice = sorted(new.amounts.keys() & each.limits.keys())
        if twice or len(spoken) > 1:
            names = ", ".join(twice or [each.core for each in spoken])
            return Denied(f"asks for {names} under two names: leave one of them out")
        rest = ", ".join(map(clip, dialect.rest(each.limits)))
        left = rest and f"asks for {rest} beside a slice, which is not translated: leave it out"
        if wrong := new.refusal or left:
            return Denied(wrong)
        return each.rename(dialect.names, new.amounts), new.cards
