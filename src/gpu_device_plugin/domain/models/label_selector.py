"""Label selectors, which match as Kubernetes' own do."""

from collections.abc import Mapping
from enum import Enum

import msgspec


class Operator(Enum):
    """How a key's value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES = (Operator.IN, Operator.NOT_IN)


class Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `matchExpressions`; ValueError if operator and values do not go together."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("an expression has no key")
        if bool(self.values) != (self.operator in _WITH_VALUES):
            needs = "needs values" if self.operator in _WITH_VALUES else "takes no values"
            raise ValueError(f"expression on {self.key}: {self.operator.value} {needs}")

    def __str__(self) -> str:
        """As in the query of a list."""
        values = f"({','.join(sorted(self.values))})"
        match self.operator:
            case Operator.IN:
                return f"{self.key} in {values}"
            case Operator.NOT_IN:
                return f"{self.key} notin {values}"
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"

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


class LabelSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """`matchLabels` and `matchExpressions`; all of them have to hold, and an empty one matches all.

    Source:
        k8s.io/apimachinery, `LabelSelector`.
    """

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def __str__(self) -> str:
        """As in the query of a list; empty for everything."""
        labels = [f"{key}={value}" for key, value in self.match_labels.items()]
        return ",".join((*labels, *map(str, self.match_expressions)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.holds(labels) for expression in self.match_expressions
        )
