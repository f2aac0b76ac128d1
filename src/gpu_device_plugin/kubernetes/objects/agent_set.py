"""The DaemonSets of agents, and which nodes they look for."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_device_plugin.domain.models.label_selector import Expression, Operator
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPodSpec


class _TemplateSpec(SurveyedPodSpec):
    affinity: dict[str, Any] | None = None

    def names(self, labels: Mapping[str, str]) -> bool:
        """Whether its node affinity names labels, and these satisfy it."""
        node = (self.affinity or {}).get("nodeAffinity") or {}
        required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = required.get("nodeSelectorTerms") or []
        return any(_names(term.get("matchExpressions") or [], labels) for term in terms)


def _names(term: Any, labels: Mapping[str, str]) -> bool:
    """Whether these labels satisfy it, and one of them because it has to be there."""
    try:
        found = msgspec.convert(term, tuple[Expression, ...])
    except msgspec.ValidationError:  # Gt or Lt
        return False
    is_named = any(each.operator in (Operator.IN, Operator.EXISTS) for each in found)
    return is_named and all(each.holds(labels) for each in found)


class _Template(msgspec.Struct):
    spec: _TemplateSpec = msgspec.field(default_factory=_TemplateSpec)


class _DaemonSetSpec(msgspec.Struct):
    template: _Template = msgspec.field(default_factory=_Template)


class AgentSet(Bare):
    """A DaemonSet of agents."""

    spec: _DaemonSetSpec = msgspec.field(default_factory=_DaemonSetSpec)

    @property
    def version(self) -> str:
        """The release that it belongs to; empty where its labels do not say."""
        return self.labels.get("app.kubernetes.io/version", "")

    def looks_for(self, labels: Mapping[str, str]) -> bool:
        """Whether its node affinity names labels that this node has.

        Not so where it only says which labels nodes must not have, as with simulated cards.
        """
        spec = self.spec.template.spec
        selected = (spec.node_selector or {}).items() <= labels.items()
        return selected and spec.names(labels)

    @property
    def runtime_class(self) -> str:
        """The RuntimeClass of its pods; empty for the nodes' default."""
        return self.spec.template.spec.runtime_class_name
