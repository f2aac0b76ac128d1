"""Each rule of the policies has a value that switches off this rule and no other.

What the rules do is tested against a real API server: tests/e2e/test_policies.py.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART, manifests, one
from tests.e2e.policy_table import ROWS

RULES = yaml.safe_load((CHART / "rules.yaml").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())["policies"]
KEYS = sorted({f"{group}.{rule['key']}" for group in RULES for rule in RULES[group]})
SHAPES = ("pods", "templates", "cronjobs")


def rules_in(made: Any, shape: str) -> dict[str, int]:
    """How many validations each rule has in one policy."""
    policy = one(made, "ValidatingAdmissionPolicy", f"gpu-device-plugin-{shape}")
    found: dict[str, int] = {}
    for validation in policy["spec"]["validations"]:
        key = validation["message"].split("policies.")[1].split(" ")[0]
        found[key] = found.get(key, 0) + 1
    return found


def test_every_rule_has_a_value_and_every_value_a_rule() -> None:
    values = {f"{group}.{key}" for group in RULES for key in VALUES[group]}
    assert values == set(KEYS)
    assert all(VALUES[group][rule["key"]] is True for group in RULES for rule in RULES[group])


def test_every_rule_has_rows_of_the_table_that_it_alone_refuses() -> None:
    assert {row.rule for row in ROWS if row.words and row.rule} == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_value_switches_off_its_rule_and_no_other(key: str) -> None:
    before, after = manifests(), manifests(f"policies.{key}=false")
    for shape in SHAPES:
        expected = dict(rules_in(before, shape))
        assert expected.pop(key) > 0
        assert rules_in(after, shape) == expected


# Policies that limit our own tokens, or who writes what we count by; a warning would limit nothing.
TOKENS = (
    "agent-nodes",
    "agent-pods",
    "controller-nodes",
    "controller-objects",
    "controller-pods",
    "events",
    "uninstall-nodes",
    "clear-nodes-nodes",
    "annotations",
)


def test_without_rules_there_are_no_policies_but_those_of_our_tokens() -> None:
    off = {group: dict.fromkeys(VALUES[group], False) for group in RULES}
    names = {
        made["metadata"]["name"]
        for made in manifests(values={"policies": off})
        if made["kind"].startswith("ValidatingAdmission")
    }
    assert names == {f"gpu-device-plugin-{name}" for name in TOKENS}


def test_every_policy_is_bound_and_every_binding_has_its_policy() -> None:
    made = manifests(values={"policies": {"validationActions": ["Warn", "Audit"]}})
    policies = [m["metadata"]["name"] for m in made if m["kind"] == "ValidatingAdmissionPolicy"]
    bindings: Mapping[str, Any] = {
        m["spec"]["policyName"]: m["spec"]["validationActions"]
        for m in made
        if m["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert sorted(bindings) == sorted(policies)
    for name, actions in bindings.items():
        assert actions == (["Deny"] if name.endswith(TOKENS) else ["Warn", "Audit"])


def test_no_short_form_is_left_in_a_rendered_rule() -> None:
    for made in manifests():
        if made["kind"] == "ValidatingAdmissionPolicy":
            text = yaml.safe_dump(made["spec"], width=10_000)
            assert not any(form in text for form in ("mem(c)", "core(c)", "limits(c)", "ours("))


FILES = {
    "a": """
version: v1
resources:
  gpus: [{pattern: "*", name: big}]
  mig:
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/big, rename: slow, replicas: 2}]
""",
    "b": {
        "version": "v1",
        "sharing": {"mps": {"resources": [{"name": "mig-1g.5gb", "replicas": 2}]}},
    },
    "c": "version: v1\nsharing:\n",
}
USUAL = ["aliyun.com/gpu-mem", "aliyun.com/gpu", "nvidia.com/gpu", "nvidia.com/gpu.shared"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, []),
        ({"config": {"map": FILES}}, ["big", "big.shared", "slow", "slow.shared"]),
        ({"migStrategy": "mixed", "dra": {"enabled": True}}, []),
    ],
)
def test_the_rule_of_two_gpu_resources_knows_the_names_that_the_files_make(
    values: dict[str, Any], names: list[str]
) -> None:
    """In each shape of a pod, in what it matches and in what it says; MIG profiles have a prefix."""
    wanted = str([*USUAL, *(f"nvidia.com/{name}" for name in names)])
    made = manifests(values=values)
    for shape in SHAPES:
        text = yaml.safe_dump(
            one(made, "ValidatingAdmissionPolicy", f"gpu-device-plugin-{shape}"), width=10**6
        ).replace("''", "'")
        assert "GPU-NAMES" not in text
        assert text.count(f"r in {wanted} || r.startsWith('nvidia.com/mig-')") == 3


@pytest.mark.parametrize(
    ("names", "pattern"), [(["kata*", "a.b"], "^(kata.*|a[.]b)$"), ([], "^()$")]
)
def test_the_operators_list_of_sandboxes_is_that_of_rule_and_agent(
    names: list[str], pattern: str
) -> None:
    """In each shape of a pod, and in the agent's settings."""
    made = manifests(values={"sandboxRuntimeClasses": names})
    for shape in SHAPES:
        policy = one(made, "ValidatingAdmissionPolicy", f"gpu-device-plugin-{shape}")
        [found] = [v for v in policy["spec"]["variables"] if v["name"] == "sandbox"]
        assert f"n.matches('{pattern}')" in found["expression"]
    settings = yaml.safe_load(one(made, "ConfigMap")["data"]["config.yaml"])
    assert settings["sandbox_runtime_classes"] == names
