"""Hooks run from our image with rights of their own, which are what their command uses."""

from collections.abc import Mapping
from typing import Any

import pytest
from click import Context
from tests.chart.rendering import NAME, manifests, one, rights

from gpu_device_plugin.cli.main import cli
from gpu_device_plugin.domain.grants.node_annotations import UNINSTALL_ANNOTATION

EVENTS = {
    "uninstall": "pre-delete",
    "clear-nodes": "post-delete",
    "upgrade": "pre-upgrade,pre-rollback",
}
# What kubernetes/objects/fleet.py and kubernetes/objects/survey.py ask for in each command, and nothing else.
RIGHTS: Mapping[str, Mapping[str, set[tuple[str, str, str]]]] = {
    "uninstall": {
        "ClusterRole": {("", "nodes", "get"), ("", "nodes", "patch")},
        "Role": {("apps", "daemonsets", "get"), ("", "pods", "list")},
    },
    "clear-nodes": {
        "ClusterRole": {
            ("", "nodes", "list"),
            ("", "nodes", "patch"),
            ("", "pods", "list"),
            ("apps", "daemonsets", "list"),
        },
        "Role": {("apps", "daemonsets", "get")},
    },
    "upgrade": {
        "ClusterRole": {("", "nodes", "list"), ("", "pods", "list")},
        "Role": {("", "configmaps", "get"), ("apps", "daemonsets", "get")},
    },
}


def hook_objects(*settings: str, event: str = "") -> list[dict[str, Any]]:
    """Every object that is one of our hooks, of one event or of any; `helm test` is not one."""
    return [
        made
        for made in manifests(*settings)
        if (told := made["metadata"].get("annotations", {}).get("helm.sh/hook"))
        and told != "test"
        and event in ("", told)
    ]


def job(name: str, *settings: str) -> dict[str, Any]:
    """The Job of a hook."""
    return one(manifests(*settings), "Job", f"{NAME}-{name}")


@pytest.mark.parametrize("name", EVENTS)
def test_account_and_roles_come_before_the_job_and_all_go_with_it(name: str) -> None:
    made = {m["kind"]: m["metadata"]["annotations"] for m in hook_objects(event=EVENTS[name])}
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert made.keys() - policy == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Job",
    }
    weights = {kind: int(notes["helm.sh/hook-weight"]) for kind, notes in made.items()}
    assert weights["Role"] < weights["RoleBinding"] < weights["Job"]
    assert weights["ServiceAccount"] < weights["ClusterRoleBinding"] < weights["Job"]
    policies = {notes["helm.sh/hook-delete-policy"] for notes in made.values()}
    assert policies == {"before-hook-creation,hook-succeeded,hook-failed"}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_a_hook_has_each_right_that_its_command_uses_and_no_other(name: str, kind: str) -> None:
    role = one(manifests(), kind, f"{NAME}-{name}")
    assert rights(role) == RIGHTS[name][kind]
    for rule in role["rules"]:
        if rule["verbs"] == ["get"]:
            assert rule["resourceNames"] == [NAME]


@pytest.mark.parametrize("name", EVENTS)
def test_a_binding_gives_the_role_to_the_account_that_the_job_runs_as(name: str) -> None:
    made = manifests()
    account = job(name)["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == f"{NAME}-{name}"
    for kind in ("ClusterRole", "Role"):
        binding = one(made, f"{kind}Binding", f"{NAME}-{name}")
        assert binding["roleRef"]["name"] == f"{NAME}-{name}"
        assert [subject["name"] for subject in binding["subjects"]] == [account]


@pytest.mark.parametrize("name", EVENTS)
def test_a_hook_has_its_own_account_where_the_agents_is_the_operators(name: str) -> None:
    """The agent's may not set the mark, and the operator's has not the hook's rights."""
    made = manifests("serviceAccount.create=false", "serviceAccount.name=mine")
    account = one(made, "Job", f"{NAME}-{name}")["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == f"{NAME}-{name}"
    one(made, "ServiceAccount", account)
    policy = one(made, "ValidatingAdmissionPolicy", f"{NAME}-uninstall-nodes")
    (condition,) = policy["spec"]["matchConditions"]
    assert f":{NAME}-uninstall'" in condition["expression"]


@pytest.mark.parametrize("name", EVENTS)
def test_a_hook_keeps_all_that_pod_security_calls_restricted(name: str) -> None:
    pod = job(name)["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in pod
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize("name", EVENTS)
def test_a_hook_gives_arguments_that_its_command_takes(name: str) -> None:
    settings = ("mode=share", "gpuMemoryUnit=128MiB", "hooks.uninstall.timeoutSeconds=77")
    (container,) = job(name, *settings)["spec"]["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    assert container["command"] == ["gpu-device-plugin"]
    known = cli.get_command(Context(cli), command)
    assert known is not None
    context = known.make_context(command, list(arguments))
    told = context.params
    assert (told["namespace"], told["daemonset"]) == (NAME, NAME)
    if name == "upgrade":
        assert (str(told["mode"]), told["memory_unit"]) == ("share", "128MiB")
        assert told["without_claims"]
        assert "--without-claims" not in str(job(name, "dra.enabled=true"))
    else:
        assert told["timeout"] == (77 if name == "uninstall" else 60)


def test_the_hook_says_which_nodes_did_not_answer_before_anything_else_ends_it() -> None:
    """Its own deadline, then the Job's, then helm's five minutes."""
    spec = job("uninstall")["spec"]
    own = int(spec["template"]["spec"]["containers"][0]["args"][-2].partition("=")[2])
    assert own < spec["activeDeadlineSeconds"] < 300
    assert spec["backoffLimit"] == 0


def test_the_hooks_token_may_write_nothing_of_a_node_but_the_mark() -> None:
    policy = one(manifests(), "ValidatingAdmissionPolicy", f"{NAME}-uninstall-nodes")
    (condition,) = policy["spec"]["matchConditions"]
    assert f"'system:serviceaccount:{NAME}:{NAME}-uninstall'" in condition["expression"]
    allowed = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
    assert allowed["labelsAllowed"] == "[]"
    assert allowed["annotationsAllowed"] == f"['{UNINSTALL_ANNOTATION}']"


def test_a_hook_that_is_switched_off_leaves_nothing() -> None:
    off = ("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false")
    assert hook_objects(*off) == []
    names = [made["metadata"]["name"] for made in manifests(*off)]
    assert f"{NAME}-uninstall-nodes" not in names


def test_hooks_prefer_nodes_that_have_or_had_an_agent_and_so_the_image() -> None:
    labels = one(manifests(), "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    for name in EVENTS:
        pod = job(name)["spec"]["template"]
        wanted = pod["spec"]["affinity"]["podAffinity"]
        (term,) = wanted["preferredDuringSchedulingIgnoredDuringExecution"]
        nodes = pod["spec"]["affinity"]["nodeAffinity"]
        preferred = nodes["preferredDuringSchedulingIgnoredDuringExecution"]
        agents = one(manifests(), "DaemonSet")["spec"]["template"]["spec"]["affinity"]
        required = agents["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        by_card = [each["preference"]["matchExpressions"][0] for each in preferred]
        assert by_card == [each["matchExpressions"][0] for each in required["nodeSelectorTerms"]]
        assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
        assert not labels.items() <= pod["metadata"]["labels"].items()


def test_hooks_run_where_the_agents_may_and_pull_as_they_do() -> None:
    values = {"imagePullSecrets": [{"name": "pull"}], "tolerations": [{"operator": "Exists"}]}
    for name in EVENTS:
        made = one(manifests(values=values), "Job", f"{NAME}-{name}")
        pod = made["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == values["imagePullSecrets"]
        assert pod["tolerations"] == values["tolerations"]
