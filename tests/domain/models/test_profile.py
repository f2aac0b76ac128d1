"""The promise: rules of a profile apply in their order, all of them, and overwrite nothing."""

import pytest

from gpu_device_plugin.domain.models.label_selector import Expression, LabelSelector, Operator
from gpu_device_plugin.domain.models.profile_rules import (
    Effect,
    ProfileRule,
    check_rules,
    effect_of,
)
from gpu_device_plugin.errors import ConfigError

LABELS = {"app": "a", "tier": "web"}


@pytest.mark.parametrize(
    ("operator", "key", "values", "is_match"),
    [
        (Operator.IN, "app", {"a", "b"}, True),
        (Operator.IN, "app", {"b"}, False),
        (Operator.IN, "none", {"a"}, False),
        (Operator.NOT_IN, "app", {"b"}, True),
        (Operator.NOT_IN, "app", {"a"}, False),
        (Operator.NOT_IN, "none", {"a"}, True),
        (Operator.EXISTS, "app", set(), True),
        (Operator.EXISTS, "none", set(), False),
        (Operator.DOES_NOT_EXIST, "app", set(), False),
        (Operator.DOES_NOT_EXIST, "none", set(), True),
    ],
)
def test_expressions_are_those_of_kubernetes(
    operator: Operator, key: str, values: set[str], *, is_match: bool
) -> None:
    """R-614."""
    selector = LabelSelector({}, (Expression(key, operator, frozenset(values)),))

    assert selector.matches(LABELS) is is_match


def test_all_conditions_of_a_selector_have_to_hold() -> None:
    """R-611; an empty selector matches all."""
    both = LabelSelector({"app": "a", "tier": "web"}, (Expression("app", Operator.EXISTS),))
    wrong = LabelSelector({"app": "a"}, (Expression("app", Operator.DOES_NOT_EXIST),))

    assert both.matches(LABELS)
    assert not both.matches({"app": "a"})
    assert not wrong.matches(LABELS)
    assert LabelSelector({}).matches({})


@pytest.mark.parametrize(
    ("key", "operator", "values", "text"),
    [
        ("app", Operator.IN, (), "expression on app: In needs values"),
        ("app", Operator.EXISTS, ("a",), "expression on app: Exists takes no values"),
        ("", Operator.EXISTS, (), "an expression has no key"),
    ],
)
def test_an_impossible_expression_is_named(
    key: str, operator: Operator, values: tuple[str, ...], text: str
) -> None:
    """Before any pod is judged by it."""
    with pytest.raises(ValueError, match=text):
        Expression(key, operator, frozenset(values))


def test_pod_and_namespace_have_both_to_match() -> None:
    """R-611; R-612: a rule with neither selector is for every pod."""
    rule = ProfileRule("r", LabelSelector({"team": "x"}), LabelSelector({"app": "a"}), {"new": "1"})
    all_pods = ProfileRule("r", labels={"new": "1"})

    assert effect_of([rule], LABELS, {}, {"team": "x"}).labels == {"new": "1"}
    assert effect_of([rule], LABELS, {}, {"team": "y"}) == Effect()
    assert effect_of([rule], {}, {}, {"team": "x"}) == Effect()
    assert effect_of([all_pods], {}, {}, {}).labels == {"new": "1"}


def test_the_pods_own_value_counts_then_the_first_rules() -> None:
    """R-613."""
    rules = [
        ProfileRule("one", labels={"app": "no", "x": "1"}, annotations={"n": "1", "own": "no"}),
        ProfileRule("two", labels={"x": "2", "y": "2"}, annotations={"n": "2"}),
    ]

    assert effect_of(rules, LABELS, {"own": "yes"}, {}) == Effect(
        labels={"x": "1", "y": "2"}, annotations={"n": "1"}, source={"x": "one", "y": "two"}
    )


def test_a_rule_does_not_select_by_what_another_adds() -> None:
    """The order decides precedence, not who is selected."""
    rules = [
        ProfileRule("one", labels={"x": "1"}),
        ProfileRule("two", pods=LabelSelector({"x": "1"}), labels={"y": "2"}),
    ]

    assert effect_of(rules, {}, {}, {}).labels == {"x": "1"}


def test_a_rule_needs_a_name() -> None:
    """R-610."""
    with pytest.raises(ConfigError, match=r"selectors\[1\]: name is empty"):
        check_rules([ProfileRule("one"), ProfileRule("")])
