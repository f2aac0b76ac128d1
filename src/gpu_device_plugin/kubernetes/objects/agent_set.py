"""The DaemonSets of agents, and which nodes they look for."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_device_plugin.domain.models.label_selector import Expression, Operator
from gpu_device_plugin.kubernetes.client.wire import Bare
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedPodSpec

_OPERATORS = frozenset(operator.value for operator in Operator)  # without Gt and Lt


class _Expression(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[_Expression] | None = None

    def names(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it, and one of them because it has to be there."""
        found = self.match_expressions or []
        if not any(each.operator in ("In", "Exists") for each in found):
            return False
        if any(each.operator not in _OPERATORS for each in found):
            return False
        return all(
            Expression(e.key, Operator(e.operator), frozenset(e.values or ())).holds(labels)
            for e in found
        )


class _TemplateSpec(SurveyedPodSpec):
    affinity: dict[str, Any] | None = None

    @property
    def terms(self) -> list[_Term]:
        node = (self.affinity or {}).get("nodeAffinity") or {}
        required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        return msgspec.convert(required.get("nodeSelectorTerms") or [], list[_Term])


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
        return selected and any(term.names(labels) for term in spec.terms)

    @property
    def runtime_class(self) -> str:
        """The RuntimeClass of its pods; empty for the nodes' default."""
        return self.spec.template.spec.runtime_class_name
