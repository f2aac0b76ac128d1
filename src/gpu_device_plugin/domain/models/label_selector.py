"""Label selectors, which match as Kubernetes' own do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gpu_device_plugin.errors import ConfigError


class Operator(Enum):
    """How a key's value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES = (Operator.IN, Operator.NOT_IN)


@dataclass(frozen=True, slots=True)
class Expression:
    """One entry of `matchExpressions`; ConfigError if operator and values do not go together."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigError("an expression has no key")
        if bool(self.values) != (self.operator in _WITH_VALUES):
            needs = "needs values" if self.operator in _WITH_VALUES else "takes no values"
            raise ConfigError(f"expression on {self.key}: {self.operator.value} {needs}")

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it; `NotIn` holds where the key is absent."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """`matchLabels` and `matchExpressions`; all of them have to hold, and an empty one matches all.

    Source:
        k8s.io/apimachinery, `LabelSelector`.
    """

    labels: Mapping[str, str]
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            expression.holds(labels) for expression in self.expressions
        )
