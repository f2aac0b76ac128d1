"""The profile: the key `selectors` of the ConfigMap `kube-system/acs-profile` as rules."""

import msgspec

from gpu_device_plugin.domain.models.label_selector import Expression, LabelSelector, Operator
from gpu_device_plugin.domain.models.profile import ProfileRule, check_rules
from gpu_device_plugin.errors import ConfigError


class _Expression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    operator: Operator
    values: frozenset[str] = frozenset()


class _Selector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[_Expression, ...] = ()


class _Effect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: str
    namespace_selector: _Selector | None = None
    object_selector: _Selector | None = None
    effect: _Effect = _Effect()


_rules = msgspec.json.Decoder(tuple[_Rule, ...])


def parse_profile(text: str) -> tuple[ProfileRule, ...]:
    """The rules of `selectors`, in their order; an empty text is none.

    Args:
        text: A JSON array (R-610).

    Raises:
        ConfigError: It is none, or a rule in it is wrong; the text names the place.
    """
    if not text.strip():
        return ()
    try:
        found = _rules.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"selectors: {error}") from error
    rules = tuple(
        ProfileRule(
            rule.name,
            _selector(rule.namespace_selector),
            _selector(rule.object_selector),
            rule.effect.labels,
            rule.effect.annotations,
        )
        for rule in found
    )
    check_rules(rules)
    return rules


def _selector(found: _Selector | None) -> LabelSelector | None:
    if found is None:
        return None
    expressions = tuple(Expression(e.key, e.operator, e.values) for e in found.match_expressions)
    return LabelSelector(found.match_labels, expressions)
