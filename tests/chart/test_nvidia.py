"""The chart takes NVIDIA's values, and what they ask for reaches the agent as NVIDIA's variables."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import NAME, RefusedError, agent, manifests, one, rights

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.settings.agent_settings import Settings, load_settings
from gpu_device_plugin.settings.nvidia_configuration import Configuration, nvidia_configuration

EVERY_KIND = """
version: v1
flags:
  migStrategy: none
  failOnInitError: false
  nvidiaDriverRoot:
  nvidiaDevRoot: /run/nvidia
  plugin: {deviceListStrategy: [envvar, cdi-cri], deviceIDStrategy: index}
  gfd: {sleepInterval: 60000000000, outputFile: "-1", oneshot: false}
resources: {gpus: [{pattern: "*", name: gpu}]}
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 2, rename: a, devices: [0, "0:1"]}, {name: gpu, replicas: 3, rename: b, devices: [1]}]
imex: {channelIDs: [0]}
"""
OTHER_KINDS = """
flags:
  nvidiaDriverRoot: ""
  plugin: {deviceListStrategy: "envvar, cdi-annotations"}
  gfd: {sleepInterval: 1m30s}
sharing:
  mps:
    resources: [{name: nvidia.com/gpu, replicas: 2, rename: "", devices: all}, {name: mig-1g.5gb, replicas: 2, rename: b, devices: 2}]
imex: {channelIDs: []}
"""
REFUSED = {
    "flags: {deviceListStrategy: envvar}": "c.flags: unknown key deviceListStrategy; it belongs to flags.plugin.deviceListStrategy",
    "flags: {plugin: {passDeviceSpecs: 'true'}}": 'c.flags.plugin.passDeviceSpecs: wanted boolean, not "true"',
    "flags: {migStrategy: both}": "c.flags.migStrategy: both is none of none, single, mixed",
    "flags: [a]": 'c.flags: wanted object, not ["a"]',
    "imex: {channelIDs: [x]}": 'c.imex.channelIDs[0]: wanted integer, not "x"',
    "sharing: {mps: {resources: [{name: a}]}}": "c.sharing.mps.resources[0]: replicas is missing",
    "sharing: {mps: {resources: [{name: a, replicas: 2.5}]}}": "resources[0].replicas: wanted integer, not 2.5",
    "sharing: {timeSlicing: {resources: [{name: a, replicas: 1}]}}": "resources[0].replicas: 1 is less than 2",
    "sharing: {timeSlicing: {resources: [{name: a, replicas: 2, device: 0}]}}": "unknown key device; the keys",
    "flags: {plugin: {deviceListStrategy: foo}}": 'c.flags.plugin.deviceListStrategy: "foo" is not valid',
    "flags: {plugin: {deviceListStrategy: ''}}": 'c.flags.plugin.deviceListStrategy: "" is not valid',
    "flags: {plugin: {deviceListStrategy: 'auto,envvar'}}": '"auto,envvar" is not valid',
    "flags: {plugin: {deviceListStrategy: []}}": "c.flags.plugin.deviceListStrategy: the list is empty",
    "flags: {plugin: {deviceListStrategy: [foo]}}": 'deviceListStrategy[0]: "foo" is not valid',
    "flags: {nvidiaDriverRoot: run/nvidia}": 'c.flags.nvidiaDriverRoot: "run/nvidia" is not valid',
    "flags: {gfd: {oneshot: true}}": "c.flags.gfd.oneshot: true is none of false",
    "flags: {gfd: {sleepInterval: foo}}": 'c.flags.gfd.sleepInterval: "foo" is not valid',
    "flags: {gfd: {sleepInterval: 10}}": "c.flags.gfd.sleepInterval: 10 is less than 10000000000",
    "imex: {channelIDs: [1]}": "c.imex.channelIDs[0]: 1 is more than 0",
    "imex: {channelIDs: [0, 0]}": "c.imex.channelIDs: wanted at most 1 of them, not [0,0]",
    "sharing: {timeSlicing: {renameByDefault: true}}": "c.sharing.timeSlicing: resources is missing",
    "sharing: {timeSlicing: {resources: []}}": "c.sharing.timeSlicing.resources: the list is empty",
    "sharing: {mps: {resources: [{name: foo.com/gpu, replicas: 2}]}}": 'resources[0].name: "foo.com/gpu"',
    "sharing: {mps: {resources: [{name: a, replicas: 2, rename: a b}]}}": 'rename: "a b" is not valid',
    "sharing: {mps: {resources: [{name: a, replicas: 2, rename: b, devices: foo}]}}": 'devices: "foo" is not',
    "sharing: {mps: {resources: [{name: a, replicas: 2, rename: b, devices: []}]}}": "devices: the list is",
    "sharing: {mps: {resources: [{name: a, replicas: 2, rename: b, devices: -1}]}}": "-1 is less than 1",
    "sharing: {mps: {resources: [{name: a, replicas: 2, rename: b, devices: [x]}]}}": 'devices[0]: "x" is',
}

FILES = {"config": {"map": {"four": "version: v1\n", "two": {"version": "v1"}}, "default": "four"}}


def variables(pod: dict[str, Any]) -> dict[str, str]:
    """Those with a value of the first container."""
    return {e["name"]: e["value"] for e in pod["containers"][0]["env"] if "value" in e}


def read_configuration(file: Path) -> Configuration:
    """What the agent makes of one of NVIDIA's files, with the directory of the MPS daemon."""
    return nvidia_configuration(
        load_settings({}, {"NODE_NAME": "n1", "MPS_ROOT": "/m"}, None), file
    )


def settings(tmp_path: Path, *values: str) -> Settings:
    """What the agent makes of its file and variables, NODE_NAME besides."""
    made = manifests(*values)
    file = tmp_path / "config.yaml"
    file.write_text(one(made, "ConfigMap")["data"]["config.yaml"])
    return load_settings({}, {**variables(agent(made)), "NODE_NAME": "n1"}, file)


def test_the_values_of_the_source_are_taken(tmp_path: Path) -> None:
    """R-208: `--set migStrategy=single --set gfd.enabled=true`."""
    found = settings(tmp_path, "migStrategy=single", "gfd.enabled=true")

    assert nvidia_configuration(found).mig_strategy == "single"
    assert found.gfd is True


def test_every_value_of_nvidias_chart_reaches_its_setting(tmp_path: Path) -> None:
    """Also `false`, which is not the same as nothing said."""
    found = settings(
        tmp_path,
        "failOnInitError=false",
        "deviceIDStrategy=index",
        "nvidiaDriverRoot=/run/nvidia/driver",
        "nvidiaDevRoot=/host",
        "gdrcopyEnabled=true",
        "gdsEnabled=true",
        "mofedEnabled=false",
        "deviceListStrategy=cdi-cri",
        "compatWithCPUManager=true",
        "migProfile=MIG1g",
        "mode=mig",
    )
    made = nvidia_configuration(found)

    assert (made.fails_on_init_error, made.id_strategy) == (False, "index")
    assert (made.driver_root, made.dev_root) == ("/run/nvidia/driver", "/host")
    assert (made.is_gdrcopy_on, made.is_gds_on, made.is_mofed_on) == (True, True, False)
    assert (made.access.strategies, made.access.passes_nodes) == (("cdi-cri",), True)
    assert made.mig_profile == "MIG1g"


def test_configuration_files_are_mounted_and_one_of_them_is_the_default() -> None:
    """R-730: as text or as an object; a ConfigMap of the operator's stands in their place."""
    made = manifests(values=FILES)
    pod = agent(made)
    data = one(made, "ConfigMap", f"{NAME}-nvidia")["data"]
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}

    assert {name: yaml.safe_load(text) for name, text in data.items()} == {
        "four": {"version": "v1"},
        "two": {"version": "v1"},
    }
    assert mounts["nvidia-config"] == variables(pod)["CONFIG_FILE_SRCDIR"]
    assert mounts["mps"] == variables(pod)["MPS_ROOT"] == "/run/nvidia/mps"
    assert variables(pod)["DEFAULT_CONFIG"] == "four"
    assert variables(pod)["FALLBACK_STRATEGIES"] == "named,single"
    theirs = agent(manifests("config.name=mine"))
    assert {"name": "nvidia-config", "configMap": {"name": "mine"}} in theirs["volumes"]


def test_nothing_of_it_is_there_by_default() -> None:
    """Neither variables nor mounts, nor rights."""
    pod = agent(manifests())

    assert set(variables(pod)) == {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    assert "add" not in pod["containers"][0]["securityContext"]["capabilities"]
    assert not {"mps", "nvidia-config"} & {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("value", ["migStrategy=mixed", "mode=mig"])
def test_instances_are_seen_only_with_a_right_that_the_agent_gives_up(value: str) -> None:
    """docs/adr/0009-what-the-agent-may-do-on-its-node.md; simulated cards need none."""
    container = agent(manifests(value))["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert variables({"containers": [container]})["NVIDIA_MIG_MONITOR_DEVICES"] == "all"

    simulated = agent(manifests(value, "simulate.profile=a100-mig"))["containers"][0]
    assert "add" not in simulated["securityContext"]["capabilities"]


def test_the_mps_daemon_serves_the_same_files_on_labelled_nodes() -> None:
    """R-308: in the host's pid namespace, with its shared memory where clients get it."""
    made = manifests("mps.enabled=true", "gfd.enabled=true", values=FILES)
    pod = one(made, "DaemonSet", f"{NAME}-mps")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    hosts = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}

    assert container["command"] == [
        "gpu-device-plugin",
        "mps-daemon",
        "--config-file-srcdir=/etc/nvidia-config",
        "--default-config=four",
        "--fallback-strategies=named,single",
        "--mps-root=/run/nvidia/mps",
        "--mps-control=nvidia-cuda-mps-control",
    ]
    assert pod["nodeSelector"].items() >= {("nvidia.com/mps.capable", "true")}
    assert pod["hostPID"] is True
    assert (mounts["shm"], hosts["shm"]) == ("/dev/shm", "/run/nvidia/mps/shm")  # noqa: S108
    assert hosts["mps"] == mounts["mps"] == "/run/nvidia/mps"
    assert rights(one(made, "ClusterRole", f"{NAME}-mps")) == {
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
    }


def test_the_mps_daemon_has_no_memory_limit_and_resources_of_its_own() -> None:
    """NVIDIA's servers run in its container: the agent's limit would end the clients of all cards."""
    for chosen in ({}, {"limits": {"memory": "1Gi"}}):
        values = {**FILES, "mps": {"enabled": True, "resources": chosen}}
        made = manifests("gfd.enabled=true", values=values)
        (container,) = one(made, "DaemonSet", f"{NAME}-mps")["spec"]["template"]["spec"][
            "containers"
        ]
        assert container["resources"] == {"requests": {"cpu": "20m", "memory": "128Mi"}, **chosen}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mps", ("mps.enabled=true", "gfd.enabled=true")),
        ("mig-manager", ("migManager.enabled=true",)),
        ("limit-keeper", ("memoryEnforcer=driver", "gfd.enabled=true")),
    ],
)
def test_commands_that_change_cards_run_as_root(name: str, values: tuple[str, ...]) -> None:
    """The image's user is another, to whom the kubelet's socket is closed."""
    made = one(manifests(*values, values=FILES), "DaemonSet", f"{NAME}-{name}")
    (container,) = made["spec"]["template"]["spec"]["containers"]

    assert container["securityContext"]["privileged"] is True
    assert container["securityContext"]["runAsUser"] == 0


def test_on_simulated_cards_the_mps_daemon_has_a_stand_in_for_nvidias_program() -> None:
    """`simulate create` puts it beside the driver's libraries, which the node tools have mounted."""
    values = ("mps.enabled=true", "gfd.enabled=true", "simulate.profile=a100")
    pod = one(manifests(*values, values=FILES), "DaemonSet", f"{NAME}-mps")["spec"]["template"][
        "spec"
    ]
    (container,) = pod["containers"]
    (place,) = (m["mountPath"] for m in container["volumeMounts"] if m["name"] == "simulator")

    assert container["command"][-1] == f"--mps-control={place}/nvidia-cuda-mps-control"


def test_the_mig_manager_runs_where_the_label_asks_and_may_little_at_the_api() -> None:
    """R-203: off by default; its account follows nodes and writes Events."""
    made = manifests("migManager.enabled=true")
    name = f"{NAME}-mig-manager"
    pod = one(made, "DaemonSet", name)["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    assert pod["containers"][0]["command"] == ["gpu-device-plugin", "mig", "apply", "--watch"]
    (term,) = terms["nodeSelectorTerms"]
    asked = {"key": "gpu-device-plugin/mig-profile", "operator": "Exists"}
    assert asked in term["matchExpressions"]
    assert rights(one(made, "ClusterRole", name)) == {
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
        ("", "events", "create"),
        ("", "events", "patch"),
    }
    assert variables(pod)["NVIDIA_MIG_CONFIG_DEVICES"] == "all"


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=REFUSED)
def test_helm_refuses_a_file_that_no_agent_takes(text: str, words: str, tmp_path: Path) -> None:
    """As a text and as an object, with the key's place."""
    (tmp_path / "c").write_text(text)
    with pytest.raises(ConfigError):
        read_configuration(tmp_path / "c")
    for given in (text, yaml.safe_load(text)):
        with pytest.raises(RefusedError) as refusal:
            manifests(values={"config": {"map": {"c": given}}})
        assert words in str(refusal.value)


@pytest.mark.parametrize("text", [EVERY_KIND, OTHER_KINDS])
def test_helm_takes_a_file_that_agents_take(text: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(text)
    assert read_configuration(tmp_path / "c").sharing.resources
    for given in (text, yaml.safe_load(text)):
        assert manifests(values={"config": {"map": {"c": given}}})


def test_the_agent_sees_the_imex_channels_that_a_file_asks_for() -> None:
    """A mount of `driverRoot` shows them anyway."""
    asks = "config.map.c=imex: {channelIDs: [0]}"  # a file's text
    paths = {v["hostPath"]["path"] for v in agent(manifests(asks))["volumes"] if "hostPath" in v}
    assert "/dev/nvidia-caps-imex-channels" in paths
    without = agent(manifests("config.map.c=version: v1"))["volumes"]
    assert not [v for v in without if v["name"] == "imex-channels"]
    rooted = agent(manifests(asks, "driverRoot=/d", "nvmlLibrary=libnvidia-ml.so.1"))["volumes"]
    assert {"driver-root", "imex-channels"} & {v["name"] for v in rooted} == {"driver-root"}


@pytest.mark.parametrize(
    ("values", "root"),
    [((), "/"), (("simulate.profile=v100",), "/run/gpu-device-plugin/simulator")],
)
def test_the_limit_keeper_is_there_only_where_the_driver_may_enforce(
    values: tuple[str, ...], root: str
) -> None:
    """With no account and no token, and without the kubelet's directories; the agent only reads."""
    name = f"{NAME}-limit-keeper"
    assert name not in {each["metadata"]["name"] for each in manifests(*values)}
    made = manifests("memoryEnforcer=auto", *values)
    pod = one(made, "DaemonSet", name)["spec"]["template"]["spec"]
    agents = one(made, "DaemonSet", NAME)["spec"]["template"]["spec"]
    mounts = {
        m["mountPath"]: m.get("readOnly", False) for m in agents["containers"][0]["volumeMounts"]
    }

    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["affinity"] == agents["affinity"]
    (container,) = pod["containers"]
    assert container["command"] == ["gpu-device-plugin", "limit-keeper", f"--driver-root={root}"]
    assert container["securityContext"]["privileged"] is True
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert places - {root} == {"/run/gpu-device-plugin", "/sys/fs/cgroup"}
    assert mounts["/sys/fs/cgroup"] is True
    assert mounts["/var/run/cdi"] is False
    assert [m["kind"] for m in made if m["metadata"]["name"] == name] == ["DaemonSet"]
