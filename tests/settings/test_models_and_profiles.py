"""The promise: an operator's catalogue and profile are understood, or the error names the place."""

import json

import pytest

from gpu_device_plugin.domain.models.label_selector import Expression, LabelSelector, Operator
from gpu_device_plugin.domain.models.profile_rules import ProfileRule
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.models_and_profiles import load_catalogue, parse_profile


def test_both_selectors_and_all_operators_are_understood() -> None:
    """R-610, R-614."""
    expressions = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["3"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    rule = {
        "name": "r",
        "namespaceSelector": {"matchExpressions": expressions},
        "objectSelector": {},
        "effect": {"annotations": {"x": "y"}},
    }

    assert parse_profile(json.dumps([rule])) == (
        ProfileRule(
            "r",
            LabelSelector(
                {},
                (
                    Expression("a", Operator.IN, frozenset({"1", "2"})),
                    Expression("b", Operator.NOT_IN, frozenset({"3"})),
                    Expression("c", Operator.EXISTS),
                    Expression("d", Operator.DOES_NOT_EXIST),
                ),
            ),
            LabelSelector({}),
            annotations={"x": "y"},
        ),
    )


def test_every_label_and_annotation_that_kubernetes_takes_may_be_given() -> None:
    """Also an empty value, and any text in an annotation."""
    labels = {"team": "", "a.b-c_D": "1.5.0", "x.y-z.example/Team": "A_b.C-9", "a" * 63: "b" * 63}
    annotations = {"Example.COM/note": "any text, {}\n", "note": ""}
    text = json.dumps([{"name": "r", "effect": {"labels": labels, "annotations": annotations}}])
    assert parse_profile(text) == (ProfileRule("r", labels=labels, annotations=annotations),)


@pytest.mark.parametrize("text", ["", " \n", "[]"])
def test_no_rules_are_no_error(text: str) -> None:
    """R-602: the default is the empty text."""
    assert parse_profile(text) == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[{", "selectors: Input data was truncated"),
        ("{}", "selectors: Expected `array`, got `object`"),
        ("[{}]", r"selectors: Object missing required field `name` - at `\$\[0\]`"),
        ('[{"name": ""}]', r"selectors\[0\]: name is empty"),
        ('[{"name": "r", "effects": {}}]', "unknown field `effects`"),
        (
            '[{"name": "r", "effect": {"labels": {"a": 1}}}]',
            r"got `int` - at `\$\[0\].effect.labels\[...\]`",
        ),
        (
            '[{"name": "r", "objectSelector": '
            '{"matchExpressions": [{"key": "a", "operator": "Like"}]}}]',
            r"Invalid enum value 'Like' - at `\$\[0\].objectSelector.matchExpressions\[0\]",
        ),
        (
            '[{"name": "r", "objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]',
            "expression on a: In needs values",
        ),
        ("[" * 100_000, "selectors: "),
        *(
            (json.dumps([{"name": "r", "effect": {"labels": {key: value}}}]), "cannot be a label")
            for key, value in (
                ("x/team", "a b!"),
                ("x/team", "a" * 64),
                ("x/team", "-a"),
                ("", "a"),
                ("a b", "c"),
                ("/team", "a"),
                ("X/team", "a"),
                ("x..y/team", "a"),
                ("x/y/team", "a"),
                ("x" * 254 + "/team", "a"),
                ("a" * 64, "a"),
                ("team\n", "a"),
                ("team", "a\n"),
            )
        ),
        (
            '[{"name": "r", "effect": {"annotations": {"a b": "1"}}}]',
            r"selectors\[0\]: 'a b' cannot be the key of an annotation",
        ),
    ],
)
def test_a_wrong_profile_is_told_with_its_place(text: str, error: str) -> None:
    """R-602, R-610: the Event on the ConfigMap carries it."""
    with pytest.raises(ConfigError, match=error):
        parse_profile(text)


def test_the_packaged_catalogue_has_the_published_drivers() -> None:
    """R-603: T4, the default of P16EN, and the driver of all NVIDIA's; R-011: versions are opaque texts."""
    series = load_catalogue().series

    assert series["T4"].drivers == ("535.161.08", "570.133.20", "525.105.17", "580.95.05-open")
    assert series["T4"].default == "535.161.08"
    assert series["P16EN"].default == "1.4.1"
    assert series["P16EN"].serves("1.5.0")
    assert not series["P16EN"].serves("580.95.05-open")
    assert series["G28Ti"].default == "580.95.05-open"
    assert load_catalogue().series_of(["Tesla-T4"]) == "T4"


def test_the_operator_adds_replaces_and_removes_series() -> None:
    """Others stay as they are."""
    catalogue = load_catalogue(
        "T4: {names: [Tesla T4], drivers: ['1'], default: '1'}\n"
        "V100: {names: [Tesla V100-SXM2-16GB]}\n"
        "A10: null\n"
    )

    assert catalogue.series["T4"].drivers == ("1",)
    assert catalogue.series_of(["Tesla-V100-SXM2-16GB"]) == "V100"
    assert "A10" not in catalogue.series
    assert "L20" in catalogue.series


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("T4: {driver: [a]}", "catalogue: Object contains unknown field `driver`"),
        ("T4: {drivers: [535.1]}", "catalogue: Expected `str`, got `float`"),
        ("- T4", "catalogue: Expected `object`, got `array`"),
        ("T4: [", "catalogue: is not YAML: while parsing"),
        ("T4: {default: !!int }", "catalogue: is not YAML: IndexError"),
        ("T4: {default: !!bool x}", "catalogue: is not YAML: KeyError"),
        ("T4: {default: !!timestamp x}", "catalogue: is not YAML: AttributeError"),
        ("T4: {}\nT4: {}", "catalogue: is not YAML: key 'T4' stands twice"),
        ("T4: {drivers: ['1'], default: '2'}", "series T4: the default 2 is none of its drivers"),
        ("V: {names: [Tesla T4]}", "the card Tesla-T4 is of series T4 and of V"),
        ("[" * 10_000, "catalogue: "),
    ],
)
def test_a_wrong_catalogue_is_told(text: str, error: str) -> None:
    """With what is wrong, not as a traceback."""
    with pytest.raises(ConfigError, match=error):
        load_catalogue(text)
