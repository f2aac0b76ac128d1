"""The webhook sees only pods that ask for something of it; what it does is tested in tests/e2e."""

from typing import Any

import pytest
import yaml
from tests.chart.rendering import NAME, RefusedError, manifests, one, render, rights

from gpu_device_plugin.controller import model_rules
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, SERIES_ANNOTATION
from gpu_device_plugin.web.extender_server import MUTATE

ON = "controller.enabled=true"
WEBHOOK = "controller.webhook.enabled=true"
CONTROLLER = f"{NAME}-controller"


def webhooks(*settings: str) -> dict[str, dict[str, Any]]:
    """The entries, by the first part of their names."""
    made = one(manifests(ON, WEBHOOK, *settings), "MutatingWebhookConfiguration", CONTROLLER)
    return {each["name"].partition(".")[0]: each for each in made["webhooks"]}


def test_it_comes_only_where_it_is_asked_for() -> None:
    """It refuses pods: an upgrade must not bring that by itself."""
    for settings in ((), ("controller.enabled=false", WEBHOOK), (ON, "scheduler.namedBy=nobody")):
        kinds = {made["kind"] for made in manifests(*settings)}
        assert "MutatingWebhookConfiguration" not in kinds


def test_pods_that_ask_for_a_model_wait_for_it_and_others_do_not() -> None:
    found = webhooks()
    assert {name: each["failurePolicy"] for name, each in found.items()} == {
        "models": "Fail",
        "profiles": "Ignore",
    }
    changed = webhooks("controller.webhook.modelsFailurePolicy=Ignore")
    assert changed["models"]["failurePolicy"] == "Ignore"
    for each in found.values():
        assert each["rules"] == [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ]
        (excluded,) = each["namespaceSelector"]["matchExpressions"]
        assert (excluded["operator"], excluded["values"]) == ("NotIn", ["kube-system"])
        assert len(each["matchConditions"]) == 1


@pytest.mark.parametrize(
    ("project", "name"), [("koordinator", "koordinator.sh/gpu"), ("hami", "nvidia.com/priority")]
)
def test_names_of_other_projects_are_seen_only_if_that_is_asked(project: str, name: str) -> None:
    for settings, is_seen in (((), False), ((f"controller.webhook.{project}=true",), True)):
        found = webhooks(*settings)
        conditions = [each["matchConditions"][0]["expression"] for each in found.values()]
        assert all((name in text) is is_seen for text in conditions)
        assert all("aliyun.com/gpu-" in text for text in conditions[1:])
        made = one(manifests(ON, WEBHOOK, *settings), "Deployment", CONTROLLER)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert (f"--{project}=GiB" in container["args"]) is is_seen


@pytest.mark.parametrize(
    "value", ["hami=true", "koordinator=true", "requireModel=false", "modelsFailurePolicy=Ignore"]
)
def test_what_only_the_webhook_for_models_reads_is_refused_without_it(value: str) -> None:
    """Nothing would translate or admit, and nobody would say so."""
    with pytest.raises(RefusedError, match=r"needs controller.webhook.enabled"):
        manifests(ON, f"controller.webhook.{value}")
    assert manifests(ON, WEBHOOK, f"controller.webhook.{value}")


def test_only_with_the_webhook_for_models_the_controller_follows_profile_and_catalogue() -> None:
    """The webhook for the scheduler's name, before Kubernetes 1.36, needs neither."""
    for settings, follows in (((), False), ((WEBHOOK,), True)):
        for named_by in ("webhook", "nobody"):
            made = manifests(ON, f"scheduler.namedBy={named_by}", *settings)
            spec = one(made, "Deployment", CONTROLLER)["spec"]["template"]["spec"]
            assert ("--models" in spec["containers"][0]["args"]) is follows
            roles = {each["metadata"]["name"] for each in made if "Role" in each["kind"]}
            assert (f"{CONTROLLER}-models" in roles) is follows


def test_class_gpu_without_a_model_passes_only_where_the_operator_says_so() -> None:
    """R-002."""
    for settings, passes in (((), False), (("controller.webhook.requireModel=false",), True)):
        made = one(manifests(ON, WEBHOOK, *settings), "Deployment", CONTROLLER)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert ("--model-optional" in container["args"]) is passes


def test_it_is_called_where_the_controller_serves_it() -> None:
    made = manifests(ON, WEBHOOK)
    services = {each["metadata"]["name"] for each in made if each["kind"] == "Service"}
    for each in webhooks().values():
        service = each["clientConfig"]["service"]
        assert (service["path"], service["namespace"]) == (MUTATE, NAME)
        assert service["name"] in services
        # The controller writes it, and helm must not take it away again.
        assert "caBundle" not in each["clientConfig"]
    (container,) = one(made, "Deployment", CONTROLLER)["spec"]["template"]["spec"]["containers"]
    assert f"--webhook-configuration={CONTROLLER}" in container["args"]


def test_the_controller_may_read_its_config_maps_and_write_one_webhook_configuration() -> None:
    made = manifests(ON, WEBHOOK)
    role = one(made, "Role", f"{CONTROLLER}-models")
    assert role["metadata"]["namespace"] == model_rules.NAMESPACE
    (rule,) = role["rules"]
    assert set(rule["resourceNames"]) == {model_rules.PROFILE, model_rules.CATALOGUE}
    assert set(rule["verbs"]) == {"list", "watch"}
    cluster = one(made, "ClusterRole", CONTROLLER)
    (named,) = [r for r in cluster["rules"] if "mutatingwebhookconfigurations" in r["resources"]]
    assert named["resourceNames"] == [CONTROLLER]
    without = manifests(ON, "scheduler.namedBy=nobody")
    allowed = rights(one(without, "ClusterRole", CONTROLLER))
    assert not any("webhook" in resource for _, resource, _ in allowed)


@pytest.mark.parametrize(
    ("kubernetes", "settings", "may_write"),
    [
        ("1.36.3", (), False),
        ("1.36.3", (WEBHOOK,), True),
        ("1.35.2", (), True),
        ("1.35.2", ("scheduler.namedBy=nobody",), False),
        (
            "1.35.2",
            (
                "controller.webhook.caBundle=-----BEGIN CERTIFICATE-----",
                "controller.tls.secretName=mine",
            ),
            False,
        ),
    ],
)
def test_the_right_to_write_it_goes_with_the_webhook(
    kubernetes: str, settings: tuple[str, ...], *, may_write: bool
) -> None:
    """As docs/security.md says: before 1.36 the scheduler's name needs a webhook too."""
    secrets = ("controller.tls.clientSecretName=client",)
    made = yaml.safe_load_all(render(ON, *settings, *secrets, kubernetes=kubernetes))
    role = one([each for each in made if each], "ClusterRole", CONTROLLER)
    assert any("webhook" in resource for _, resource, _ in rights(role)) is may_write


def test_the_controllers_policy_lets_it_write_nothing_of_a_node_but_the_series() -> None:
    policy = one(manifests(ON), "ValidatingAdmissionPolicy", f"{NAME}-controller-nodes")
    variables = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert variables["labelsAllowed"].strip("[]'") == MODEL_LABEL
    assert variables["annotationsAllowed"].strip("[]'") == SERIES_ANNOTATION
    (condition,) = policy["spec"]["matchConditions"]
    assert f"system:serviceaccount:{NAME}:{CONTROLLER}'" in condition["expression"]
