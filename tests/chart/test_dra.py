"""Claims are opt-in: without `dra.enabled` the chart has nothing of them, with it all that they need."""

import json
import re
from typing import Any

import pytest
from tests.chart.rendering import (
    AGENTS_ALONE,
    NAME,
    RefusedError,
    agent,
    manifests,
    one,
    render,
    rights,
)
from tests.chart.test_rules import RULES, VALUES

from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL

ON = "dra.enabled=true"
PREFIX = "gpu-device-plugin-"


def kinds(*settings: str) -> dict[str, list[str]]:
    """Kind -> names of the objects that only claims need."""
    found: dict[str, list[str]] = {}
    for made in manifests(AGENTS_ALONE, *settings):
        if made["kind"].startswith(("Mutating", "DeviceClass", "ResourceClaim")):
            found.setdefault(made["kind"], []).append(made["metadata"]["name"])
    return found


def test_nothing_of_claims_is_there_unless_they_are_asked_for() -> None:
    assert kinds() == {
        kind: [f"{NAME}-annotations"]
        for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    }
    text = render()
    assert "resourceclaims" not in text
    assert "plugins_registry" not in text
    assert 'allocation_api: "device-plugin"\n' in text
    (main,) = agent(manifests())["containers"]
    assert "--cdi-dir=" in main["args"]


def test_policies_classes_and_a_template_for_each_namespace() -> None:
    """And a class for whole cards, where a name for them is given."""
    found = kinds(ON, "dra.namespaces={team-a,team-b}", "dra.wholeCards=nvidia.com/gpu")

    assert found["DeviceClass"] == ["gpu-slice", "gpu-memory", "gpu-card"]
    assert found["MutatingAdmissionPolicy"] == [
        "gpu-device-plugin-slices",
        "gpu-device-plugin-claims",
        "gpu-device-plugin-annotations",
    ]
    assert found["ResourceClaimTemplate"] == ["gpu-slice", "gpu-slice"]
    made = manifests(ON, "dra.wholeCards=nvidia.com/gpu")
    assert one(made, "DeviceClass", "gpu-card")["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert one(made, "DeviceClass", "gpu-slice")["spec"].keys() == {"selectors"}


def test_namespaces_are_chosen_by_a_label_and_by_nothing_that_the_server_stops_reading() -> None:
    """An informer of parameters ends with the last policy and never starts again (ADR 18)."""
    made = manifests(ON)
    binding = one(made, "MutatingAdmissionPolicyBinding", "gpu-device-plugin-slices")

    assert binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"] == {
        ALLOCATION_API_LABEL: "dra"
    }
    assert not [each for each in made if {"paramKind", "paramRef"} & each.get("spec", {}).keys()]


def test_every_variable_that_a_policy_uses_is_one_of_its_own() -> None:
    """A rule that is added has to work in every policy that looks at it."""
    for made in manifests(ON):
        if made["kind"].endswith("AdmissionPolicy"):
            own = {variable["name"] for variable in made["spec"].get("variables", ())}
            used = set(re.findall(r"variables\.([A-Za-z]+)", json.dumps(made["spec"])))
            assert used <= own, made["metadata"]["name"]


def test_the_agent_gets_its_directories_and_rights() -> None:
    """Of other nodes' slices it may change nothing, by policy."""
    made = manifests(ON, "allocationApi=dra", "cdiDir=/etc/cdi", "kubeletDir=/data/kubelet")
    (main,) = agent(made)["containers"]
    mounts = {mount["mountPath"] for mount in main["volumeMounts"]}
    settings = one(made, "ConfigMap")["data"]["config.yaml"]

    assert {
        "/data/kubelet/plugins_registry",
        "/data/kubelet/plugins/gpu-device-plugin",
        "/etc/cdi",
    } <= mounts
    assert 'allocation_api: "dra"\n' in settings
    assert 'cdi_dir: "/etc/cdi"\n' in settings
    assert "--cdi-dir=" not in main["args"]
    more = rights(one(made, "ClusterRole")) - rights(one(manifests(), "ClusterRole"))
    group = "resource.k8s.io"
    assert more == {
        *((group, "resourceslices", verb) for verb in ("create", "update", "delete")),
        *((group, "resourceclaims", verb) for verb in ("get", "list")),
    }
    policy = one(made, "ValidatingAdmissionPolicy", "gpu-device-plugin-agent-slices")
    assert "variables.node" in policy["spec"]["validations"][0]["expression"]


def test_who_may_make_claims_is_a_value_and_whole_cards_have_a_rule_of_their_own() -> None:
    """A managed cluster runs kube-controller-manager under another name."""
    made = manifests(ON, "dra.claimMakers={someone-else}", "dra.wholeCards=nvidia.com/gpu")
    policy = one(made, "ValidatingAdmissionPolicy", "gpu-device-plugin-claims-made")
    (first, *_) = policy["spec"]["validations"]
    assert first["expression"] == "request.userInfo.username in ['someone-else']"

    whole = one(made, "ValidatingAdmissionPolicy", "gpu-device-plugin-claims-whole")
    condition, _ = whole["spec"]["matchConditions"]
    assert "in ['gpu-card']" in condition["expression"]
    assert "gpu-slice" not in condition["expression"]
    first, *_ = whole["spec"]["validations"]
    assert "ask nvidia.com/gpu in the pod's limits" in first["message"]
    assert "ownerReferences" in first["expression"]
    names = {each["metadata"]["name"] for each in manifests(ON)}
    assert "gpu-device-plugin-claims-whole" not in names


def test_a_pod_with_claims_gets_the_scheduler_profile_of_the_values_unless_it_names_one() -> None:
    """A profile that scores no node places claims faster; manifests stay as they are."""
    name = "gpu-device-plugin-slices"
    for settings, is_there in (((ON,), False), ((ON, "dra.schedulerName=first-fit"), True)):
        policy = one(manifests(*settings), "MutatingAdmissionPolicy", name)
        (mutation,) = policy["spec"]["mutations"]
        chosen = "value: 'first-fit'}].filter(p, object.spec.schedulerName == 'default-scheduler')"
        assert (chosen in mutation["jsonPatch"]["expression"]) is is_there


def test_slices_by_claims_and_the_name_of_whole_cards_count_among_gpu_resources() -> None:
    """Where claims are switched on; the policy that rewrites judges what was asked, not what it has made."""
    name = "gpu-device-plugin-pods"
    more = ("dra.wholeCards=example.com/card",)
    claims = "claims.orValue([]).map(k, k.name)"
    for settings, is_there in (((), False), ((ON, *more), True)):
        made = manifests(*settings)
        spec = one(made, "ValidatingAdmissionPolicy", name)["spec"]
        (mixing,) = [each for each in spec["variables"] if each["name"] == "mixing"]
        assert (claims in mixing["expression"]) is is_there
        for card in ("example.com/card", "deviceclass.resource.kubernetes.io/gpu-card"):
            assert (card in mixing["expression"]) is is_there
        assert "SLICE-CLAIMS" not in json.dumps(spec)
    rewriting = one(manifests(ON, *more), "MutatingAdmissionPolicy", "gpu-device-plugin-slices")
    assert claims not in json.dumps(rewriting)


def test_the_policies_for_pods_look_at_claims_that_no_container_names() -> None:
    """Where claims are switched on; there `spec.resourceClaims` is what the scheduler reads."""
    of_pod = "spec.?resourceClaims.orValue([])"
    for shape in ("pods", "templates", "cronjobs"):
        for settings, is_there in (((), False), ((ON,), True)):
            policy = one(manifests(*settings), "ValidatingAdmissionPolicy", f"{PREFIX}{shape}")
            (condition, *_) = policy["spec"]["matchConditions"]
            assert (of_pod in condition["expression"]) is is_there


@pytest.mark.parametrize("on", [{"on": True}, {"on": False}], ids=str)
def test_what_is_true_of_slices_by_claims_is_denied_whatever_rules_are_on(
    on: dict[str, bool],
) -> None:
    """The rules at submission may be off, or warn; who passes these would get a slice past all of them."""
    is_any_rule_on = on["on"]
    groups = {group: dict.fromkeys(VALUES[group], is_any_rule_on) for group in RULES}
    made = manifests(ON, values={"policies": {**groups, "validationActions": ["Warn"]}})
    said = validations(made, "claims-pods")
    assert "a slice by a claim is a container's" in said
    assert "a slice by a claim is made from a template" in said
    bound = one(made, "ValidatingAdmissionPolicyBinding", f"{PREFIX}claims-pods")["spec"]
    assert bound["validationActions"] == ["Deny"]
    last = (
        "this request cannot become a claim"  # after the rules that say more, where there are any
    )
    assert (last in said) is not is_any_rule_on
    assert not is_any_rule_on or validations(made, "pods")[-1] == last
    without = manifests(values={"policies": groups})
    assert f"{PREFIX}claims-pods" not in {m["metadata"]["name"] for m in without}


def validations(made: Any, name: str) -> list[str]:
    """The messages of a policy."""
    policy = one(made, "ValidatingAdmissionPolicy", f"{PREFIX}{name}")
    return [rule["message"] for rule in policy["spec"]["validations"]]


def test_claims_have_a_policy_for_each_thing_that_tenants_may_write() -> None:
    """They always deny: a warning would give a slice away. What they say is tested in tests/e2e."""
    made = manifests(
        ON, "dra.wholeCards=nvidia.com/gpu", values={"policies": {"validationActions": ["Warn"]}}
    )
    found = {}
    for name in ("made", "elsewhere", "kept", "held", "whole"):
        full = f"gpu-device-plugin-claims-{name}"
        spec = one(made, "ValidatingAdmissionPolicy", full)["spec"]
        (rule,) = spec["matchConstraints"]["resourceRules"]
        found[name] = (*rule["operations"], *rule["resources"])
        assert spec["failurePolicy"] == "Fail"
        binding = one(made, "ValidatingAdmissionPolicyBinding", full)["spec"]
        assert binding == {"policyName": full, "validationActions": ["Deny"]}
        # Whose a claim is holds for whole cards too: the kubelet prepares a claim once.
        condition, breaks = spec["matchConditions"]
        assert ("'gpu-card'" in condition["expression"]) is (name not in {"made", "elsewhere"})
        assert breaks["expression"].count("!(") >= len(spec["validations"])

    assert found == {
        "made": ("CREATE", "resourceclaims"),
        "elsewhere": ("CREATE", "resourceclaims"),
        "kept": ("UPDATE", "resourceclaims"),
        "held": ("UPDATE", "resourceclaims/status"),
        "whole": ("CREATE", "resourceclaims"),
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((ON, "policies.enabled=false"), "dra.enabled needs policies.enabled"),
        ((ON, "dra.wholeCards=aliyun.com/gpu-mem"), "gpu-mem is the name of a slice's amount"),
        (("allocationApi=dra",), "allocationApi dra needs dra.enabled"),
        ((ON, "dra.namespaces={Team_A}"), "at '/dra/namespaces/0'"),
        ((ON, "cdiDir=cdi"), "at '/cdiDir'"),
        ((ON, "dra.claimMakers=null"), "missing property 'claimMakers'"),
        (("allocationApi=window",), "at '/allocationApi'"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(
    settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(RefusedError, match=words):
        render(*settings)


def test_a_cluster_before_1_36_is_told_why_not() -> None:
    assert "MutatingAdmissionPolicy" in render(ON, kubernetes="1.36.0")
    with pytest.raises(
        RefusedError, match=r"needs Kubernetes 1\.36 or later, this cluster has v1\.35"
    ):
        render(ON, kubernetes="1.35.4")
