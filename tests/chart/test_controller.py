"""controller.enabled brings what docs/controller.md says, with scheduler.enabled its scheduler too."""

import json
import re
from collections import Counter
from itertools import chain
from typing import Any

import pytest
import yaml
from tests.chart.rendering import (
    AGENTS_ALONE,
    NAME,
    RefusedError,
    agent,
    manifests,
    render,
    rights,
    template_said,
)
from tests.test_docs import page

from gpu_device_plugin.controller.leader import GIVE_UP_SECONDS
from gpu_device_plugin.controller.run_controller import LEASE, Times
from gpu_device_plugin.controller.webhook_certificates import SECRET
from gpu_device_plugin.domain.node.allocation_api import ALLOCATION_API_LABEL
from gpu_device_plugin.kubernetes.objects.leader_label import LEADER_LABEL
from gpu_device_plugin.kubernetes.objects.survey_objects import (
    NAMES_SCHEDULER_LABEL,
    SCHEDULER_LABEL,
)
from gpu_device_plugin.settings.controller_settings import ControllerSettings
from gpu_device_plugin.settings.setting import settings_of
from gpu_device_plugin.web.certificate_authority import AUTHORITY, CLIENT, CLIENT_KEY
from gpu_device_plugin.web.extender_server import NAME_SCHEDULER, PREFIX


def one(made: Any, kind: str, name: str) -> dict[str, Any]:
    """The only manifest of that kind and name in the release's namespace, or in none."""
    (found,) = [
        m
        for m in made
        if (m["kind"], m["metadata"]["name"]) == (kind, name)
        and m["metadata"].get("namespace", NAME) == NAME
    ]
    return dict(found)


ON = "controller.enabled=true"
BOTH = (ON, "scheduler.enabled=true")
ALONE = (ON, "scheduler.enabled=false")
CONTROLLER, SCHEDULER = f"{NAME}-controller", f"{NAME}-scheduler"


def pod_of(made: Any, name: str) -> dict[str, Any]:
    """The pod of a Deployment."""
    return dict(one(made, "Deployment", name)["spec"]["template"]["spec"])


def scheduler_configuration(*settings: str) -> dict[str, Any]:
    """What kube-scheduler reads."""
    text = one(manifests(*settings), "ConfigMap", SCHEDULER)["data"]["config.yaml"]
    return dict(yaml.safe_load(text))


def test_all_of_it_is_there_by_default_and_one_value_leaves_it_out() -> None:
    """The second scheduler has nobody to ask without the controller."""
    deployments = {m["metadata"]["name"] for m in manifests() if m["kind"] == "Deployment"}
    assert deployments == {CONTROLLER, SCHEDULER}
    choice = ("controller.replicas=2", "scheduler.replicas=2", "controller.webhook.enabled=true")
    parts, left_out = [
        {
            (m["kind"], m["metadata"]["name"])
            for m in manifests(*choice, *alone, kubernetes="1.35.2")
        }
        for alone in ((), (AGENTS_ALONE,))
    ]
    kinds = {"Deployment", "Service", "PodDisruptionBudget", "MutatingWebhookConfiguration"}
    assert kinds <= {kind for kind, _ in parts}
    assert not kinds & {kind for kind, _ in left_out}
    assert not [name for _, name in left_out if name.startswith((CONTROLLER, SCHEDULER))]
    by_itself = {m["metadata"]["name"] for m in manifests(*ALONE) if m["kind"] == "Deployment"}
    assert by_itself == {CONTROLLER}


def test_more_replicas_than_one_bring_a_disruption_budget() -> None:
    """Of one replica it would stop every drain of its node, or say nothing."""
    for part, name in (("controller", CONTROLLER), ("scheduler", SCHEDULER)):
        budgets = [
            {m["metadata"]["name"] for m in made if m["kind"] == "PodDisruptionBudget"}
            for made in (manifests(ON), manifests(ON, f"{part}.replicas=2"))
        ]
        assert budgets == [set(), {name}]


def test_a_small_cluster_has_room_for_it() -> None:
    made = manifests(ON)
    asked = [
        container["resources"]["requests"]
        for name in (CONTROLLER, SCHEDULER)
        for container in pod_of(made, name)["containers"]
    ]
    assert asked == [{"cpu": "20m", "memory": "128Mi"}, {"cpu": "20m", "memory": "64Mi"}]
    assert {
        one(made, "Deployment", name)["spec"]["replicas"] for name in (CONTROLLER, SCHEDULER)
    } == {1}


def named_by(*settings: str, kubernetes: str) -> set[str]:
    """What gives pods the scheduler's name: kinds, and the flag."""
    text = render(*settings, kubernetes=kubernetes)
    made = manifests(*settings, kubernetes=kubernetes)
    ours = (f"{NAME}-scheduler-name", CONTROLLER)
    kinds = {m["kind"] for m in made if m["metadata"]["name"] in ours and "Mutat" in m["kind"]}
    return kinds | set(re.findall(r"--name-scheduler=[\w-]+", text))


_POLICY = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
_WEBHOOK = {"MutatingWebhookConfiguration", "--name-scheduler=gpu-scheduler"}


@pytest.mark.parametrize(
    ("settings", "kubernetes", "expected"),
    [
        ((ON,), "1.36.3", _POLICY),
        ((ON,), "v1.37.0-gke.1", _POLICY),
        ((ON,), "1.35.2", _WEBHOOK),
        ((ON, "scheduler.namedBy=webhook"), "1.36.3", _WEBHOOK),
        ((ON, "scheduler.namedBy=nobody"), "1.36.3", set()),
        ((ON, "scheduler.namedBy=nobody"), "1.35.2", set()),
        (ALONE, "1.36.3", set()),
        (("controller.enabled=false",), "1.36.3", set()),
    ],
)
def test_pods_get_the_schedulers_name_by_what_the_cluster_can_do(
    settings: tuple[str, ...], kubernetes: str, expected: set[str]
) -> None:
    assert named_by(*settings, kubernetes=kubernetes) == expected


def test_the_schedulers_pod_says_whose_name_it_serves() -> None:
    """By which `doctor` knows whether anybody serves the pods that wait."""
    template = one(manifests(ON, "scheduler.name=cards"), "Deployment", SCHEDULER)["spec"][
        "template"
    ]
    assert template["metadata"]["labels"][SCHEDULER_LABEL] == "cards"


def test_the_controllers_pod_says_whose_name_its_webhook_gives() -> None:
    """By which `doctor` knows that new pods were to get it."""
    for version, name in (("1.35.2", "cards"), ("1.36.3", None)):
        made = manifests("scheduler.name=cards", kubernetes=version)
        template = one(made, "Deployment", CONTROLLER)["spec"]["template"]
        assert template["metadata"]["labels"].get(NAMES_SCHEDULER_LABEL) == name


def test_a_policy_where_the_api_server_has_none_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"scheduler.namedBy policy needs Kubernetes 1.36"):
        render(ON, "scheduler.namedBy=policy", kubernetes="1.35.2")


def test_both_ways_name_the_scheduler_of_the_same_pods_and_refuse_none() -> None:
    """What fails there leaves a pod with the default scheduler."""
    policy, webhook = (manifests(ON, kubernetes=version) for version in ("1.36.3", "1.35.2"))
    spec = one(policy, "MutatingAdmissionPolicy", f"{NAME}-scheduler-name")["spec"]
    (entry,) = one(webhook, "MutatingWebhookConfiguration", CONTROLLER)["webhooks"]
    assert entry["matchConditions"] == spec["matchConditions"]
    assert entry["failurePolicy"] == spec["failurePolicy"] == "Ignore"
    assert entry["timeoutSeconds"] == 2, (
        "every pod waits that long where the webhook cannot be reached"
    )
    assert entry["clientConfig"]["service"]["path"] == NAME_SCHEDULER
    binding = one(policy, "MutatingAdmissionPolicyBinding", f"{NAME}-scheduler-name")["spec"]
    assert entry["namespaceSelector"] == binding["matchResources"]["namespaceSelector"]
    assert [
        (each["key"], each["operator"]) for each in entry["namespaceSelector"]["matchExpressions"]
    ] == [("kubernetes.io/metadata.name", "NotIn"), (ALLOCATION_API_LABEL, "NotIn")]


def test_its_pods_have_the_time_that_a_leader_needs_to_end() -> None:
    """What a kubelet kills has given nothing back."""
    spec = pod_of(manifests(*BOTH), CONTROLLER)
    needed = GIVE_UP_SECONDS + Times().ending_seconds
    assert needed < spec["terminationGracePeriodSeconds"] - 2


def test_every_flag_of_the_controllers_pod_is_one_of_its_settings() -> None:
    for settings in (ALONE, (*ALONE, "controller.tls.secretName=mine")):
        (container,) = pod_of(manifests(*settings), CONTROLLER)["containers"]
        flags = {flag.partition("=")[0] for flag in container["args"]}
        assert flags <= {each.flag for each in settings_of(ControllerSettings)}
        fields = {each["name"] for each in container["env"]}
        assert fields == {"POD_NAME", "POD_NAMESPACE"}


def test_only_the_leaders_pod_is_behind_the_schedulers_service_and_all_behind_the_webhooks() -> (
    None
):
    made = manifests(*BOTH)
    labels = one(made, "Deployment", CONTROLLER)["spec"]["template"]["metadata"]["labels"]
    everybody = one(made, "Service", f"{CONTROLLER}-webhook")["spec"]["selector"]
    assert everybody == labels
    leader = one(made, "Service", CONTROLLER)["spec"]
    assert leader["selector"] == {**labels, LEADER_LABEL: "true"}


def test_a_leader_that_is_not_ready_for_the_webhook_is_reached_by_the_scheduler() -> None:
    """Who may write the profile could else stop all placement; without the lead it answers 503."""
    made = manifests(*BOTH)
    assert one(made, "Service", CONTROLLER)["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in one(made, "Service", f"{CONTROLLER}-webhook")["spec"]


def test_neither_the_agents_set_nor_its_service_selects_a_pod_of_ours() -> None:
    made = manifests(*BOTH, "service.enabled=true")
    selector = one(made, "DaemonSet", NAME)["spec"]["selector"]["matchLabels"]
    for name in (CONTROLLER, SCHEDULER):
        labels = one(made, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert not selector.items() <= labels.items()


def test_the_names_that_it_certifies_are_those_by_which_it_is_called() -> None:
    made = manifests(*BOTH, "controller.clusterIP=10.96.0.200")
    (container,) = pod_of(made, CONTROLLER)["containers"]
    (names,) = [a.partition("=")[2] for a in container["args"] if a.startswith("--tls-names=")]
    assert {f"{CONTROLLER}.{NAME}.svc", f"{CONTROLLER}-webhook.{NAME}.svc", "10.96.0.200"} <= set(
        names.split(",")
    )
    (extender,) = scheduler_configuration(*BOTH)["extenders"]
    assert extender["urlPrefix"] == f"https://{CONTROLLER}.{NAME}.svc{PREFIX}"
    fixed = scheduler_configuration(*BOTH, "controller.clusterIP=10.96.0.200")
    assert fixed["extenders"][0]["urlPrefix"] == f"https://10.96.0.200{PREFIX}"


def test_the_documented_scheduler_shows_the_clients_certificate_too() -> None:
    """The files have the names of the Secret's keys."""
    blocks = re.findall(r"```yaml\n(.*?)```", page("docs/controller.md"), re.DOTALL)
    (told,) = [yaml.safe_load(block) for block in blocks if "extenders:" in block]
    tls = {key: path.rpartition("/")[2] for key, path in told["extenders"][0]["tlsConfig"].items()}
    assert tls == {"caFile": AUTHORITY, "certFile": CLIENT, "keyFile": CLIENT_KEY}


def test_the_scheduler_shows_the_certificate_that_the_controller_made_for_it() -> None:
    made = manifests(*BOTH)
    (volume,) = [v for v in pod_of(made, SCHEDULER)["volumes"] if v["name"] == "tls"]
    assert volume["secret"]["secretName"] == SECRET
    keys = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    assert keys == {"ca.crt": AUTHORITY, "tls.crt": CLIENT, "tls.key": CLIENT_KEY}
    (extender,) = scheduler_configuration(*BOTH)["extenders"]
    mounted = next(
        m["mountPath"]
        for m in pod_of(made, SCHEDULER)["containers"][0]["volumeMounts"]
        if m["name"] == "tls"
    )
    assert extender["tlsConfig"] == {
        "caFile": f"{mounted}/ca.crt",
        "certFile": f"{mounted}/tls.crt",
        "keyFile": f"{mounted}/tls.key",
    }


@pytest.mark.parametrize("setting", ["nameOverride=slices", "fullnameOverride=slices"])
def test_another_releases_controller_is_found_whatever_its_name(setting: str) -> None:
    """By which helm refuses to install a second one, and goes on with the release's own."""
    labels = [m["metadata"]["labels"] for m in manifests(setting) if m["kind"] == "ClusterRole"]
    roles = [
        f'(dict "metadata" (dict "labels" (dict {" ".join(map(json.dumps, chain(*each.items())))})))'
        for each in labels
    ]
    given = f'"roles" (list {" ".join(roles)})'
    for release, found in (("another", NAME), (NAME, "")):
        root = f'"root" (dict "Release" (dict "Name" "{release}"))'
        named = f'include "gpu-device-plugin.otherController" (dict {root} {given})'
        assert template_said(f"{{{{ {named} }}}}") == found


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("1.35.2", "v1.35.2"),
        ("v1.35.2-gke.1047000", "v1.35.2"),
        ("v1.35.2+k3s1", "v1.35.2"),
        ("1.36", "v1.36.0"),
        ("1.34+", "v1.34.0"),
        ("v1.38.0-beta.0", "v1.38.0-beta.0"),
        ("v1.38.0-rc.1+k3s1", "v1.38.0-rc.1"),
    ],
)
def test_the_stock_scheduler_has_the_clusters_version(version: str, tag: str) -> None:
    """Argo CD gives helm two parts of it. A cluster says a pre-release, which `--kube-version` leaves out."""
    cluster = f'(dict "KubeVersion" (dict "Version" "{version}"))'
    named = f'include "gpu-device-plugin.schedulerImage" (dict "Values" .Values "Capabilities" {cluster})'
    assert template_said(f"{{{{ {named} }}}}") == f"registry.k8s.io/kube-scheduler:{tag}"
    if "-" not in tag:
        assert f'/kube-scheduler:{tag}"\n' in render(*BOTH, kubernetes=version)


def test_the_stock_schedulers_image_is_pulled_where_it_is_not_there_whatever_the_plugins_is() -> (
    None
):
    """That one may be loaded on its nodes by hand."""
    made = manifests("image.pullPolicy=Never", "scheduler.image.tag=v9")
    (container,) = pod_of(made, SCHEDULER)["containers"]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["image"].endswith("/kube-scheduler:v9")
    assert pod_of(made, CONTROLLER)["containers"][0]["imagePullPolicy"] == "Never"


def test_the_controller_may_do_what_it_does_and_no_more() -> None:
    made = manifests(*BOTH[:1])
    cluster = rights(one(made, "ClusterRole", CONTROLLER))
    assert cluster >= {("", "pods/binding", "create"), ("", "nodes", "watch"), ("", "pods", "get")}
    assert not {verb for _, _, verb in cluster} & {"*", "delete", "deletecollection", "escalate"}
    assert not {resource for _, resource, _ in cluster} & {"secrets", "*"}
    role = one(made, "Role", CONTROLLER)
    named = {
        name: set(rule["verbs"]) for rule in role["rules"] for name in rule.get("resourceNames", ())
    }
    assert named[LEASE] == named[SECRET] == {"get", "update"}
    none_written = manifests(*BOTH[:1], "controller.unhealthyConfigMaps=false")
    assert f"{CONTROLLER}-kube-system" not in {m["metadata"]["name"] for m in none_written}
    own = manifests(*ALONE, "controller.tls.secretName=mine")
    assert "secrets" not in {r for _, r, _ in rights(one(own, "Role", CONTROLLER))}


def test_cert_manager_fills_the_secrets_that_the_pods_mount() -> None:
    """By an authority of its own or the operator's; the controller then touches no Secret."""
    chosen = "controller.tls.certManager."
    own = manifests(*BOTH, chosen + "enabled=true", "controller.clusterIP=10.96.0.200")
    theirs = manifests(
        *BOTH,
        chosen + "enabled=true",
        chosen + "issuer.name=pki",
        chosen + "issuer.kind=ClusterIssuer",
    )
    kinds = Counter(m["kind"] for m in own if m["apiVersion"] == "cert-manager.io/v1")
    assert kinds == {"Issuer": 2, "Certificate": 3}
    for made, kind, issuer in (
        (own, "Issuer", f"{CONTROLLER}-ca"),
        (theirs, "ClusterIssuer", "pki"),
    ):
        serving = one(made, "Certificate", CONTROLLER)["spec"]
        client = one(made, "Certificate", f"{CONTROLLER}-client")["spec"]
        for each, pod_name in ((serving, CONTROLLER), (client, SCHEDULER)):
            assert each["issuerRef"] == {"group": "cert-manager.io", "kind": kind, "name": issuer}
            mounted = [v["secret"] for v in pod_of(made, pod_name)["volumes"] if "secret" in v]
            assert [secret["secretName"] for secret in mounted] == [each["secretName"]]
        assert f"{CONTROLLER}-webhook.{NAME}.svc" in serving["dnsNames"]
        (container,) = pod_of(made, CONTROLLER)["containers"]
        assert f"--client-name={client['commonName']}" in container["args"]
        assert "secrets" not in {r for _, r, _ in rights(one(made, "Role", CONTROLLER))}
    assert one(own, "Certificate", CONTROLLER)["spec"]["ipAddresses"] == ["10.96.0.200"]


@pytest.mark.parametrize("name", [CONTROLLER, SCHEDULER])
def test_its_pods_have_no_privilege(name: str) -> None:
    pod = pod_of(manifests(*BOTH), name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not [v for v in pod.get("volumes", ()) if "hostPath" in v]
    for container in pod["containers"]:
        assert (
            container["securityContext"] == agent(manifests())["containers"][0]["securityContext"]
        )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ((ON, "scheduler.namedBy=me"), "at '/scheduler/namedBy'"),
        ((*BOTH, "controller.tls.secretName=mine"), "needs controller.tls.clientSecretName"),
        (
            (*BOTH, "controller.tls.secretName=mine", "controller.tls.certManager.enabled=true"),
            "makes the Secrets itself",
        ),
        ((*BOTH, "scheduler.name=default-scheduler"), "is the cluster's own kube-scheduler"),
        ((*BOTH, "controller.metricsPort=8443"), "is the port that kube-scheduler asks"),
        (("controller.replicas=0",), "at '/controller/replicas'"),
        (("controller.clusterIP=my-host",), "at '/controller/clusterIP'"),
        (("controller.tls.secret=x",), "additional properties 'secret' not allowed"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: tuple[str, ...], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        render(*settings)
