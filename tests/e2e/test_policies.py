"""The API server alone refuses what a pod's text decides: none of our processes runs here.

The chart is installed by helm with a node selector that no node has, so its objects are real and
its DaemonSet has no pod.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.e2e.policy_table import (
    BAD_REQUESTS,
    POLICY,
    ROWS,
    Row,
    asking,
    in_template,
    percentages,
    runtime_classes,
)
from tests.e2e.submission import KINDS, Submission
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.api import path_of
from tools.harness.cluster.binaries import kubernetes_version
from tools.harness.cluster.cluster import NAMESPACE, NODE, Cluster
from tools.harness.cluster.helm import NOBODY, RELEASE, RELEASE_NAMESPACE, Helm
from tools.harness.cluster.pods import container, pod
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.demands import demand
from gpu_device_plugin.domain.fractions.pod_annotations import HELD_KEYS
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import RequestError
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request

MUTATES = tuple(map(int, kubernetes_version().split(".")[:2])) >= (1, 36)
"""Whether this Kubernetes has MutatingAdmissionPolicies."""
NOWHERE = {"e2e": "nowhere"}
OTHER_NODE = "n2"
ROOT = Path(__file__).resolve().parents[2]
DAEMONSET = ROOT / "daemonset"
POLICIES = ("pods", "templates", "cronjobs", "agent-nodes", "agent-pods", "annotations")
MARK = "gpu-device-plugin/uninstall"
SEVEN = Row("seven", [asking(2, 7)])


def old_objects() -> list[dict[str, Any]]:
    """Objects that no policy would let in, and that start nothing."""
    bad = pod("old", asking(2, 7), nodeSelector=NOWHERE)
    made = [in_template(kind, bad) for kind in KINDS]
    for content in made:
        if content["kind"] in ("Deployment", "StatefulSet"):
            content["spec"]["replicas"] = 0
        if content["kind"] in ("Job", "CronJob"):
            content["spec"]["suspend"] = True
    return made


@pytest.fixture(scope="module")
def helm(cluster: Cluster, serving_agent: Agent) -> Iterator[Helm]:
    """The chart, installed after the objects of before; everything is gone at the end."""
    serving_agent.stop()
    cluster.apply(*old_objects(), *runtime_classes())
    helm = Helm(cluster)
    helm.install(NOBODY)
    yield helm
    helm.uninstall()
    assert not [name for name in admission_objects(cluster) if RELEASE in name]
    for kind in ("cronjob", "job", "daemonset", "statefulset", "deployment", "pod", "runtimeclass"):
        cluster.kubectl("delete", kind, "--all", "--wait=true", "--grace-period=1")


@pytest.fixture
def server(cluster: Cluster, helm: Helm) -> Submission:  # noqa: ARG001  # installs the policies
    """The API server with every policy at work."""
    admin = Submission(cluster)
    for kind in KINDS:
        _wait_until_judged(admin, kind)
    return admin


def _wait_until_judged(admin: Submission, kind: str) -> None:
    probe = in_template(kind, SEVEN.pod())
    wait_for(f"a {kind} is judged", lambda: not admin.create(probe).is_accepted)


def admission_objects(cluster: Cluster) -> Sequence[str]:
    """Names of all policies and bindings."""
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    return cluster.kubectl("get", kinds, "-o", "name").split()


def test_the_plain_manifests_come_and_go_by_kubectl_alone(
    cluster: Cluster, serving_agent: Agent
) -> None:
    """Before helm installs the same names; its pods are tests/e2e/test_image.py's."""
    serving_agent.stop()
    cluster.kubectl("apply", "--validate=strict", "-f", str(DAEMONSET))
    assert cluster.get("daemonset", RELEASE, RELEASE_NAMESPACE)["metadata"]["uid"]
    admin = Submission(cluster)
    _wait_until_judged(admin, "Pod")

    cluster.kubectl("delete", "--wait=true", "-f", str(DAEMONSET), seconds=400)
    assert not [name for name in admission_objects(cluster) if RELEASE in name]
    probe = SEVEN.pod()
    wait_for("nothing is refused any more", lambda: admin.create(probe).is_accepted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_the_table_is_judged_as_it_says(server: Submission, kind: str) -> None:
    """R-103, R-302, R-522, R-524."""
    wrong = []
    for row in ROWS:
        answer = server.create(in_template(kind, row.pod()))
        told = all(word in answer.text for word in row.words)
        is_by_policy = POLICY in answer.text
        if (
            answer.is_accepted is bool(row.words)
            or not told
            or is_by_policy is not bool(row.rule and row.words)
        ):
            wrong.append(f"{row.name}: {answer}")
    assert not wrong


@pytest.mark.parametrize(
    "row",
    [row for row in (*percentages()[::4], *BAD_REQUESTS) if row.mode and row.words],
    ids=lambda row: row.name,
)
def test_policies_and_agent_refuse_with_the_same_words(server: Submission, row: Row) -> None:
    made = row.pod()
    request = pod_request(msgspec.convert(made, Pod, strict=False))
    terms = NodeTerms("n1", NodeMode(row.mode), MemoryUnit.GIB)
    with pytest.raises(RequestError) as refusal:
        demand(request, request.containers[0], terms)
    words = re.search(r"asks .*\): (.+)", str(refusal.value))
    assert words is not None
    assert words.group(1) in server.create(made).text


def test_the_documented_examples_are_accepted_as_they_are(server: Submission) -> None:
    """R-113."""
    files = [path for path in (ROOT / "samples").rglob("*.yaml") if path.name != "node-labels.yaml"]
    found = [each for path in files for each in yaml.safe_load_all(path.read_text())]
    not_here = (
        "serving.kserve.io/",
        "ray.io/",
        "trainer.kubeflow.org/",
    )  # kinds of operators that this cluster has not
    samples = [each for each in found if not each["apiVersion"].startswith(not_here)]
    names = {sample["metadata"]["name"] for sample in samples}
    assert names >= {"cuda-sample", "binpack", "two-cards", "first-slice", "vllm", "gpu"}
    for sample in samples:
        namespace = sample["metadata"].get("namespace", NAMESPACE)
        assert server.create(sample, namespace).text == "", sample["metadata"]["name"]


def test_all_faults_of_a_pod_are_told_with_the_container_that_has_them(server: Submission) -> None:
    privileged = {"privileged": True}
    bad = pod("row", asking(2, 7, name="first"), asking(2, 8, "second", securityContext=privileged))
    text = server.create(bad).text
    assert "container first asks aliyun.com/gpu-core.percentage: 7" in text
    assert "container second asks aliyun.com/gpu-core.percentage: 8" in text


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_before_can_be_scaled_annotated_and_finalized(
    server: Submission, cluster: Cluster, kind: str
) -> None:
    path = path_of(kind, NAMESPACE, "old")
    metadata = {"annotations": {"note": "seen"}, "labels": {"note": "seen"}, "finalizers": ["e/f"]}
    changes: list[dict[str, Any]] = [{"metadata": metadata}]
    if kind in ("Deployment", "StatefulSet"):
        changes += [{"spec": {"replicas": 2}}, {"spec": {"minReadySeconds": 3}}]
    if kind in ("Job", "CronJob"):
        changes.append({"spec": {"suspend": False}})
    for change in changes:
        assert server.patch(path, change).text == ""
    if kind in ("Deployment", "StatefulSet"):
        assert server.patch(f"{path}/scale", {"spec": {"replicas": 3}}).text == ""
    # And it goes away by itself, with a finalizer in between.
    name = f"{kind.lower()}/old"
    cluster.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":["e2e.x/y"]}}')
    cluster.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "CronJob"])
def test_a_template_that_is_changed_is_judged(server: Submission, kind: str) -> None:
    good = in_template(kind, Row("good", [asking(2, 30)]).pod())
    worse = in_template(kind, Row("worse", [asking(2, 31)]).pod())
    path = path_of(kind, NAMESPACE, "old")
    refused = server.patch(path, {"spec": worse["spec"]})
    assert "the percentage must be one of 5, 10, ... 100" in refused.text
    assert server.patch(path, {"spec": good["spec"]}).text == ""


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", POLICIES)
def test_the_server_finds_nothing_wrong_with_the_text_of_a_policy(
    cluster: Cluster, name: str
) -> None:
    def checked() -> list[Any]:
        policy = cluster.get("validatingadmissionpolicy", f"{RELEASE}-{name}")
        status = policy.get("status", {})
        return [status["typeChecking"]] if "typeChecking" in status else []

    assert wait_for("the policy is type-checked", checked) == [{}]


def test_rules_that_are_switched_off_refuse_nothing_and_the_others_go_on(
    server: Submission, helm: Helm
) -> None:
    rules = sorted({row.rule for row in ROWS if row.rule.startswith("requests.")})
    helm.install(NOBODY, *(f"policies.{rule}=false" for rule in rules))
    try:
        seven = SEVEN.pod()
        wait_for("7 % is accepted", lambda: server.create(seven).is_accepted)
        for row in ROWS:
            answer = server.create(row.pod())
            assert answer.is_accepted is (not row.words or row.rule in rules), row.name
    finally:
        helm.install(NOBODY)


class AgentToken:
    """The API as a pod of this account on the node reaches it: an agent, where none is named."""

    def __init__(self, cluster: Cluster, account: str = RELEASE) -> None:
        self._cluster, self._account = cluster, account

    def __enter__(self) -> Submission:
        """A pod of the agent's account on each of two nodes, one of which has no kubelet."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER_NODE}}
        self._cluster.apply(node, *(self._pod(name) for name in (NODE, OTHER_NODE)))
        self._cluster.apply(pod("unscheduled", container("main"), nodeSelector=NOWHERE))
        bound = ("--bound-object-kind=Pod", f"--bound-object-name=on-{NODE}")
        token = self._cluster.kubectl(
            "create", "token", self._account, "-n", RELEASE_NAMESPACE, *bound
        )
        return Submission(self._cluster, token.strip())

    def __exit__(self, *_: object) -> None:
        """Remove them."""
        self._cluster.kubectl("delete", "pod", "unscheduled", "--grace-period=1")
        gone = ("--all", "--force", "--grace-period=0", "-n", RELEASE_NAMESPACE)
        self._cluster.kubectl("delete", "pod", *gone)
        self._cluster.kubectl("delete", "node", OTHER_NODE)

    def _pod(self, node: str) -> dict[str, Any]:
        made = pod(f"on-{node}", container("main"), nodeName=node, serviceAccountName=self._account)
        made["metadata"]["namespace"] = RELEASE_NAMESPACE
        return made


@pytest.fixture
def as_agent(server: Submission, cluster: Cluster) -> Iterator[Submission]:  # noqa: ARG001  # as above
    """A Submission with the token that the agent of the node would have."""
    with AgentToken(cluster) as submission:
        yield submission


def labels(**values: str | None) -> dict[str, Any]:
    return {
        "metadata": {"labels": {key.replace("__", "/"): value for key, value in values.items()}}
    }


def test_an_agent_may_write_what_it_writes_and_nothing_else(
    cluster: Cluster, as_agent: Submission
) -> None:
    own, other = f"/api/v1/nodes/{NODE}", f"/api/v1/nodes/{OTHER_NODE}"
    pods = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods"
    given = {"metadata": {"annotations": {"scheduler.framework.gpushare.assigned": "true"}}}
    cards = {"metadata": {"annotations": {"gpu-device-plugin/cards": "{}"}}}
    count = {"metadata": {"labels": {"aliyun.accelerator/nvidia_count": "4"}}}
    holdings = {"metadata": {"annotations": {"gpu-device-plugin/holdings": "{}"}}}
    withdrawn = {"metadata": {"annotations": {"gpu-device-plugin/withdrawn": "{}"}}}
    mark = {"metadata": {"annotations": {MARK: "uid"}}}
    series = {"metadata": {"labels": {"alibabacloud.com/gpu-model-series": "T4"}}}
    unmark = {"metadata": {"annotations": {MARK: None}}}
    admin = Submission(cluster)
    assert admin.patch(own, mark).text == ""
    changes = ((own, count), (own, cards), (own, holdings), (own, withdrawn), (own, unmark))
    for path, change in (*changes, (f"{pods}/on-{NODE}", given)):
        assert as_agent.patch(path, change).text == ""

    nothing_else = "nothing but labels and annotations"
    another = {"metadata": {"annotations": {"example.com/other": "1"}}}
    schedule = {"metadata": {"labels": {"ack.node.gpu.schedule": "share"}}}
    image = {"spec": {"containers": [{**container("main"), "image": "other"}]}}
    refused = (
        (other, count, f'agent of node "{NODE}" may change nothing of node "{OTHER_NODE}"'),
        (own, schedule, "may not change the labels ack.node.gpu.schedule of nodes"),
        (own, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "kubernetes.io/hostname"),
        (own, another, "may not change the annotations example.com/other of nodes"),
        (own, mark, "may remove the mark for uninstalling, and not set it"),
        (own, series, "may remove the series, and not set it"),
        (own, {"spec": {"unschedulable": True}}, nothing_else),
        (own, {"metadata": {"finalizers": ["example.com/stay"]}}, nothing_else),
        (f"{own}/status", {"status": {"phase": "Terminated"}}, "forbidden"),
        (f"{pods}/on-{OTHER_NODE}", given, f'may change nothing of node "{OTHER_NODE}"'),
        ("/api/v1/namespaces/default/pods/unscheduled", given, 'may change nothing of node ""'),
        (f"{pods}/on-{NODE}", another, "may not change the annotations example.com/other of pods"),
        (
            f"{pods}/on-{NODE}",
            {"metadata": {"labels": {"app": "other"}}},
            "may not change the labels app of pods",
        ),
        (f"{pods}/on-{NODE}", {"spec": {"activeDeadlineSeconds": 1}}, nothing_else),
        (f"{pods}/on-{NODE}", image, nothing_else),
    )
    wrong = [
        (path, change, answer)
        for path, change, words in refused
        if (answer := as_agent.patch(path, change)).is_accepted or words not in answer.text
    ]
    assert not wrong

    # Anyone who is not the agent is not limited.
    for path, change in ((own, schedule), (other, count), (f"{pods}/on-{NODE}", another)):
        assert admin.patch(path, change).text == ""


def bound_with(cluster: Cluster, name: str, notes: dict[str, str]) -> str:
    """Path of a pod that another scheduler has bound with these annotations; nothing runs there."""
    path = path_of("Pod", NAMESPACE, name)
    cluster.apply(pod(name, container("main"), nodeSelector=NOWHERE))
    target = {"apiVersion": "v1", "kind": "Node", "name": OTHER_NODE}
    meta = {"name": name, "annotations": notes}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    cluster.kubectl("create", "--raw", f"{path}/binding", "-f", "-", stdin=json.dumps(binding))
    return path


def test_what_a_bound_pod_holds_only_agent_controller_and_named_accounts_write(
    cluster: Cluster, as_agent: Submission
) -> None:
    account = f"system:serviceaccount:{RELEASE_NAMESPACE}:{RELEASE}-controller"
    admin, controller = Submission(cluster), Submission(cluster, user=account)
    agents = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods/on-{NODE}"
    unbound = path_of("Pod", NAMESPACE, "unscheduled")
    bound = bound_with(cluster, "held", dict.fromkeys(HELD_KEYS, "0"))
    allowed, wrong = [], []
    for key in HELD_KEYS:
        forged = {"metadata": {"annotations": {key: "1"}}}
        taken = {"metadata": {"annotations": {key: None}}}
        born = pod("born", container("main"))
        born["metadata"]["annotations"] = {key: "1", "note": "1"}
        allowed += [
            admin.patch(unbound, forged),
            admin.create(born),
            as_agent.patch(agents, forged),
            controller.patch(bound, forged),
        ]
        born["spec"]["nodeName"] = NODE
        told = [
            admin.patch(bound, forged),
            admin.patch(bound, taken),
            admin.patch(f"{bound}/status", forged),
        ]
        made = admin.create(born)
        if MUTATES:
            # `kubectl replace --force` has deleted the pod: it comes back without them.
            wrong += [made] if made.text or key in made.made["metadata"]["annotations"] else []
        else:
            wrong += [made] if f"the annotations {key} say" not in made.text else []
        wrong += [answer for answer in told if f"the annotations {key} say" not in answer.text]
    assert [answer.text for answer in allowed if answer.text] == []
    assert wrong == []

    # Everything else of a bound pod stays its owner's.
    for change in ({"annotations": {"note": "1"}}, {"labels": {"note": "1"}}):
        assert admin.patch(bound, {"metadata": change}).text == ""
    assert admin.create(pod("born", container("main"), nodeName=NODE)).text == ""
    cluster.kubectl("delete", "pod", "held", "--force", "--grace-period=0")


@pytest.mark.usefixtures("server")
def test_nobody_names_cards_by_annotation_outside_the_named_namespaces(
    cluster: Cluster, helm: Helm
) -> None:
    """Neither at creation nor later, and a pod that had them before gets no ephemeral container."""
    admin, named = Submission(cluster), {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}
    before = pod("named-before", container("main"), nodeSelector=NOWHERE)
    before["metadata"]["annotations"] = named
    cluster.apply(before)
    path = path_of("Pod", NAMESPACE, "named-before")
    helm.install(NOBODY, "policies.cdiNamespaces={kube-system}")
    try:
        born = pod("born", container("main"))
        born["metadata"]["annotations"] = named
        wait_for("naming is judged", lambda: not admin.create(born).is_accepted)
        told = [admin.create(born)]
        for key in ("nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod"):
            change = {"metadata": {"annotations": {key: "nvidia.com/gpu=0"}}}
            told += [admin.patch(path, change), admin.patch(f"{path}/status", change)]
        debugger = {"spec": {"ephemeralContainers": [container("debugger")]}}
        told.append(admin.patch(f"{path}/ephemeralcontainers", debugger))
        allowed = [
            admin.create(born, "kube-system"),
            admin.create(born, RELEASE_NAMESPACE),
            admin.create(pod("born", container("main"))),
            admin.patch(path, {"metadata": {"annotations": {"note": "1", "cdi.k8s.io/x": "1"}}}),
            admin.patch(path, {"metadata": {"annotations": dict.fromkeys(named)}}),
        ]
    finally:
        helm.install(NOBODY)
        cluster.kubectl("delete", "pod", "named-before", "--force", "--grace-period=0")
    assert [each for each in told if "name cards that nobody has allocated" not in each.text] == []
    assert [each.text for each in allowed if each.text] == []


@pytest.mark.usefixtures("server")
def test_an_agent_of_another_release_writes_what_pods_of_its_node_hold(cluster: Cluster) -> None:
    """Its account is known to no policy of this release; that it may write its node tells it from a tenant."""
    named = {"metadata": {"name": "another", "namespace": RELEASE_NAMESPACE}}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    role = {"kind": "ClusterRole", "metadata": {"name": "another"}, "rules": rules}
    subject = {"kind": "ServiceAccount", "name": "another", "namespace": RELEASE_NAMESPACE}
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "another"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    bound = {**rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "another"}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        {**rbac, **role},
        {**bound, "roleRef": to, "subjects": [subject]},
    )
    pods = f"/api/v1/namespaces/{RELEASE_NAMESPACE}/pods"
    forged = {"metadata": {"annotations": {HELD_KEYS[0]: "1"}}}
    with AgentToken(cluster, "another") as other:
        told = other.patch(f"{pods}/on-{NODE}", forged)
        rules += [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
        cluster.apply({**rbac, **role})
        wait_for("the right counts", lambda: other.patch(f"{pods}/on-{NODE}", forged).is_accepted)
        elsewhere = other.patch(f"{pods}/on-{OTHER_NODE}", forged)
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", "another")

    assert f"the annotations {HELD_KEYS[0]} say" in told.text
    assert f"the annotations {HELD_KEYS[0]} say" in elsewhere.text


@pytest.mark.usefixtures("server")
def test_an_account_that_the_operator_names_writes_what_a_bound_pod_holds(
    cluster: Cluster, helm: Helm
) -> None:
    admin, other = Submission(cluster), Submission(cluster, user="e2e:other-scheduler")
    bound = bound_with(cluster, "held", {})
    forged = {"metadata": {"annotations": {HELD_KEYS[0]: "1"}}}
    assert not other.patch(bound, forged).is_accepted
    helm.install(NOBODY, "policies.annotationWriters={e2e:other-scheduler}")
    try:
        wait_for("the named account may", lambda: other.patch(bound, forged).is_accepted)
        assert not admin.patch(bound, forged).is_accepted
    finally:
        helm.install(NOBODY)
        cluster.kubectl("delete", "pod", "held", "--force", "--grace-period=0")
