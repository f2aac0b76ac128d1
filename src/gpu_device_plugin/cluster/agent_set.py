"""The DaemonSet of the agents, and which nodes it is meant for."""

from collections.abc import Mapping

import msgspec

from gpu_device_plugin.cluster.survey_objects import SurveyedPodSpec, agent_container
from gpu_device_plugin.cluster.wire import Bare
from gpu_device_plugin.domain.models.label_selector import Expression, Operator

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


class _Required(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] = msgspec.field(default_factory=list)


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Required | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _TemplateSpec(SurveyedPodSpec):
    affinity: _Affinity | None = None

    @property
    def terms(self) -> list[_Term]:
        """Of its node affinity."""
        node = self.affinity.node_affinity if self.affinity else None
        required = node.required_during_scheduling_ignored_during_execution if node else None
        return required.node_selector_terms if required else []


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
        return (self.metadata.labels or {}).get("app.kubernetes.io/version", "")

    @property
    def is_of_agents(self) -> bool:
        """Whether its pods run our agent."""
        return agent_container(self.spec.template.spec) is not None

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
