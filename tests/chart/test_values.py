"""A value does what the chart's README says, or is an error that says why it cannot."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.readme import leaves
from tests.chart.rendering import (
    AGENTS_ALONE,
    CHART,
    NAME,
    RefusedError,
    agent,
    manifests,
    one,
    render,
    template_said,
)
from tools.chart_values import REQUIRED
from tools.harness.cluster.binaries import HELM

from gpu_device_plugin.agent.node_checks.node_settings import file_of
from gpu_device_plugin.domain.cards.health_values import XidAction
from gpu_device_plugin.domain.grants.container_edits import SELFTEST_FILE, VISIBLE_DEVICES_DIR
from gpu_device_plugin.domain.node.memory_enforcer import EnforcerChoice
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.settings.agent_settings import Settings, load_settings
from gpu_device_plugin.settings.nvidia_settings import NvidiaSettings
from gpu_device_plugin.settings.setting import settings_of

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
REFUSED_BY_THE_SCHEMA = {
    "migProfile=MIG9g": "at '/migProfile': value must be one of",
    "gpuMemoryUnit=256MiB": "at '/gpuMemoryUnit': value must be one of 'GiB', '128MiB'",
    "nodeSettings.map.small.unit=GiB": "additional properties 'unit' not allowed",
    "nodeSettings.map.small.deviceListStrategy=volume-mounts": "at '/nodeSettings/map/small/deviceListStrategy'",
    "deviceIDStrategy=name": "at '/deviceIDStrategy'",
    "migStrategy=both": "at '/migStrategy': value must be one of",
    "mode=exclusive": "at '/mode': value must be one of",
    "placement=pack": "at '/placement': value must be one of 'binpack', 'spread'",
    "computePolicy=6": "at '/computePolicy': value must be one of 'fixed', 'work-conserving'",
    "driverCapabilities=cuda": "at '/driverCapabilities'",
    "isolation=perhaps": "at '/isolation'",
    "nodeselector.x=y": "additional properties 'nodeselector' not allowed",
    "policies.requests.percent=false": "additional properties 'percent' not allowed",
    "simulate.profile=b200": "at '/simulate/profile'",
    "libraryDir=lib": "at '/libraryDir'",
    "fullnameOverride=Foo_Bar": "at '/fullnameOverride'",
    "nameOverride=Foo_Bar": "at '/nameOverride'",
    "policies.cdiNamespaces={Not_A_Name}": "at '/policies/cdiNamespaces/0'",
    "updateStrategy.rollingUpdate.maxSurge=1": "additional properties 'maxSurge' not allowed",
    "recoverySeconds=0": "at '/recoverySeconds'",
    "startupTaint=a b": "at '/startupTaint'",
    "image.digest=abc": "at '/image/digest'",
    "xidTable.xids[0].code=74,xidTable.xids[0].name=x,xidTable.xids[0].action=ingore": "at '/xidTable/xids/0/action'",
    "xidTable.default.name=x,xidTable.default.action=fault,xidTable.default.recovery=no": "at '/xidTable/default/recovery'",
}
REFUSED = {
    "config.name=mine,config.map.a=version: v1": "config.name and config.map exclude each other",
    "config.default=b,config.map.a=version: v1": "config.default b is none of config.map: it has a",
    "config.map.a=x": "config.map.a is no YAML object",
    "config.map.a=version: v2": "config.map.a: unknown version v2, NVIDIA's configuration has v1",
    "config.map.a=timeSlicing: {}": "config.map.a: unknown key timeSlicing; it belongs to sharing.timeSlicing",
    "config.map.a=timeSlices: {}": "config.map.a: unknown key timeSlices; the keys here are flags, imex, resources, sharing, version",
    "config.map.x.flags.deviceListStrategy=envvar": "config.map.x.flags: unknown key deviceListStrategy; it belongs to flags.plugin.deviceListStrategy",
    "config.map.x.flags.renameByDefault=true": "unknown key renameByDefault; it belongs to sharing.mps.renameByDefault or sharing.timeSlicing.renameByDefault",
    "config.map.x.name=a": "it belongs to resources.gpus.name or resources.mig.name or sharing.mps.resources.name or",
    "config.map.a.sharing.mps.x=1,config.map.a.sharing.timeSlicing.x=1": "config.map.a: sharing.timeSlicing and sharing.mps exclude each other",
    "mps.enabled=true": "mps.enabled needs config.map or config.name",
    "mps.enabled=true,config.name=c": "mps.enabled needs gfd.enabled: the MPS daemon runs on nodes labelled",
    "mps.enabled=true,config.name=c,gfd.enabled=true,migStrategy=mixed": "does not go with migStrategy mixed",
    "mode=mps": "mode mps is not served yet",
    "computePolicy=4": "computePolicy 4 shares by the number of containers, which is not offered",
    "driverRoot=/run/nvidia/driver": "driverRoot needs nvmlLibrary",
    "nvmlLibrary=lib/libnvidia-ml.so.1": "nvmlLibrary is a path below driverRoot",
    "serviceMonitor.enabled=true": "serviceMonitor.enabled needs service.enabled",
    "libraryDir=/": "at '/libraryDir'",
    "libraryDir=/etc": "/etc is no path for this",
    "libraryDir=/var//lib/gpu-device-plugin": "has something else there already",
    "libraryDir=/var/lib/kubelet/pod-resources": "has something else there already",
    "mode=null": "missing property 'mode'",
    "policies.requests=null": "missing property 'requests'",
    "isolation=null": "missing property 'isolation'",
    "simulate.driverVersion=535.1": "it needs simulate.profile",
    "cdi.generator=/usr/bin/nvidia-ctk,simulate.profile=t4": "goes with neither cdi.generator nor",
    "cdi.managementAnnotation=true,runtimeClassName=nvidia": "goes with neither runtimeClassName nor",
    "cdi.generator=/usr/bin/nvidia-ctk": "set deviceListStrategy to auto or cdi-cri",
    "cdi.generator=/usr/bin/nvidia-ctk,config.map.x=flags: {deviceDiscoveryStrategy: auto}": "set deviceListStrategy to auto or cdi-cri",
    "cdi.managementAnnotation=true,deviceListStrategy=envvar": "set deviceListStrategy to auto",
    "cdi.managementAnnotation=true,deviceListStrategy=auto": "which deviceListStrategy auto may fall back: set it to cdi-cri",
    "cdi.managementAnnotation=true,config.map.x=flags: {plugin: {deviceListStrategy: auto}}": "may fall back: set it to cdi-cri",
    "cdi.managementAnnotation=true,deviceListStrategy=cdi-cri": "Set policies.cdiNamespaces to the namespaces",
    "policies.validationActions={Deny,Warn}": "takes Deny or Warn, not both",
    "kubeletDir=/var/lib/../kubelet": "name the thing itself, without ..",
    "serviceAccount.create=false": "serviceAccount.name is needed",
    "extraEnv[0].name=GPU_DEVICE_PLUGIN_MODE,extraEnv[0].value=share": "the chart gives GPU_DEVICE_PLUGIN_MODE itself",
    "extraEnv[0].name=NVIDIA_VISIBLE_DEVICES,extraEnv[0].value=GPU-1": "name those in the ConfigMap kube-system/unhealthy-gpu-NODE",
    "xidTable.xids[0].name=x,xidTable.xids[0].action=fault": "missing property 'code'",
    "service.enabled=true,serviceMonitor.enabled=true,podMonitor.enabled=true": "scraped twice",
}
NOT_IN_THE_FILE = {
    "node_name",  # NODE_NAME, by the downward API
    "kubeconfig",  # the pod's service account
    "standalone",  # a chart is for a cluster
    "xid_table",  # by xidTable only
    "node_settings_dir",  # by nodeSettings.map only
    "state_dir",  # its default; a hostPath
    "run_dir",  # its default; a hostPath
    "nvml_library",  # by driverRoot only
    "simulator_dir",  # by simulate.profile only
    *(
        each.key for each in settings_of(NvidiaSettings)
    ),  # NVIDIA's variables: tests/chart/test_nvidia.py
    "without_claims",  # where the agent has a directory of CDI files
    "startup_taint",  # where it is given
    "enable_healthchecks",  # DP_ENABLE_HEALTHCHECKS, by extraEnv
    "disable_healthchecks",  # DP_DISABLE_HEALTHCHECKS, by extraEnv
}


def settings(tmp_path: Path, *values: str) -> Settings:
    """What the agent makes of the rendered ConfigMap."""
    file = tmp_path / "config.yaml"
    file.write_text(one(manifests(*values), "ConfigMap")["data"]["config.yaml"])
    return load_settings({}, {"NODE_NAME": "n1"}, file)


@pytest.mark.parametrize(("value", "words"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_is_an_error_that_says_why(value: str, words: str) -> None:
    """R-560."""
    with pytest.raises(RefusedError) as refusal:
        render(value)
    assert words in str(refusal.value)


def test_what_the_schema_refuses_is_said_at_once() -> None:
    with pytest.raises(RefusedError) as refusal:
        render(*REFUSED_BY_THE_SCHEMA)
    said = str(refusal.value)
    assert [words for words in REFUSED_BY_THE_SCHEMA.values() if words not in said] == []


def test_the_hook_on_the_node_has_to_find_the_driver_as_the_agent_does() -> None:
    driver = ("memoryEnforcer=auto", "driverRoot=/opt/n", "nvmlLibrary=lib64/libnvidia-ml.so.1")
    with pytest.raises(RefusedError, match="needs nvidiaDriverRoot"):
        render(*driver)
    assert render(*driver, "nvidiaDriverRoot=/opt/n")


def test_an_older_kubernetes_than_the_agent_needs_is_refused() -> None:
    """R-121."""
    assert render(kubernetes="v1.34.0")
    with pytest.raises(RefusedError, match=r"requires kubeVersion: >=1\.34\.0-0"):
        render(kubernetes="v1.33.9")


def test_the_page_names_the_helm_that_was_tested() -> None:
    page = (CHART.parents[1] / "docs" / "install.md").read_text()
    assert f"helm 3 (tested with {HELM})" in page


def test_simulated_cards_go_with_no_driver() -> None:
    with pytest.raises(RefusedError, match="goes with neither driverRoot nor runtimeClassName"):
        render("simulate.profile=v100", "runtimeClassName=nvidia")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("deviceListStrategy=cdi-cri", "deviceListStrategy cdi-cri"),
        ("compatWithCPUManager=true", "compatWithCPUManager"),
    ],
)
def test_simulated_cards_are_no_device_nodes(way: str, words: str) -> None:
    with pytest.raises(RefusedError, match=f"does not go with {words}"):
        render("simulate.profile=v100", way)


def test_null_is_nothing_where_nothing_is_the_default() -> None:
    nothing = [
        path
        for path, value in leaves(VALUES)
        if value in ("", None, [], {}) and path not in REQUIRED
    ]
    assert len(nothing) > 30
    assert render(*(f"{path}=null" for path in nothing)) == render()


def test_the_drivers_library_lies_below_its_root() -> None:
    with pytest.raises(RefusedError, match=r"name the thing itself, without \.\."):
        render("driverRoot=/run/nvidia/driver", "nvmlLibrary=../libnvidia-ml.so.1")


@pytest.mark.parametrize(
    "reaches",
    [
        {
            "mode=cgpu": "mode: cgpu",
            "placement=spread": "placement: spread",
            "gpuMemoryUnit=128MiB": "memory_unit: 128MiB",
            "isolation=false": "isolation: 'off'",
            "honorCgpuDisable=true": "honor_cgpu_disable: true",
            "computePolicy=work-conserving": "compute_policy: work-conserving",
            "driverLimitBy=toolkit": "driver_limit_by: toolkit",
            "honorPodComputePolicy=true": "honor_pod_compute_policy: true",
            "driverCapabilities=all": "driver_capabilities: all",
            "sandboxRuntimeClasses={mine*}": "sandbox_runtime_classes: mine*",
            "deviceListStrategy=cdi-cri": "device_list_strategy: cdi-cri",
            "compatWithCPUManager=true": "pass_device_specs: true",
            "gfd.enabled=true": "gfd: true",
            "allowOtherPlugin=true": "allow_other_plugin: true",
            "recoverySeconds=90": "recovery_seconds: 90",
            "startupTaint=example.com/new": "startup_taint: example.com/new",
            "unifiedMemoryReserveMib=8192": "unified_memory_reserve_mib: 8192",
            "kubeletDir=/data/kubelet": "kubelet_dir: /data/kubelet",
            "libraryDir=/opt/slices": "library_dir: /opt/slices",
            "metrics.port=9500": "metrics_address: ':9500'",
            "logLevel=debug": "log_level: debug",
            "logFormat=text": "log_format: text",
            "driverRoot=/driver,nvmlLibrary=lib/nvml.so": "nvml_library: /driver-root/lib/nvml.so",
        },
        {
            "computePolicy=5": "compute_policy: native",
            "memoryEnforcer=driver": "{memory_enforcer: driver, without_claims: true}",
            "deviceListStrategy={envvar,cdi-cri}": "device_list_strategy: envvar,cdi-cri",
            "cdiDir=/etc/cdi": "cdi_dir: /etc/cdi",
        },
    ],
    ids=["most", "others"],
)
def test_a_value_reaches_the_agent(tmp_path: Path, reaches: Mapping[str, str]) -> None:
    """R-401."""
    expected = {key: n for said in reaches.values() for key, n in yaml.safe_load(said).items()}

    def plain(made: Settings) -> dict[str, Any]:
        found = {key: getattr(made, key) for key in expected}
        found = {k: ",".join(v) if isinstance(v, tuple) else v for k, v in found.items()}
        return {key: getattr(value, "value", value) for key, value in found.items()}

    assert plain(settings(tmp_path, *reaches)) == expected
    assert [key for key, n in plain(settings(tmp_path)).items() if n == expected[key]] == []


def test_the_defaults_of_the_chart_are_those_of_the_agent(tmp_path: Path) -> None:
    """But for what needs a privileged process, which an operator has to ask for (R-401)."""
    expected = Settings(node_name="n1", memory_enforcer=EnforcerChoice.LIBRARY)
    assert settings(tmp_path) == expected


def test_every_setting_of_the_agent_is_in_the_file_or_left_out_on_purpose() -> None:
    file = one(manifests(), "ConfigMap")["data"]["config.yaml"]
    assert (
        set(yaml.safe_load(file)) == {each.key for each in settings_of(Settings)} - NOT_IN_THE_FILE
    )


def test_other_settings_start_the_agents_again() -> None:
    def checksum(*values: str) -> str:
        template = one(manifests(*values), "DaemonSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["gpu-device-plugin/settings-checksum"])

    assert checksum() != checksum("mode=cgpu")
    assert checksum() == checksum("nodeSelector.a=b")


def test_every_mig_profile_of_every_model_is_a_value() -> None:
    """R-203, R-309: under its own name, in a label's spelling and under the name of AKS."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = {*schema["properties"]["migProfile"]["enum"]}
    assert {"", "MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g", "1g.5gb+me", "1g.5gb.me"} <= known


def labels_of(pod: Mapping[str, Any]) -> dict[str, set[str]]:
    """Node label -> how the affinity wants it."""
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found: dict[str, set[str]] = {}
    for term in terms["nodeSelectorTerms"]:
        for wanted in term["matchExpressions"]:
            found.setdefault(wanted["key"], set()).add(wanted["operator"])
    return found


def test_agents_go_to_nodes_with_a_card_and_simulated_ones_to_all_others() -> None:
    real, simulated = (
        labels_of(agent(manifests())),
        labels_of(agent(manifests("simulate.profile=v100"))),
    )
    assert real.pop("nvidia.com/gpu.deploy.client") == {"NotIn"}
    del simulated["nvidia.com/gpu.deploy.client"]
    assert real.pop("ack.node.gpu.schedule") == {"Exists"}
    assert real.keys() == simulated.keys()
    assert set.union(*real.values()) == {"In", "Exists"}
    assert set.union(*simulated.values()) == {"NotIn", "DoesNotExist"}


def test_an_agent_that_starts_again_on_a_node_that_is_about_to_be_removed_is_let_in() -> None:
    """Pods there may still end slowly, and restart."""
    tolerated = {each["key"]: each.get("effect") for each in agent(manifests())["tolerations"]}
    for taint in ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"):
        assert tolerated[taint] == "NoSchedule"


def test_a_pod_is_told_where_it_may_run_and_by_which_runtime() -> None:
    values: dict[str, Any] = {
        "nodeSelector": {"pool": "gpu"},
        "affinity": {"podAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "seLinuxOptions": {"type": "container_device_plugin_t"},
        "imagePullSecrets": [{"name": "pull"}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    pod = agent(manifests(values=values))
    assert pod["nodeSelector"]["pool"] == "gpu"
    assert pod["affinity"]["podAffinity"] == {}
    for key in ("tolerations", "runtimeClassName", "imagePullSecrets"):
        assert pod[key] == values[key]
    assert pod["securityContext"]["seLinuxOptions"] == values["seLinuxOptions"]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}


def test_the_nvidia_runtime_is_asked_for_nvml_and_only_where_there_is_a_driver() -> None:
    def environment(*values: str) -> dict[str, str]:
        entries = agent(manifests(*values))["containers"][0]["env"]
        return {entry["name"]: entry.get("value", "") for entry in entries}

    assert environment()["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment()["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    # The agent answers with the device nodes that it sees, and uvm comes with compute only.
    by_nodes = environment("compatWithCPUManager=true")["NVIDIA_DRIVER_CAPABILITIES"]
    assert by_nodes == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment("simulate.profile=v100")
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(
        "cdi.managementAnnotation=true",
        "deviceListStrategy=cdi-cri",
        "policies.cdiNamespaces={gpu-operator}",
    )
    by_mounts = environment("deviceListStrategy=volume-mounts")["NVIDIA_VISIBLE_DEVICES"]
    assert by_mounts == VISIBLE_DEVICES_DIR


def test_containers_that_open_cards_ask_the_nri_plugin_for_them_where_no_runtime_would() -> None:
    """The agent, what writes its cards' specification, and each other DaemonSet of the release."""
    values = (
        "cdi.managementAnnotation=true",
        "policies.cdiNamespaces={gpu-operator}",
        "cdi.generator=/usr/bin/nvidia-ctk",
        "deviceListStrategy=cdi-cri",
    )
    tools = ("migManager.enabled=true", "memoryEnforcer=auto")
    sets = [each for each in manifests(*values, *tools) if each["kind"] == "DaemonSet"]
    begin = "nvidia.cdi.k8s.io/container."
    for each in sets:
        pod = each["spec"]["template"]
        found = {key for key in pod["metadata"]["annotations"] if key.startswith(begin)}
        every = {*pod["spec"]["containers"][0]["name"].split(), "cdi-generate"}
        inits = {container["name"] for container in pod["spec"].get("initContainers", ())}
        wanted = every if "cdi-generate" in inits else every - {"cdi-generate"}
        assert found == {begin + name for name in wanted}
        assert "NVIDIA_VISIBLE_DEVICES" not in str(pod)
    assert len(sets) == 3


def test_the_specification_of_cards_has_the_hook_beside_the_program_and_the_nodes_paths() -> None:
    values = (
        "cdi.generator=/opt/nvidia-ctk",
        "nvidiaDriverRoot=/run/nvidia/driver",
        "config.name=mine",
        "config.default=a",
    )
    pod = agent(manifests(*values, "cdiDir=/etc/cdi-of-ours"))
    write, install = (container["args"] for container in pod["initContainers"])
    assert "--nvidia-cdi-hook-path=/opt/nvidia-cdi-hook" in write
    assert "--to=/run/nvidia/driver" in install
    assert "--output=/etc/cdi-of-ours/cards.gpu-device-plugin.json" in install
    named = agent(manifests(*values, "cdi.hook=/usr/bin/nvidia-cdi-hook"))["initContainers"][0]
    assert "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook" in named["args"]


def test_simulated_nodes_have_cards_of_their_own() -> None:
    pod = agent(manifests("simulate.profile=t4"))
    (first,) = pod["initContainers"]
    assert "--profile=t4" in first["args"]
    assert "--seed=$(NODE_NAME)" in first["args"]
    assert {entry["name"] for entry in first["env"]} == {"NODE_NAME"}
    file = one(manifests("simulate.profile=t4"), "ConfigMap")["data"]["config.yaml"]
    (state,) = (arg for arg in first["args"] if arg.startswith("--state="))
    assert yaml.safe_load(file)["simulator_dir"] == state.partition("=")[2]


def test_metrics_are_found_by_a_service_only_where_wanted() -> None:
    found = {(made["kind"], made["metadata"]["name"]) for made in manifests()}
    assert not {("Service", NAME), ("ServiceMonitor", NAME)} & found
    made = manifests("service.enabled=true", "serviceMonitor.enabled=true", "metrics.port=9500")
    service, monitor = one(made, "Service"), one(made, "ServiceMonitor")
    pod_labels = one(made, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pod_labels.items()
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    (port,) = agent(made)["containers"][0]["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"] == "metrics"
    assert port["containerPort"] == service["spec"]["ports"][0]["port"] == 9500


def test_probes_ask_the_agents_own_pages() -> None:
    (container,) = agent(manifests())["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_nothing_is_left_of_what_is_switched_off() -> None:
    values = ("rbac.create=false", "serviceAccount.create=false", "serviceAccount.name=mine")
    hooks = ("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false")
    made = manifests(*values, *hooks, "policies.enabled=false", AGENTS_ALONE)
    assert {one["kind"] for one in made} == {"ConfigMap", "DaemonSet", "Pod"}  # for `helm test`


def test_an_image_is_named_by_registry_and_digest_where_they_are_given() -> None:
    """In every pod of the chart, hooks and the test included."""
    digest = "sha256:" + "0" * 64
    made = manifests("global.imageRegistry=r.example:5000", f"image.digest={digest}")
    images = set(re.findall(r"image: (.*gpu-device-plugin.*)", yaml.safe_dump_all(made)))

    assert images == {f"r.example:5000/localhost/gpu-device-plugin@{digest}"}


def test_the_stock_scheduler_comes_from_that_registry_too() -> None:
    """In place of its own, not before it."""
    text = render("global.imageRegistry=r.example:5000")
    other = render("global.imageRegistry=r.example:5000", "scheduler.image.repository=k8s/planner")

    assert 'image: "r.example:5000/kube-scheduler:v' in text
    assert 'image: "r.example:5000/k8s/planner:v' in other


def notes(*settings: str, kubernetes: str = "") -> str:
    """The chart's notes; helm shows them at an installation only, so another object includes them."""
    words = '{{ include "gpu-device-plugin/templates/NOTES.txt" . | toJson }}'
    said: str = json.loads(template_said(words, *settings, kubernetes=kubernetes))
    return said


def test_the_notes_say_where_the_agents_run_and_name_the_namespace() -> None:
    for setting, where in (
        ("simulate.profile=", "on nodes with a label of an NVIDIA card"),
        ("simulate.profile=v100", "on nodes without a label of an NVIDIA card"),
        ("affinity.nodeAffinity.x=y", "on the nodes that the value affinity names"),
    ):
        said = notes(setting)
        assert said.startswith(f"The agent runs {where}"), said
        assert f"helm test {NAME} --namespace {NAME}\n" in said


def test_the_notes_say_what_waits_for_the_scheduler_or_what_the_agents_alone_cost() -> None:
    on = "controller.enabled=true"
    image = "registry.k8s.io/kube-scheduler:v1.36.3"
    placed = notes(on, kubernetes="1.36.3")
    assert f"rollout status deployment/{NAME}-scheduler\n" in placed
    assert (
        f"get schedulerName gpu-scheduler. Until it runs (image {image})\nthey stay Pend" in placed
    )
    by_hand = notes(on, "scheduler.namedBy=nobody")
    assert "Pods have to name it: spec.schedulerName: gpu-scheduler." in by_hand
    assert "no kube-scheduler asks it yet" in notes(on, "scheduler.enabled=false")
    no_effect = "Labels alibabacloud.com/... of pods have no effect"
    assert no_effect in placed
    assert no_effect not in notes(on, "controller.webhook.enabled=true")
    assert no_effect not in notes(AGENTS_ALONE)
    away = "while no controller answers go to the default scheduler"
    assert away in notes(on, kubernetes="1.35.2")
    assert away not in placed
    alone = "Unless the controller of another one places pods, a pod that fits no single card"
    assert alone in notes(AGENTS_ALONE)
    assert alone not in placed
    assert alone not in notes(AGENTS_ALONE, "mode=default")


def test_the_notes_say_which_labels_turn_claims_on() -> None:
    """The nodes first, unless all of them serve claims, and then the namespaces."""
    node, label = (
        "kubectl label node NODE gpu-device-plugin/allocation-api=dra",
        "gpu-device-plugin/allocation-api=dra",
    )
    said = notes("dra.enabled=true", "dra.namespaces={team-a,team-b}")
    assert node in said
    assert said.index(node) < said.index(f"kubectl label namespace team-a {label}")
    assert f"kubectl label namespace team-b {label}" in said
    every = notes("dra.enabled=true", "allocationApi=dra")
    assert node not in every
    assert f"kubectl label namespace NAMESPACE {label}" in every
    assert "name the namespace in dra.namespaces" in every
    assert label not in notes()


@pytest.mark.parametrize(
    ("mode", "shown", "tested"),
    [
        ("core_mem", "aliyun.com/", "aliyun.com/gpu-mem"),
        ("share", "aliyun.com/", "aliyun.com/gpu-mem"),
        ("topology", "aliyun.com/", "aliyun.com/gpu"),
        ("default", "nvidia.com/", "nvidia.com/gpu"),
        ("mig", "nvidia.com/", ""),
        ("disabled", "", ""),
    ],
)
def test_the_notes_show_what_the_mode_offers_and_a_test_only_where_there_is_one(
    mode: str, shown: str, tested: str
) -> None:
    said = notes(f"mode={mode}")

    assert [line.partition("grep ")[2] for line in said.splitlines() if "grep" in line] == (
        [shown] if shown else []
    )
    assert ("helm test" in said) == bool(tested)
    assert f"on a node in mode {mode} with room for 1 {tested}:\n" in said or not tested
    assert ("A first slice: " in said) == (mode == "core_mem")


def test_the_notes_say_that_sharing_needs_another_mode() -> None:
    """S3's values alone render a node that divides its cards, and has no replicas."""
    told = "`sharing` in config.name or config.map needs --set mode=default"
    assert told in notes("config.name=time-slicing")
    assert told in notes("config.map.a=version: v1", "mode=share")
    assert told not in notes("config.name=time-slicing", "mode=default") + notes()


def test_the_notes_of_claims_show_resource_slices() -> None:
    said = notes("dra.enabled=true", "allocationApi=dra", kubernetes="1.36.0")

    assert "kubectl get resourceslices\n" in said
    assert "helm test" not in said


def test_what_an_operator_adds_to_the_pods_is_there() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy"}
    values = {"podLabels": {"team": "gpu"}, "podAnnotations": {"note": "x"}, "extraEnv": [proxy]}
    template = one(manifests(values=values), "DaemonSet")["spec"]["template"]

    assert template["metadata"]["labels"]["team"] == "gpu"
    assert template["metadata"]["annotations"]["note"] == "x"
    assert proxy in template["spec"]["containers"][0]["env"]


def test_a_table_of_xids_reaches_the_agent(tmp_path: Path) -> None:
    """As the file that its setting names; the agent can parse it."""
    table = {"xids": [{"code": 74, "name": "NVLink error", "action": "report"}]}
    data = one(manifests(values={"xidTable": table}), "ConfigMap")["data"]
    (tmp_path / "xids.yaml").write_text(data["xid-table.yaml"])

    assert "xid_table: /etc/gpu-device-plugin/xid-table.yaml" in data["config.yaml"]
    rules = health_rules(30, tmp_path / "xids.yaml")
    assert rules.xids[74].action is XidAction.REPORT


def test_metrics_are_found_by_pods_and_guarded_where_wanted() -> None:
    """Under the job's name that dashboard and rules know."""
    made = manifests("podMonitor.enabled=true", "networkPolicy.enabled=true")
    (endpoint,) = one(made, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"]
    assert {"targetLabel": "job", "replacement": "gpu-device-plugin"} in endpoint["relabelings"]
    (rule,) = one(made, "NetworkPolicy")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics"}]}


@pytest.mark.parametrize("key", ["fullnameOverride", "nameOverride"])
def test_no_name_is_longer_than_kubernetes_takes(key: str) -> None:
    """However long the release's name is; a Job that cannot be made would be found at the uninstall."""
    parts = ("controller", "scheduler", "page", "dra", "service", "podMonitor", "gfd")
    made = manifests(f"{key}={'n' * 63}", *(f"{part}.enabled=true" for part in parts))
    limited = [each for each in made if each["kind"] in ("Service", "Job", "Pod", "Deployment")]

    assert len(limited) > 6
    assert [each for each in limited if len(each["metadata"]["name"]) > 63] == []


def test_objects_of_the_operator_are_installed_along() -> None:
    extra = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-s"}}

    assert one(manifests(values={"extraObjects": [extra]}), "Secret", "gpu-device-plugin-s")


def test_helm_test_runs_the_selftest_in_a_slice() -> None:
    pod = one(manifests(), "Pod", "gpu-device-plugin-selftest")
    (container,) = pod["spec"]["containers"]

    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert container["command"] == [SELFTEST_FILE]
    assert container["resources"]["limits"]["aliyun.com/gpu-mem"] == 1


@pytest.mark.parametrize(
    ("mode", "resource"),
    [
        ("share", "aliyun.com/gpu-mem"),
        ("default", "nvidia.com/gpu"),
        ("topology", "aliyun.com/gpu"),
        ("mig", ""),
        ("disabled", ""),
    ],
)
def test_helm_test_asks_for_what_the_mode_offers(mode: str, resource: str) -> None:
    """Where no limit is enforced the pod has to see its one card; where nothing is known there is no test."""
    made = [m for m in manifests(f"mode={mode}") if m["kind"] == "Pod"]
    asked = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in made]
    assert [set(each) - {"memory"} for each in asked] == ([{resource}] if resource else [])
    assert not [m for m in made if SELFTEST_FILE in json.dumps(m)]


def test_helm_test_without_isolation_looks_at_the_card_only() -> None:
    pod = one(manifests("isolation=false"), "Pod", f"{NAME}-selftest")
    assert "nvmlDeviceGetCount" in pod["spec"]["containers"][0]["command"][-1]


def test_helm_test_is_left_out_where_nodes_serve_claims() -> None:
    """Its namespace need not be one whose pods get claims."""
    assert "kind: Pod\n" not in render("dra.enabled=true", "allocationApi=dra", kubernetes="1.36.0")


def test_every_object_goes_where_namespace_override_says() -> None:
    choices = ["controller.enabled=true", "scheduler.enabled=true", "service.enabled=true"]
    choices += ["resourceQuota.enabled=true", "networkPolicy.enabled=true"]
    made = manifests(*choices, "namespaceOverride=elsewhere")
    places = {each["metadata"].get("namespace") for each in made}
    assert places <= {None, "elsewhere", "kube-system"}
    texts = [json.dumps(each) for each in made]
    assert not [text for text in texts if f"serviceaccount:{NAME}:" in text]
    subjects = [s for each in made for s in each.get("subjects", ())]
    assert {subject["namespace"] for subject in subjects} == {"elsewhere"}


def test_a_quota_admits_the_critical_pods_where_the_cluster_wants_one() -> None:
    """As on GKE, outside kube-system."""
    assert not [m for m in manifests() if m["kind"] == "ResourceQuota"]
    on = "resourceQuota.enabled=true"
    quota = one(manifests(on, AGENTS_ALONE), "ResourceQuota")
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [agent(manifests())["priorityClassName"]]
    assert "kind: ResourceQuota" not in render(on, AGENTS_ALONE, "priorityClassName=")
    both = one(manifests(on), "ResourceQuota")
    (scope,) = both["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["system-node-critical", "system-cluster-critical"]


def test_a_kind_of_nodes_has_settings_of_its_own(tmp_path: Path) -> None:
    """The agent finds them beside its file, by the value of the node's label."""
    values = {
        "small": {"mode": "share", "gpuMemoryUnit": "128MiB", "isolation": False},
        "cdi": {"deviceListStrategy": "cdi-cri", "recoverySeconds": 90},
    }
    data = one(manifests(values={"nodeSettings": {"map": values}}), "ConfigMap")["data"]
    for key, text in data.items():
        (tmp_path / key).write_text(text)
    common = load_settings({}, {"NODE_NAME": "n1"}, tmp_path / "config.yaml")
    mounted = agent(manifests())["containers"][0]["volumeMounts"][0]["mountPath"]
    assert common.node_settings_dir == mounted
    here = dataclasses.replace(common, node_settings_dir=str(tmp_path))

    def chosen(label: str) -> Settings:
        over = file_of(here, label)
        return load_settings({}, {"NODE_NAME": "n1"}, tmp_path / "config.yaml", over)

    small, cdi = chosen("small"), chosen("cdi")
    assert (small.mode.value, small.memory_unit.value) == ("share", "128MiB")
    assert small.isolation.value == "off"
    assert (small.recovery_seconds, cdi.recovery_seconds) == (30, 90)
    assert (cdi.device_list_strategy, cdi.memory_unit.value) == (("cdi-cri",), "GiB")
    assert chosen("") == common


@pytest.mark.parametrize(
    "asked",
    [
        "deviceListStrategy=cdi-cri",
        "deviceListStrategy={envvar,cdi-annotations}",
        "deviceListStrategy=auto",
        "nodeSettings.map.crio.deviceListStrategy=cdi-cri",
        "config.default=a,config.map.a.flags.plugin.deviceListStrategy=cdi-cri",
        "config.map.a=flags: {plugin: {deviceListStrategy: auto}}",
        'config.map.a=flags: {plugin: {deviceListStrategy: ["auto"]}}',
        "cdi.generator=/usr/bin/nvidia-ctk,config.map.a=flags: {plugin: {deviceListStrategy: auto}}",
        "config.name=mine",
        "memoryEnforcer=auto",
    ],
)
def test_the_agent_looks_into_one_directory_of_cdi_files_wherever_the_settings_ask_for_it(
    asked: str,
) -> None:
    """A pod that mounts a path twice is refused; a directory below /etc is only made where the operator names one."""
    for directory in ("/var/run/cdi", "/etc/cdi"):
        pod = agent(manifests(asked, f"cdiDir={directory}"))
        paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert paths.count(directory) == 1
        assert len(paths) == len(set(paths))
        assert "--cdi-dir=" not in pod["containers"][0]["args"]
        assert ("/etc/cdi" in paths) == (directory == "/etc/cdi")


def test_node_settings_may_be_what_asks_for_cdi() -> None:
    assert render("nodeSettings.map.crio.deviceListStrategy=cdi-cri", "cdi.generator=/bin/ctk")
