"""The webhook for pods: models, drivers and profiles by label."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from gpu_device_plugin.controller.model_rules import ModelRules
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.koordinator import (
    CORE,
    MEMORY,
    NAMES,
    refusal,
    translate_amounts,
)
from gpu_device_plugin.domain.fractions.rules import MOST_CONTAINERS
from gpu_device_plugin.domain.models.pod_admission import Denied, admit
from gpu_device_plugin.errors import ClusterError, clip
from gpu_device_plugin.kubernetes.objects.admission_review import (
    Review,
    allowed,
    denied,
    patched,
    read_review,
)

_log = structlog.get_logger("webhook")


class Webhook:
    """Answers what the API server asks before a pod is stored; it changes nothing by itself."""

    def __init__(
        self,
        rules: ModelRules,
        koordinator_unit: MemoryUnit | None,
        judged: Callable[[str], None],
        *,
        needs_model: bool,
    ) -> None:
        self._rules, self._unit, self._judged = rules, koordinator_unit, judged
        self._needs_model = needs_model

    async def mutate(self, body: bytes) -> bytes:
        """The answer to one AdmissionReview.

        Raises:
            ClusterError: The body is none. The API server then does what the webhook's
                failurePolicy says.
        """
        review = read_review(body)
        if review.pod is None:
            return allowed(review.uid)
        namespace = await self._rules.namespace_labels(review.namespace)
        pod = replace(review.pod, namespace=namespace)
        rules = self._rules
        found = admit(pod, rules.profile, rules.catalogue, needs_model=self._needs_model)
        resources = self._translated(review)
        if isinstance(found, Denied):
            return self._refused(review, found)
        if isinstance(resources, Denied):
            return self._refused(review, resources)
        self._judged("admitted")
        return patched(review, found, resources)

    def _refused(self, review: Review, why: Denied) -> bytes:
        self._judged("refused")
        _log.info("pod refused", namespace=review.namespace, error=why.text)
        return denied(review.uid, why.text)

    def _translated(self, review: Review) -> dict[str, Mapping[str, Any]] | Denied:
        """Path -> resources, of containers that use Koordinator's names (R-590)."""
        found: dict[str, Mapping[str, Any]] = {}
        for each in review.resources if self._unit else ():
            try:
                amounts = each.amounts(NAMES)
                why = refusal(amounts)
            except ClusterError as error:
                amounts, why = {}, str(error)
            if why:
                return Denied(f"container {clip(each.container)}: {why}")
            new = translate_amounts(amounts, self._unit or MemoryUnit.GIB)
            if both := sorted(new.keys() & each.limits.keys()):
                names = ", ".join(both)
                return Denied(
                    f"container {clip(each.container)} asks for {names} under its own and under "
                    f"Koordinator's name: leave one of them out"
                )
            if new:
                found[each.path] = each.renamed((MEMORY, CORE), new)
            if len(found) > MOST_CONTAINERS:
                return Denied(f"more than {MOST_CONTAINERS} containers ask by Koordinator's names")
        return found
