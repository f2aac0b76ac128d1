"""Profiles: labels and annotations that an operator gives to pods by their labels (R-610 to R-614).

The rules are those of the ConfigMap `kube-system/acs-profile`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.models.label_selector import LabelSelector
from gpu_device_plugin.errors import ConfigError, clip

Values = Mapping[str, str]

_LONGEST_NAME, _LONGEST_PREFIX = 63, 253
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class ProfileRule:
    """One entry of `selectors`: which namespaces and pods, by their labels (None is every one), get what."""

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
    """What the rules add to one pod; `source` has the name of the rule of each label."""

    labels: Values = field(default_factory=dict)
    annotations: Values = field(default_factory=dict)
    source: Values = field(default_factory=dict)


def check_rules(rules: Sequence[ProfileRule]) -> None:
    """Raise ConfigError, with its place, for a rule without name or with a label that Kubernetes does not take.

    The API server would refuse every pod that the rule selects.
    """
    for place, rule in enumerate(rules):
        if not rule.name:
            raise ConfigError(f"selectors[{place}]: name is empty")
        for key, value in rule.labels.items():
            if not (is_label_key(key) and (not value or _is_name(value))):
                raise ConfigError(
                    f"selectors[{place}]: {clip(key)!r}: {clip(value)!r} cannot be a label"
                )
        for key in rule.annotations:
            # Kubernetes checks these in lower case.
            if not is_label_key(key.lower()):
                raise ConfigError(
                    f"selectors[{place}]: {clip(key)!r} cannot be the key of an annotation"
                )


def is_label_key(text: str) -> bool:
    """Whether Kubernetes takes it as the key of a label."""
    prefix, slash, name = text.rpartition("/")
    is_prefix = len(prefix) <= _LONGEST_PREFIX and _PREFIX.fullmatch(prefix) is not None
    return _is_name(name) and (not slash or is_prefix)


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def effect_of(
    rules: Sequence[ProfileRule], labels: Values, annotations: Values, namespace: Values
) -> Effect:
    """What all rules that select a pod add to it, in their order.

    Nothing is overwritten: the pod's own value counts first, then the first rule's. Rules select
    by the labels that the pod came with, not by those that an earlier rule adds.
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
