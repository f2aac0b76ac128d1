"""The webhook for pods: models, drivers and profiles by label."""

from dataclasses import replace

import structlog

from gpu_device_plugin.apps.controller.model_rules import ModelRules
from gpu_device_plugin.cluster.admission_wire import allowed, denied, patched, read_review
from gpu_device_plugin.domain.models.admission import Denied, admit
from gpu_device_plugin.errors import ClusterError

_log = structlog.get_logger("webhook")


class Webhook:
    """Answers what the API server asks before a pod is stored; it changes nothing by itself."""

    def __init__(self, rules: ModelRules) -> None:
        self._rules = rules

    async def mutate(self, body: bytes) -> bytes:
        """The answer to one AdmissionReview.

        Raises:
            ClusterError: The body is none, or the rules are not known yet. The API server then
                does what the webhook's failurePolicy says.
        """
        review = read_review(body)
        if review.pod is None:
            return allowed(review.uid)
        if trouble := self._rules.trouble:
            raise ClusterError(trouble)
        namespace = await self._rules.namespace_labels(review.namespace)
        pod = replace(review.pod, namespace=namespace)
        found = admit(pod, self._rules.profile, self._rules.catalogue)
        if isinstance(found, Denied):
            _log.info("pod refused", namespace=review.namespace, error=found.text)
            return denied(review.uid, found.text)
        return patched(review, found)
