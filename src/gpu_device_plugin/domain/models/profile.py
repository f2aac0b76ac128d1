"""Profiles: labels and annotations that an operator gives to pods by their labels (R-610 to R-614).

The rules are those of the ConfigMap `kube-system/acs-profile`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.models.label_selector import LabelSelector
from gpu_device_plugin.errors import ConfigError

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """One entry of `selectors`.

    Attributes:
        name: Its name.
        namespaces: Which namespaces, by their labels; None is every one.
        pods: Which pods, by their labels; None is every one.
        labels: What a selected pod gets.
        annotations: The same.
    """

    name: str
    namespaces: LabelSelector | None = None
    pods: LabelSelector | None = None
    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)

    def selects(self, pod: Values, namespace: Values) -> bool:
        """Whether it applies to a pod with these labels in a namespace with those."""
        return (self.pods is None or self.pods.matches(pod)) and (
            self.namespaces is None or self.namespaces.matches(namespace)
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """What the rules add to one pod.

    Attributes:
        labels: Labels that it has not.
        annotations: Annotations that it has not.
        source: Label -> name of the rule that it is from.
    """

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    source: Values = field(default_factory=dict)


def check_rules(rules: Sequence[ProfileRule]) -> None:
    """What the form alone does not show.

    Raises:
        ConfigError: A rule has no name; the text gives its place.
    """
    for place, rule in enumerate(rules):
        if not rule.name:
            raise ConfigError(f"selectors[{place}]: name is empty")


def effect_of(
    rules: Sequence[ProfileRule], labels: Values, annotations: Values, namespace: Values
) -> Effect:
    """What all rules that select a pod add to it, in their order.

    Nothing is overwritten: the pod's own value counts first, then the first rule's. Rules select
    by the labels that the pod came with, not by those that an earlier rule adds.

    Args:
        rules: In the order of the ConfigMap.
        labels: The pod's.
        annotations: The pod's.
        namespace: Labels of its namespace.
    """
    new_labels: dict[str, str] = {}
    new_annotations: dict[str, str] = {}
    source: dict[str, str] = {}
    for rule in rules:
        if not rule.selects(labels, namespace):
            continue
        for key, value in rule.labels.items():
            if key not in labels and key not in new_labels:
                new_labels[key], source[key] = value, rule.name
        for key, value in rule.annotations.items():
            if key not in annotations:
                new_annotations.setdefault(key, value)
    return Effect(new_labels, new_annotations, source)
