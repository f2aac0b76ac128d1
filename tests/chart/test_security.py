"""The agent asks its node for nothing but what docs/adr lists, whatever the values are."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.chart.rendering import AGENTS_ALONE, agent, manifests, one, rights
from tests.domain.nvidia.nodes import card, sevenths, whole
from tests.held import changed, fraction

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.pod_annotations import HELD_KEYS, RESIZED, pod_annotations
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    HOLDINGS_ANNOTATION,
)
from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    TAINT_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
)
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, SERIES_ANNOTATION
from gpu_device_plugin.domain.node.labels import FEATURES_ANNOTATION, NODE_LABELS, Machine
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.nvidia.configuration import Configuration, MigStrategy
from gpu_device_plugin.domain.nvidia.feature_labels import feature_labels

CHOICES: Mapping[str, Sequence[str]] = {
    "default": (),
    "share": ("mode=share", "gpuMemoryUnit=128MiB"),
    "driver elsewhere": ("driverRoot=/run/nvidia/driver", "nvmlLibrary=lib/libnvidia-ml.so.1"),
    "simulated": ("simulate.profile=v100",),
    "cards by mounts": ("deviceListStrategy=volume-mounts",),
    "cards by CDI": (
        "deviceListStrategy=cdi-cri",
        "cdi.generator=/usr/local/nvidia/toolkit/nvidia-ctk.real",
        "cdi.managementAnnotation=true",
        "policies.cdiNamespaces={gpu-operator}",
    ),
    "everything": (
        "service.enabled=true",
        "serviceMonitor.enabled=true",
        "runtimeClassName=nvidia",
        "seLinuxOptions.type=container_device_plugin_t",
        "kubeletDir=/data/kubelet",
        "libraryDir=/opt/gpu-device-plugin",
    ),
}
OURS = {"/var/lib/gpu-device-plugin", "/run/gpu-device-plugin", "/usr/local/lib/gpu-device-plugin"}
KUBELETS = {f"/var/lib/kubelet/{name}" for name in ("device-plugins", "pod-resources", "pods-api")}


# What the agent itself reads, and no answer of it names.
ELSEWHERE = {
    "driver-root": "/driver-root",
    "all-cards": "/var/run/nvidia-container-devices/all",
    # Only what writes the cards' specification has them.
    "nvidia-driver": "/driver-root",
    "toolkit": "/toolkit/nvidia-ctk",
    # The agent looks for both of the kubelet's directories below kubelet_dir.
    "device-plugins": "{kubelet}/device-plugins",
}


@pytest.fixture(params=list(CHOICES.values()), ids=list(CHOICES))
def pod(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The agent's pod with one choice of values."""
    return agent(manifests(*request.param))


def host_paths(pod: Mapping[str, Any]) -> set[str]:
    """Directories of the node that the pod mounts."""
    return {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}


def test_no_container_has_a_privilege(pod: Mapping[str, Any]) -> None:
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert container["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert all("hostPort" not in port for port in container.get("ports", ()))


def test_the_pod_shares_no_namespace_of_its_node(pod: Mapping[str, Any]) -> None:
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys()
    context = pod["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"sysctls", "supplementalGroups", "fsGroup", "windowsOptions"} & context.keys()


def test_nothing_but_the_listed_directories_of_the_node_is_mounted() -> None:
    assert host_paths(agent(manifests())) == OURS | KUBELETS
    elsewhere = agent(manifests(*CHOICES["driver elsewhere"]))
    assert host_paths(elsewhere) == OURS | KUBELETS | {"/run/nvidia/driver"}
    by_mounts = agent(manifests(*CHOICES["cards by mounts"]))
    assert host_paths(by_mounts) == OURS | KUBELETS | {"/dev/null"}
    by_cdi = agent(manifests(*CHOICES["cards by CDI"]))
    written = {"/", "/usr/local/nvidia/toolkit/nvidia-ctk.real", "/var/run/cdi"}
    assert host_paths(by_cdi) == OURS | KUBELETS | written
    simulated = agent(manifests(*CHOICES["simulated"]))
    assert host_paths(simulated) == OURS | KUBELETS | {"/run/gpu-device-plugin/simulator"}


def test_the_kubelets_root_directory_moves_pod_resources_and_not_device_plugins() -> None:
    """Where the kubelet serves device plugins is a constant of it, whatever its --root-dir is."""
    moved = host_paths(agent(manifests("kubeletDir=/data/kubelet")))
    at_root = {"/data/kubelet/pod-resources", "/data/kubelet/pods-api"}
    assert moved == OURS | {"/var/lib/kubelet/device-plugins"} | at_root


def test_only_the_writer_of_the_specification_sees_the_drivers_root_and_it_writes_nothing_of_the_node() -> (
    None
):
    pod = agent(manifests(*CHOICES["cards by CDI"]))
    mounts = {
        each["name"]: {m["mountPath"]: m.get("readOnly", False) for m in each["volumeMounts"]}
        for each in (*pod["initContainers"], *pod["containers"])
    }
    program = {"/toolkit/nvidia-ctk": True, "/specification": False}
    assert mounts["cdi-generate"] == {**program, "/driver-root": True}
    assert mounts["cdi-install"] == {**program, "/var/run/cdi": False}
    assert mounts["agent"]["/var/run/cdi"]
    (root,) = (
        m for m in pod["initContainers"][0]["volumeMounts"] if m["mountPath"] == "/driver-root"
    )
    assert root["recursiveReadOnly"] == "IfPossible"
    assert not {"/driver-root", *program} & mounts["agent"].keys()


def test_what_others_may_write_is_mounted_read_only() -> None:
    (container,) = agent(manifests(*CHOICES["driver elsewhere"]))["containers"]
    read_only = {m["mountPath"] for m in container["volumeMounts"] if m.get("readOnly")}
    kubelets = KUBELETS - {"/var/lib/kubelet/device-plugins"}
    assert read_only == {"/driver-root", "/etc/gpu-device-plugin"} | kubelets


def test_directories_of_the_node_have_the_same_path_in_the_agent(pod: Mapping[str, Any]) -> None:
    """Allocate answers with paths of the node, which the agent knows only as its own."""
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    kubelet = paths["pod-resources"].removesuffix("/pod-resources")
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        for mount in container["volumeMounts"]:
            wanted = ELSEWHERE.get(mount["name"], paths.get(mount["name"], mount["mountPath"]))
            assert mount["mountPath"] == wanted.format(kubelet=kubelet)


def test_the_role_holds_each_verb_that_the_agent_uses_and_no_other() -> None:
    role = one(manifests(), "ClusterRole")
    used = {
        ("", "nodes"): {
            "list",
            "watch",
            "patch",
        },  # kubernetes/objects/node_object.py, kubernetes/objects/metadata_writer.py
        ("", "pods"): {
            "get",
            "list",
            "watch",
            "patch",
        },  # kubernetes/objects/pod_watch.py, kubernetes/objects/metadata_writer.py
        ("", "namespaces"): {"get"},  # agent/publish/api_cluster.py
        ("", "events"): {"create", "patch"},  # kubernetes/objects/events.py
        ("resource.k8s.io", "resourceslices"): {
            "list",
            "watch",
        },  # kubernetes/objects/node_object.py
    }
    assert rights(role) == {(*what, verb) for what, verbs in used.items() for verb in verbs}
    alone = manifests(AGENTS_ALONE)
    kept = [made for made in alone if "annotations" not in made["metadata"]]  # no hooks
    (other,) = (made for made in kept if made["kind"] == "Role")
    assert other["metadata"]["namespace"] == "kube-system"
    watched = {("", "configmaps", "list"), ("", "configmaps", "watch")}
    assert rights(other) == watched  # kubernetes/objects/unhealthy_gpus.py
    assert "Secret" not in {made["kind"] for made in kept}


def allowed(policy: Mapping[str, Any], variable: str) -> str:
    """The text of one variable of a policy."""
    (found,) = [v["expression"] for v in policy["spec"]["variables"] if v["name"] == variable]
    return str(found)


def test_the_policies_let_the_agent_write_exactly_its_own_keys() -> None:
    made = manifests()
    nodes = one(made, "ValidatingAdmissionPolicy", "gpu-device-plugin-agent-nodes")
    pods = one(made, "ValidatingAdmissionPolicy", "gpu-device-plugin-agent-pods")
    card = Card("GPU-0", CardNumber(0), CardIndex(0), 0, "Tesla V100", MiB(16160))
    grant = fraction(
        slice_id="s",
        pod=PodRef("default", "p", "u"),
        container="main",
        kind=ContainerKind.APP,
        index=0,
        units={Resource.MEM: ("m00",), Resource.CORE: ("c00",)},
        cards=("GPU-0",),
        mem_units=1,
        core_percent=5,
    )
    init = changed(grant, kind=ContainerKind.INIT)
    written = pod_annotations([init, grant], [card], 1)
    answered = {CARDS_ANNOTATION, HOLDINGS_ANNOTATION, WITHDRAWN_ANNOTATION}
    # The mark and the series it may only remove, which tests/e2e/test_policies.py holds it to.
    assert keys(allowed(nodes, "labelsAllowed")) == {*NODE_LABELS, MODEL_LABEL}
    removed = {UNINSTALL_ANNOTATION, SERIES_ANNOTATION}
    assert keys(allowed(nodes, "annotationsAllowed")) == {*answered, *removed, FEATURES_ANNOTATION}
    assert keys(allowed(pods, "labelsAllowed")) == set()
    assert keys(allowed(pods, "annotationsAllowed")) == {*written, DEVICES_ANNOTATION, RESIZED}
    assert {*written, DEVICES_ANNOTATION, RESIZED} == set(HELD_KEYS)


def test_only_with_a_startup_taint_the_agent_may_change_anything_of_a_nodes_spec() -> None:
    """What exactly is tests/e2e/test_startup_taint.py's."""
    name = "gpu-device-plugin-agent-nodes"
    without = one(manifests(), "ValidatingAdmissionPolicy", name)["spec"]
    assert "taint" not in str(without)
    made = manifests("startupTaint=example.com/starting")
    policy = one(made, "ValidatingAdmissionPolicy", name)["spec"]
    assert "t.key != 'example.com/starting'" in allowed({"spec": policy}, "removesTaint")
    keys_with = keys(allowed({"spec": policy}, "annotationsAllowed"))
    assert keys_with == keys(allowed({"spec": without}, "annotationsAllowed")) | {TAINT_ANNOTATION}
    for kept in ("agent-pods", "uninstall-nodes", "clear-nodes-nodes", "controller-nodes"):
        spec = one(made, "ValidatingAdmissionPolicy", f"gpu-device-plugin-{kept}")["spec"]
        assert "removesTaint" not in str(spec)
    tolerated = {"key": "example.com/starting", "operator": "Exists"}
    assert tolerated in agent(made)["tolerations"]
    assert rights(one(made, "ClusterRole")) == rights(one(manifests(), "ClusterRole"))


def test_the_agent_may_write_every_feature_label_and_no_other_of_nvidias() -> None:
    """Only remove them where gfd.enabled is off; the form of the keys stands in the policy."""
    (linked,) = whole(1)
    cards = [
        replace(linked, hardware=replace(linked.hardware, fabric="5a5a.1")),
        *sevenths(1),
        *whole(2),
        card(3, "1g.5gb+me", "3g.20gb", "1g.24gb+me.all", "1g.24gb-me"),
    ]
    written = set[str]()
    for strategy in MigStrategy:
        of = Configuration(mig_strategy=strategy)
        written |= feature_labels(cards, of, Machine("535.1.2", "12.2", "x", 1)).keys()
        written |= feature_labels(sevenths(1), of, Machine("535.1.2", "12.2")).keys()

    def wrong(*values: str) -> str:
        policy = one(
            manifests(*values), "ValidatingAdmissionPolicy", "gpu-device-plugin-agent-nodes"
        )
        (found,) = (v for v in policy["spec"]["variables"] if v["name"] == "labelsWrong")
        return str(found["expression"])

    on, off = wrong("gfd.enabled=true"), wrong()
    (pattern,) = re.findall(r"k\.matches\('(.*?)'\)", on)
    assert {key for key in written if not re.search(pattern, key)} == set()
    for key in ("nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.present", "a.nvidia.com/gpu.count"):
        assert not re.search(pattern, key)
    assert pattern in off
    assert "&& !(k in variables.labels)" in off
    assert "&& !(k in variables.labels)" not in on


def keys(text: str) -> set[str]:
    """The texts of a CEL list."""
    return {item.strip(" '\n") for item in text.strip("[]").split(",")} - {""}


def test_the_agents_policies_name_the_account_that_the_agent_runs_as() -> None:
    made = manifests(values={"serviceAccount": {"create": False, "name": "somebody"}})
    assert agent(made)["serviceAccountName"] == "somebody"
    for resource in ("nodes", "pods"):
        name = f"gpu-device-plugin-agent-{resource}"
        (condition,) = one(made, "ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
        assert "'system:serviceaccount:gpu-device-plugin:somebody'" in condition["expression"]


def test_only_agent_controller_and_named_accounts_write_what_a_bound_pod_holds() -> None:
    """What the policy does is tested on a real API server: tests/e2e/test_policies.py."""
    other = "system:serviceaccount:kube-system:gpushare-device-plugin"
    policy = one(
        manifests(values={"policies": {"annotationWriters": [other]}}),
        "ValidatingAdmissionPolicy",
        "gpu-device-plugin-annotations",
    )
    (writers,) = (
        condition["expression"]
        for condition in policy["spec"]["matchConditions"]
        if condition["name"] == "is-of-somebody-else"
    )
    ours = "system:serviceaccount:gpu-device-plugin:gpu-device-plugin"
    assert keys(writers[writers.index("[") : writers.index("]")]) == {
        ours,
        f"{ours}-controller",
        other,
    }
    guarded = allowed(policy, "changed")
    assert keys(guarded[: guarded.index("]")]) == set(HELD_KEYS)
    off = manifests("policies.annotations=false")
    assert not [m for m in off if m["metadata"]["name"] == "gpu-device-plugin-annotations"]
