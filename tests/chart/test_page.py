"""page.enabled brings what docs/page.md says, and nothing by default."""

import pytest
from click import Command
from tests.chart.rendering import NAME, RefusedError, manifests, one, render, rights

from gpu_device_plugin.cli.page import page as command
from gpu_device_plugin.page.access import NEEDED

PAGE = f"{NAME}-page"
ON = "page.enabled=true"


def flags(of: Command) -> set[str]:
    """What the command takes."""
    return {flag for parameter in of.params for flag in parameter.opts}


def test_nothing_of_it_is_there_by_default() -> None:
    assert PAGE not in render()


def test_its_pod_is_restricted_and_asks_for_a_token() -> None:
    """As the Pod Security level of that name wants it; the address is not a loopback one."""
    pod = one(manifests(ON), "Deployment", PAGE)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & pod.keys()
    (container,) = pod["containers"]
    assert container["command"] == ["gpu-device-plugin", "page"]
    assert container["args"] == ["--address=:9448"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_it_may_read_what_it_shows_and_ask_about_tokens_and_no_more() -> None:
    made = manifests(ON)
    assert rights(one(made, "ClusterRole", PAGE)) == {
        *(("", "nodes", verb) for verb in ("list", "watch")),
        *(("", "pods", verb) for verb in ("get", "list", "watch")),
        ("", "events", "list"),
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    (subject,) = one(made, "ClusterRoleBinding", PAGE)["subjects"]
    assert (subject["name"], subject["namespace"]) == (PAGE, NAME)


def test_the_role_for_people_has_the_rights_that_are_asked_for() -> None:
    role = one(manifests(ON), "ClusterRole", f"{PAGE}-reader")
    assert rights(role) == {(each.group, each.resource, each.verb) for each in NEEDED}


def test_service_and_network_policy_lead_to_its_pod_and_no_other() -> None:
    made = manifests(ON, "controller.enabled=true")
    labels = one(made, "Deployment", PAGE)["spec"]["template"]["metadata"]["labels"]
    assert one(made, "Service", PAGE)["spec"]["selector"] == labels
    policy = one(made, "NetworkPolicy", PAGE)["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"] == [{"ports": [{"port": "http"}]}]
    agents = one(made, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not agents.items() <= labels.items()


def test_every_flag_of_its_pod_is_one_of_the_command() -> None:
    values = ("page.tls.secretName=mine", "page.prometheus=http://p:9090", "page.name=prod")
    made = manifests(ON, *values)
    (container,) = one(made, "Deployment", PAGE)["spec"]["template"]["spec"]["containers"]
    assert {flag.partition("=")[0] for flag in container["args"]} <= flags(command)
    assert len(container["args"]) == 5
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (port,) = one(made, "Service", PAGE)["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "https")


def test_a_prometheus_of_another_form_is_an_error() -> None:
    with pytest.raises(RefusedError, match="at '/page/prometheus'"):
        render(ON, "page.prometheus=prometheus:9090")
