"""A real API server holds each of our tokens to what its program writes; none of our processes runs here."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.chart.rendering import manifests
from tests.e2e.submission import Answer, Submission
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.api import path_of
from tools.harness.cluster.cluster import NAMESPACE, NODE, Cluster
from tools.harness.cluster.helm import NOBODY, RELEASE, RELEASE_NAMESPACE, Helm
from tools.harness.cluster.pods import container, pod
from tools.harness.cluster.waiting import wait_for

CONTROLLER = f"{RELEASE}-controller"
CONTROLLER_ON = ("controller.enabled=true", "controller.nodeSelector.e2e=nowhere")
TLS = {"tls.crt": "", "tls.key": ""}
Content = dict[str, Any]


@pytest.fixture(scope="module")
def chart(cluster: Cluster, serving_agent: Agent) -> Iterator[None]:
    """The chart with its controller; none of its pods has a node."""
    serving_agent.stop()
    helm = Helm(cluster)
    helm.install(NOBODY, *CONTROLLER_ON)
    yield
    helm.uninstall()


@contextmanager
def token_of(cluster: Cluster, account: str) -> Iterator[tuple[Submission, str]]:
    """What a pod of the account on the node may do, and the path of that pod."""
    made = pod(f"of-{account}", container("main"), nodeName=NODE, serviceAccountName=account)
    made["metadata"]["namespace"] = RELEASE_NAMESPACE
    cluster.apply(made)
    name = made["metadata"]["name"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
    token = cluster.kubectl("create", "token", account, "-n", RELEASE_NAMESPACE, *bound).strip()
    yield Submission(cluster, token), path_of("Pod", RELEASE_NAMESPACE, name)
    cluster.kubectl("delete", "pod", name, "-n", RELEASE_NAMESPACE, "--force", "--grace-period=0")


def metadata(**fields: Content) -> Content:
    """A patch of these fields of an object's metadata."""
    return {"metadata": fields}


def thing(kind: str, name: str, **more: Any) -> Content:
    """An object of the core, or a Lease."""
    group = "coordination.k8s.io/v1" if kind == "Lease" else "v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, **more}


def event(name: str, component: str, instance: str) -> Content:
    """An Event in the namespace of the tests."""
    about = {"kind": "Pod", "name": "p", "namespace": NAMESPACE}
    by = {"source": {"component": component}, "reportingComponent": component}
    made = thing("Event", name, involvedObject=about, reason="R", message="m", type="Normal", **by)
    made["metadata"]["namespace"] = NAMESPACE
    return made | {"reportingInstance": instance}


def wait_until_judged(policy: str, cluster: Cluster) -> None:
    """Until the API server has checked the policy's text; it has nothing to say against it."""

    def checked() -> list[Any]:
        found = cluster.get("validatingadmissionpolicy", f"{RELEASE}-{policy}")
        status = found.get("status", {})
        return [status["typeChecking"]] if "typeChecking" in status else []

    assert wait_for(f"policy {policy} is type-checked", checked) == [{}]


def assert_refused(answer: Answer, words: str) -> None:
    assert not answer.is_accepted
    assert words in answer.text


@pytest.mark.usefixtures("chart")
def test_the_controllers_token_labels_the_leader_and_changes_nothing_else_of_a_pod(
    cluster: Cluster,
) -> None:
    wait_until_judged("controller-pods", cluster)
    with token_of(cluster, CONTROLLER) as (controller, own):
        other = metadata(labels={"app": "other"})
        wait_for("pods are judged", lambda: not controller.patch(own, other).is_accepted)
        for value in ("true", None):
            change = metadata(labels={"gpu-device-plugin/leader": value})
            assert controller.patch(own, change).text == ""
        assert_refused(controller.patch(own, other), "may not change the labels app of pods")
        note = metadata(annotations={"gpu-device-plugin/devices": "{}"})
        assert_refused(controller.patch(own, note), "may not change the annotations")
        for spec in (
            {"containers": [{**container("main"), "image": "other"}]},
            {"activeDeadlineSeconds": 1},
        ):
            answer = controller.patch(own, {"spec": spec})
            assert_refused(answer, "may change nothing but labels and annotations")
        elsewhere = path_of("Pod", NAMESPACE, "p")
        assert_refused(controller.patch(elsewhere, other), "forbidden")


@pytest.mark.usefixtures("chart")
def test_the_controllers_token_makes_no_object_but_its_own(cluster: Cluster) -> None:
    wait_until_judged("controller-objects", cluster)
    secret, lease = "gpu-device-plugin-tls", "gpu-device-plugin-controller"
    account = {"kubernetes.io/service-account.name": RELEASE}
    stolen = thing("Secret", "token", type="kubernetes.io/service-account-token")
    stolen["metadata"]["annotations"] = account
    named_alike = {**stolen, "metadata": {**stolen["metadata"], "name": secret}}
    home = RELEASE_NAMESPACE
    with token_of(cluster, CONTROLLER) as (controller, _):
        wait_for("Secrets are judged", lambda: not controller.create(stolen, home).is_accepted)
        for made, namespace in (
            (thing("Secret", secret, type="kubernetes.io/tls", data=TLS), home),
            (thing("Lease", lease), home),
            (thing("ConfigMap", "unhealthy-gpu-n1"), "kube-system"),
        ):
            assert controller.create(made, namespace).text == ""
        for made, namespace in (
            (stolen, home),
            (named_alike, home),
            (thing("Secret", "other", type="kubernetes.io/tls", data=TLS), home),
            (thing("Secret", secret, type="Opaque"), home),
            (thing("Lease", "kube-scheduler"), home),
            (thing("ConfigMap", "coredns-custom"), "kube-system"),
        ):
            answer = controller.create(made, namespace)
            assert_refused(answer, f"the controller may write no {made['kind']} but")


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("account", "reporter"), [(CONTROLLER, f"of-{CONTROLLER}"), (RELEASE, NODE)]
)
def test_an_event_is_changed_only_by_the_account_that_reported_it(
    cluster: Cluster, account: str, reporter: str
) -> None:
    wait_until_judged("events", cluster)
    own, others = event("own", RELEASE, reporter), event("others", "kubelet", NODE)
    cluster.apply(own, others)
    raised = {"count": 2}
    with token_of(cluster, account) as (ours, _):
        wait_for("Events are judged", lambda: not ours.create(event("e", "x", "y")).is_accepted)
        assert ours.create(event("e", RELEASE, reporter)).text == ""
        assert ours.patch(path_of("Event", NAMESPACE, "own"), raised).text == ""
        words = f'may write no Event but what gpu-device-plugin reports from "{reporter}"'
        assert_refused(ours.patch(path_of("Event", NAMESPACE, "others"), raised), words)
        taken = {"reportingComponent": RELEASE, "reportingInstance": reporter}
        assert_refused(ours.patch(path_of("Event", NAMESPACE, "others"), taken), words)
        assert_refused(ours.create(event("e", "kubelet", reporter)), words)
        assert_refused(ours.create(event("e", RELEASE, "another")), words)
    cluster.kubectl("delete", "event", "own", "others", "-n", NAMESPACE)


def test_the_last_hooks_token_removes_what_agents_left_and_sets_nothing(cluster: Cluster) -> None:
    """Its policy comes and goes with its account: at that time the release is gone."""
    hook = [
        made
        for made in manifests()
        if made["metadata"].get("annotations", {}).get("helm.sh/hook") == "post-delete"
        and made["kind"] != "Job"
    ]
    node, cards = path_of("Node", "", NODE), "gpu-device-plugin/cards"
    count = "aliyun.accelerator/nvidia_count"
    admin = ("node", NODE, "--overwrite")
    if not cluster.kubectl("get", "namespace", RELEASE_NAMESPACE, "--ignore-not-found"):
        cluster.kubectl("create", "namespace", RELEASE_NAMESPACE)
    cluster.apply(*hook)
    cluster.kubectl("annotate", *admin, f"{cards}=x")
    cluster.kubectl("label", *admin, f"{count}=1")
    wait_until_judged("clear-nodes-nodes", cluster)
    with token_of(cluster, f"{RELEASE}-clear-nodes") as (clearing, _):
        set_again = metadata(annotations={cards: "y"})
        wait_for("nodes are judged", lambda: not clearing.patch(node, set_again).is_accepted)
        removed = metadata(annotations={cards: None}, labels={count: None})
        assert clearing.patch(node, removed).text == ""
        for change, words in (
            (set_again, f"may not change the annotations {cards} of nodes"),
            (metadata(labels={count: "2"}), f"may not change the labels {count} of nodes"),
            (metadata(labels={"kubernetes.io/hostname": None}), "kubernetes.io/hostname of nodes"),
            ({"spec": {"unschedulable": True}}, "nothing but labels and annotations"),
        ):
            assert_refused(clearing.patch(node, change), words)
    cluster.kubectl("annotate", *admin, f"{cards}-")
    cluster.kubectl("label", *admin, f"{count}-")
    for made in hook:
        place = made["metadata"].get("namespace", "default")
        cluster.kubectl("delete", made["kind"], made["metadata"]["name"], "-n", place)
