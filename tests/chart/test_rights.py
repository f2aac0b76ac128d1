"""None of our tokens may write more than its program writes: what RBAC cannot say, a policy of the API server says."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml
from tests.chart.rendering import NAME, RefusedError, manifests, one, render
from tests.chart.test_security import allowed, keys
from tests.chart.test_whole import PARTS, VALUES
from tests.test_docs import page

from gpu_device_plugin.controller.run_controller import LEASE
from gpu_device_plugin.controller.webhook_certificates import SECRET
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, SERIES_ANNOTATION
from gpu_device_plugin.domain.node.labels import NODE_LABELS
from gpu_device_plugin.install_hooks.uninstall import _AGENTS
from gpu_device_plugin.kubernetes.objects.events import COMPONENT
from gpu_device_plugin.kubernetes.objects.leader_label import LEADER_LABEL

CONTROLLER = f"{NAME}-controller"
ENABLED = "controller.enabled=true"
WEBHOOK = "controller.webhook.enabled=true"
POLICY = "ValidatingAdmissionPolicy"
SIGNED = "-----BEGIN CERTIFICATE-----"


def policy(name: str, *settings: str) -> dict[str, Any]:
    """What a policy checks; a binding of its name denies what breaks it."""
    made = manifests(ENABLED, *settings)
    bound = one(made, f"{POLICY}Binding", f"{NAME}-{name}")["spec"]
    assert bound == {"policyName": f"{NAME}-{name}", "validationActions": ["Deny"]}
    return one(made, POLICY, f"{NAME}-{name}")


def user(policy: Mapping[str, Any]) -> str:
    """The text that says of whom a policy is."""
    (condition,) = policy["spec"]["matchConditions"]
    return str(condition["expression"])


def granted(made: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Account, where, resource with names, and verbs of every rule that a binding gives."""
    roles = {
        (m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]): m["rules"]
        for m in made
        if m["kind"] in ("Role", "ClusterRole")
    }
    for binding in made:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        place = binding["metadata"].get("namespace")
        where = {None: "cluster", NAME: "release"}.get(place, str(place))
        (subject,) = binding["subjects"]
        account = subject["name"].removeprefix(NAME).removeprefix("-") or "agent"
        kind, role = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        if (kind, place, role) not in roles:
            yield account, where, f"{kind} {role}", ""
        for rule in roles.get((kind, place, role), ()):
            names = re.sub(
                rf"\b{NAME}(?=$|-controller$|-scheduler$)",
                "NAME",
                ", ".join(rule.get("resourceNames", ())),
            )
            names = (
                names if names != "NAME-controller" or rule["resources"] != ["leases"] else LEASE
            )
            for resource in rule["resources"]:
                yield account, where, f"{resource} {names}".strip(), ", ".join(rule["verbs"])


def test_the_table_of_accounts_is_what_the_roles_give() -> None:
    parts = [part for part in PARTS if "certManager" not in part]
    text = page("docs/accounts.md")
    rows = [row.strip("|").split("|") for row in text.splitlines() if row.startswith("|")][2:]
    told = [tuple(cell.strip() for cell in row[:4]) for row in rows]
    assert sorted(told) == sorted(granted(manifests(*parts, values=VALUES)))
    names = {
        made["metadata"]["name"]
        for made in manifests(*parts, values=VALUES)
        if made["kind"] == POLICY
    }
    named = {name for row in rows for name in re.findall(r"`\*(-[\w-]+)`", row[5])}
    assert {NAME + name for name in named} <= names


def test_of_pods_the_controller_may_change_the_leaders_label_alone() -> None:
    """Privileged pods run in its namespace."""
    made = policy("controller-pods")
    assert user(made) == f"request.userInfo.username == 'system:serviceaccount:{NAME}:{CONTROLLER}'"
    assert keys(allowed(made, "labelsAllowed")) == {LEADER_LABEL}
    assert keys(allowed(made, "annotationsAllowed")) == set()
    assert "object.spec == oldObject.spec" in made["spec"]["validations"][-1]["expression"]


def test_the_controller_creates_objects_of_its_own_names_only() -> None:
    made = policy("controller-objects")
    assert f":{CONTROLLER}'" in user(made)
    rules = {
        name: rule["operations"]
        for rule in made["spec"]["matchConstraints"]["resourceRules"]
        for name in rule["resources"]
    }
    assert rules.keys() == {"configmaps", "secrets", "leases"}
    assert all(operations == ["CREATE", "UPDATE"] for operations in rules.values())
    text = " ".join(each["expression"] for each in made["spec"]["validations"])
    assert re.findall(r"'([\w-]+/[\w-]+)'", text) == [
        "kube-system/unhealthy-gpu-",
        f"{NAME}/{SECRET}",
        f"{NAME}/{LEASE}",
    ]
    assert "'kubernetes.io/tls'" in text


def test_an_event_is_written_by_the_account_that_reports_it() -> None:
    """Agents and the manager of MIG profiles report as their node, the controller as its pod."""
    made = policy("events")
    accounts = set(re.findall(rf"'system:serviceaccount:{NAME}:([\w-]+)'", user(made)))
    assert accounts == {NAME, CONTROLLER, f"{NAME}-mig-manager"}
    parts = [part for part in PARTS if "certManager" not in part]
    writing = {
        account
        for account, _, resource, verbs in granted(manifests(*parts, values=VALUES))
        if resource == "events" and verbs != "list"
    }
    assert writing == {each.removeprefix(NAME).removeprefix("-") or "agent" for each in accounts}
    (rule,) = made["spec"]["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    (check,) = made["spec"]["validations"]
    assert f"== '{COMPONENT}'" in check["expression"]
    assert "reportingInstance.orValue('') == variables.reporter" in check["expression"]
    assert "oldObject" in allowed(made, "events")


def test_cards_are_named_by_annotation_in_the_releases_namespace_and_those_of_the_list_only() -> (
    None
):
    """What the policy does is tested on a real API server: tests/e2e/test_policies.py."""
    made = policy("cdi-annotations", "policies.cdiNamespaces={gpu-operator,kube-system}")
    (condition,) = made["spec"]["matchConditions"]
    spared = condition["expression"].partition("in")[2]
    assert keys(spared.strip(" \n)")) == {NAME, "gpu-operator", "kube-system"}
    (rule,) = made["spec"]["matchConstraints"]["resourceRules"]
    assert {"pods", "pods/status", "pods/ephemeralcontainers", "pods/binding"} < {
        *rule["resources"]
    }
    none = one(
        manifests(values={"policies": {"cdiNamespaces": []}}), POLICY, f"{NAME}-cdi-annotations"
    )
    assert f"['{NAME}']" in none["spec"]["matchConditions"][0]["expression"]
    assert not [each for each in manifests() if "cdi-annotations" in each["metadata"]["name"]]


def test_the_last_hook_has_its_policy_as_long_as_its_account() -> None:
    """The release's own objects are gone when it runs."""
    made = manifests()
    job = one(made, "Job", f"{NAME}-clear-nodes")["metadata"]["annotations"]
    for kind in (POLICY, f"{POLICY}Binding", "ServiceAccount"):
        notes = one(
            made, kind, f"{NAME}-clear-nodes{'-nodes' if kind != 'ServiceAccount' else ''}"
        )["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == job["helm.sh/hook"] == "post-delete"
        assert notes["helm.sh/hook-delete-policy"] == job["helm.sh/hook-delete-policy"]
        assert int(notes["helm.sh/hook-weight"]) < int(job["helm.sh/hook-weight"])
    limits = policy("clear-nodes-nodes")
    assert user(limits).endswith(f":{NAME}-clear-nodes'")
    assert keys(allowed(limits, "labelsAllowed")) == {*NODE_LABELS, MODEL_LABEL}
    assert keys(allowed(limits, "annotationsAllowed")) == {*_AGENTS, SERIES_ANNOTATION}
    for field in ("labels", "annotations"):
        # Removed, never set.
        assert f".filter(k, k in variables.{field} || " in allowed(limits, f"{field}Wrong")


def test_a_given_authority_leaves_the_controller_no_right_to_change_webhooks() -> None:
    """No policy can bound that right."""
    made = manifests(
        *(ENABLED, WEBHOOK, "scheduler.enabled=false", "controller.tls.secretName=mine"),
        f"controller.webhook.caBundle={SIGNED}",
    )
    given = [
        hook["clientConfig"]["caBundle"]
        for hook in one(made, "MutatingWebhookConfiguration", CONTROLLER)["webhooks"]
    ]
    assert {base64.b64decode(each).decode() for each in given} == {SIGNED}
    assert not [row for row in granted(made) if "webhook" in row[2]]
    (container,) = one(made, "Deployment", CONTROLLER)["spec"]["template"]["spec"]["containers"]
    assert not [flag for flag in container["args"] if "--webhook-configuration" in flag]


def test_the_controllers_address_is_for_whom_the_operator_names_and_our_scheduler() -> None:
    named = {"ipBlock": {"cidr": "10.0.0.10/32"}}
    values = {
        "controller": {"enabled": True, "networkPolicy": {"enabled": True, "from": [named]}},
        "scheduler": {"enabled": True},
    }
    made = manifests(values=values)
    spec = one(made, "NetworkPolicy", CONTROLLER)["spec"]
    pods = {
        name: one(made, "Deployment", f"{NAME}-{name}")["spec"]["selector"]["matchLabels"]
        for name in ("controller", "scheduler")
    }
    assert spec["podSelector"]["matchLabels"] == pods["controller"]
    calls, metrics = spec["ingress"]
    ours, theirs = calls["from"]
    assert (calls["ports"], theirs) == ([{"port": "https"}], named)
    assert ours["podSelector"]["matchLabels"].items() <= pods["scheduler"].items()
    assert len(ours["podSelector"]["matchLabels"]) > 1
    assert metrics == {"ports": [{"port": "metrics"}]}


def test_the_api_servers_certificate_is_checked_by_the_authority_of_a_config_map() -> None:
    made = manifests(
        ENABLED,
        WEBHOOK,
        "controller.webhook.clientName=kube-apiserver",
        "controller.webhook.clientCaConfigMap=kube-root-ca.crt",
    )
    pod = one(made, "Deployment", CONTROLLER)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert volume == {"name": mount["name"], "configMap": {"name": "kube-root-ca.crt"}}
    flags = {
        f"--webhook-client-ca-file={mount['mountPath']}/ca.crt",
        "--webhook-client-name=kube-apiserver",
    }
    assert flags <= set(container["args"])


def test_the_stock_scheduler_can_be_named_by_its_digest() -> None:
    digest = "sha256:" + "0" * 64
    text = render(ENABLED, "scheduler.enabled=true", f"scheduler.image.digest={digest}")
    images = {
        c["image"]
        for m in yaml.safe_load_all(text)
        if m and m["kind"] == "Deployment"
        for c in m["spec"]["template"]["spec"]["containers"]
    }
    assert f"registry.k8s.io/kube-scheduler@{digest}" in images


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("controller.networkPolicy.enabled=true", "needs controller.networkPolicy.from"),
        ("controller.webhook.clientCaConfigMap=x", "needs controller.webhook.clientName"),
        (f"controller.webhook.caBundle={SIGNED}", "needs controller.tls.secretName"),
        ("scheduler.image.digest=v1", "at '/scheduler/image/digest'"),
    ],
)
def test_half_a_protection_is_refused(setting: str, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        render(ENABLED, setting)
