"""What opens cards leaves a node before NVIDIA's operator changes its driver, on whichever nodes it runs."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.chart.rendering import NAME, manifests

CLIENT = "nvidia.com/gpu.deploy.client"
LINUX = {"kubernetes.io/os": "linux"}
CARD = {"feature.node.kubernetes.io/pci-10de.present": "true", "gpu-device-plugin/mig-profile": "x"}
NODE = {**LINUX, **CARD, "nvidia.com/mps.capable": "true"}
EVERYTHING: Mapping[str, Any] = {
    "mps": {"enabled": True},
    "gfd": {"enabled": True},
    "config": {"map": {"a": "version: v1\n"}},
    "migManager": {"enabled": True},
    "memoryEnforcer": "auto",
}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
IN_POOL = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN_AFFINITIES: list[dict[str, Any]] = [
    {},
    {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    {"nodeAffinity": PREFERRED},
    {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [BY_NAME, IN_POOL]}, **PREFERRED}},
]


def is_met(wanted: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One expression, as Kubernetes reads it."""
    value, operator = labels.get(wanted["key"]), wanted["operator"]
    values: list[str] = wanted.get("values", [])
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    is_there = value is not None
    return is_there is (operator == "Exists")


def runs_on(spec: Mapping[str, Any], labels: Mapping[str, str], name: str = "n1") -> bool:
    """Whether the DaemonSet controller lets this pod stay on a node with these labels."""
    selected = all(labels.get(key) == value for key, value in spec["nodeSelector"].items())
    terms = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    fields = {"metadata.name": name}
    return selected and any(
        term  # an empty one matches nothing
        and all(is_met(each, labels) for each in term.get("matchExpressions", []))
        and all(is_met(each, fields) for each in term.get("matchFields", []))
        for term in terms
    )


def workloads(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """DaemonSet -> its pods' spec."""
    made = manifests(values={**EVERYTHING, **values})
    sets = (each for each in made if each["kind"] == "DaemonSet")
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in sets}


@pytest.mark.parametrize("value", ["paused-for-driver-upgrade", "paused-for-mig-change", "false"])
@pytest.mark.parametrize("affinity", OWN_AFFINITIES)
def test_every_daemonset_leaves_a_node_whose_driver_is_about_to_change(
    affinity: dict[str, Any], value: str
) -> None:
    """By every term, for an affinity of one's own too; a node without the operator's label is served."""
    pods, labels = workloads({"affinity": affinity}), {**NODE, "pool": "a"}

    assert {*pods} == {NAME, *(f"{NAME}-{it}" for it in ("mps", "mig-manager", "limit-keeper"))}
    for name, spec in pods.items():
        assert runs_on(spec, labels), name
        assert runs_on(spec, {**labels, CLIENT: "true"}), name
        assert not runs_on(spec, {**labels, CLIENT: value}), name


def test_simulated_agents_leave_too() -> None:
    """So that the walk can be tried where there is no card."""
    pods = workloads({"simulate": {"profile": "v100"}})

    assert runs_on(pods[NAME], LINUX)
    assert not runs_on(pods[NAME], {**LINUX, CLIENT: "paused-for-driver-upgrade"})


def test_a_rule_of_ones_own_chooses_no_further_nodes() -> None:
    """The chart adds to each term; one that chooses no node still chooses none."""
    own = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}, BY_NAME]}, **PREFERRED}}
    spec = workloads({"affinity": own})[NAME]

    assert runs_on(spec, NODE)
    assert not runs_on(spec, NODE, name="n2")
    assert spec["affinity"]["nodeAffinity"].items() >= PREFERRED.items()


def test_the_operator_waits_for_daemonsets_whose_node_selector_has_its_label() -> None:
    """Its driver manager looks for that key; without the operator's label there is no agent then."""
    pods = workloads({"driverUpgrades": "nodeSelector", "nodeSelector": {"pool": "a"}})
    labels = {**NODE, "pool": "a"}
    for name, spec in pods.items():
        assert spec["nodeSelector"].items() >= {**LINUX, CLIENT: "true"}.items(), name
        assert not runs_on(spec, labels), name
        assert runs_on(spec, {**labels, CLIENT: "true"}), name
    assert CLIENT not in workloads({})[NAME]["nodeSelector"]


def test_every_workload_runs_on_linux_only() -> None:
    """A Windows node of the same pool can have a card, and no image."""
    more = {
        "controller": {"enabled": True},
        "scheduler": {"enabled": True},
        "page": {"enabled": True},
    }
    for made in manifests(values={**EVERYTHING, **more}):
        spec = made.get("spec") or {}
        spec = spec if made["kind"] == "Pod" else (spec.get("template") or {}).get("spec")
        if spec:
            assert spec["nodeSelector"].items() >= LINUX.items(), made["metadata"]["name"]
