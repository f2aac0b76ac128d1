"""What may be submitted and what may not: one row a pod, with the words of its refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.harness.cluster.pods import CORE, COUNT, MEMORY, container, pod

POLICY = "ValidatingAdmissionPolicy"
SAMPLES = sorted((Path(__file__).resolve().parents[2] / "samples").rglob("*.yaml"))
SANDBOXES = ("gvisor", "kata-qemu-nvidia-gpu")
PLAIN_RUNTIMES = ("nvidia", "crun", "my-kata")
SEVERAL_CARDS = "failed to parse request device count from pod label aliyun.com/gpu-count"


@dataclass(frozen=True, slots=True)
class Row:
    """A pod, and what the API server says to it.

    Attributes:
        name: What is tried.
        containers: The pod's containers.
        words: What its refusal says; nothing where it has to be accepted.
        more: Further fields of the pod's spec.
        labels: The pod's labels.
        rule: The value that switches the rule off; empty where the API server itself refuses.
        mode: A node mode in which the agent refuses it with the same words, where there is one.
    """

    name: str
    containers: Sequence[Mapping[str, Any]]
    words: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    rule: str = ""
    mode: str = ""

    def pod(self) -> dict[str, Any]:
        """The row as a pod."""
        made = pod("row", *self.containers, **self.more)
        made["metadata"]["labels"] |= self.labels
        return made


def asking(memory: Any = None, core: Any = None, name: str = "main", **more: Any) -> dict[str, Any]:
    """A container with a slice."""
    amounts = {MEMORY: memory, CORE: core}
    limits = {key: str(amount) for key, amount in amounts.items() if amount is not None}
    return container(name, "true", resources={"limits": limits}, **more)


def holding(**more: Any) -> dict[str, Any]:
    """A container with a proper slice and something else."""
    return asking(2, 30, **more)


def mounting(path: str) -> dict[str, Any]:
    """The row's containers and volumes for a mount at `path`."""
    mounts = [{"name": "mine", "mountPath": path}]
    return {
        "containers": [holding(volumeMounts=mounts)],
        "more": {"volumes": [{"name": "mine", "emptyDir": {}}]},
    }


def of_node(path: str) -> dict[str, Any]:
    """The row's containers and volumes for the node's `path`, mounted where the agent mounts nothing."""
    return {
        "containers": [holding(volumeMounts=[{"name": "mine", "mountPath": "/mnt"}])],
        "more": {"volumes": [{"name": "mine", "hostPath": {"path": path}}]},
    }


def several(count: str) -> dict[str, str]:
    """The label that spreads a request over several cards."""
    return {COUNT: count}


def percentages() -> list[Row]:
    """All of 0 to 105: exactly the multiples of five from 5 to 100 are accepted."""
    good = {str(percent) for percent in range(5, 101, 5)}
    words = (f"asks {CORE}: ", "the percentage must be one of 5, 10, ... 100 (a multiple of 5")
    return [
        Row(
            f"percentage-{percent}",
            [asking(2, percent)],
            () if str(percent) in good else words,
            rule="requests.percentage",
            # The agent takes 0 for nothing asked.
            mode="core_mem" if percent else "",
        )
        for percent in range(106)
    ]


GOOD = [
    Row("no-gpu", [container("main", "true")]),
    Row("no-gpu-but-privileged", [container("main", securityContext={"privileged": True})]),
    Row("memory-only", [asking(4)]),
    Row("memory-and-compute", [asking(2, 30)]),
    Row(
        "equal-requests",
        [container("main", resources={k: {MEMORY: "2"} for k in ("limits", "requests")})],
    ),
    Row("many-small-units", [asking("1k")]),
    Row("two-containers-alike", [asking(2, 30), asking(1, 5, name="second")]),
    Row("one-container-of-two", [asking(2, 30), container("second", "true")]),
    Row("two-cards", [asking(8)], labels=several("2")),
    Row("four-cards-of-two-containers", [asking(8), asking(4, name="second")], labels=several("4")),
    Row("label-without-slice", [container("main", "true")], labels=several("many")),
    Row("init-container", [asking(2, 30)], more={"initContainers": [asking(2, 30, name="before")]}),
    Row(
        "one-gpu-resource",
        [container("main", resources={"limits": {"nvidia.com/gpu.shared": "1"}})],
    ),
    Row(
        "gpu-and-what-another-vendor-counts-of-it",
        [
            container(
                "main", resources={"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9"}}
            )
        ],
    ),
    Row("mount-beside-ours", **mounting("/run/gpu-device-plugin-data")),
    Row("mount-of-etc", **mounting("/etc/app")),
    Row("node-directory-beside-ours", **of_node("/run/gpu-device-plugin-data")),
    Row("node-directory-of-data", **of_node("/srv/data/")),
    *(
        Row(f"runtime-class-{name}", [holding()], more={"runtimeClassName": name})
        for name in PLAIN_RUNTIMES
    ),
    *(
        Row(
            f"runtime-class-{name}-of-none",
            [container("main", "true")],
            more={"runtimeClassName": name},
        )
        for name in SANDBOXES
    ),
    Row("other-capability", [holding(securityContext={"capabilities": {"add": ["IPC_LOCK"]}})]),
    Row("not-privileged", [holding(securityContext={"privileged": False})]),
    Row("other-variable", [holding(env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}])]),
    Row(
        "privileged-neighbour",
        [asking(2, 30), container("second", "true", securityContext={"privileged": True})],
    ),
]

BAD_REQUESTS = [
    Row(
        "percentage-too-large",
        [asking(2, "1k")],
        ["ask for instance 100"],
        rule="requests.percentage",
        mode="core_mem",
    ),
    Row(
        "percentage-alone",
        [asking(None, 30)],
        ["compute goes with memory of the same card"],
        rule="requests.percentageWithMemory",
        mode="core_mem",
    ),
    Row(
        "percentage-in-init",
        [asking(2, 30)],
        ["container before asks", "multiple of 5"],
        more={"initContainers": [asking(2, 31, name="before")]},
        rule="requests.percentage",
        mode="core_mem",
    ),
    Row(
        "beyond-64-bits",
        [asking("10E", 30)],
        ["container main asks aliyun.com/gpu-mem: 10E, which is no whole number of 64 bits"],
        rule="requests.amounts",
    ),
    Row(
        "unlike-containers",
        [asking(2, 30), asking(1, name="second")],
        [
            "The requested gpu resource types should be consistent for all containers",
            "main and not by second",
        ],
        rule="requests.consistentContainers",
    ),
    Row(
        "nine-over-four",
        [asking(9)],
        ["invalid replica for resource aliyun.com/gpu-mem,because 9 / 4 = 2.2"],
        labels=several("4"),
        rule="requests.cardCount",
        mode="cgpu",
    ),
    Row(
        "second-container-uneven",
        [asking(8), asking(3, name="second")],
        ["container second", "invalid replica for resource aliyun.com/gpu-mem,because 3 / 2 = 1.5"],
        labels=several("2"),
        rule="requests.cardCount",
        mode="cgpu",
    ),
    Row(
        "number-beyond-all",
        [asking(8)],
        ["invalid replica"],
        labels=several("9" * 40),
        rule="requests.cardCount",
    ),
    Row(
        "no-number",
        [asking(8)],
        [f'{SEVERAL_CARDS}: "two" is no whole number'],
        labels=several("two"),
        rule="requests.cardCount",
        mode="cgpu",
    ),
    Row(
        "fraction-of-cards",
        [asking(8)],
        [f'{SEVERAL_CARDS}: "1.5" is no whole number'],
        labels=several("1.5"),
        rule="requests.cardCount",
        mode="cgpu",
    ),
    Row(
        "no-cards",
        [asking(8)],
        ["request device count must be large than 0"],
        labels=several("0"),
        rule="requests.cardCount",
    ),
    Row(
        "cards-and-percentage",
        [asking(2, 30)],
        ["does not go with divided compute"],
        labels=several("2"),
        rule="requests.cardCountWithoutPercentage",
        mode="core_mem",
    ),
    Row(
        "count-as-resource",
        [container("main", resources={"limits": {MEMORY: "2", COUNT: "1"}})],
        ["aliyun.com/gpu-count is counted on nodes but cannot be asked for"],
        rule="requests.countNotAsResource",
        mode="cgpu",
    ),
    Row(
        "too-many-containers",
        [asking(1, 5, f"c{number}") for number in range(65)],
        ["65 containers of the pod ask for a slice, init containers included; at most 64 may"],
        rule="requests.containers",
        mode="core_mem",
    ),
    *(
        Row(
            f"two-gpu-resources-{number}",
            [container("main", resources={"limits": limits})],
            ["container main asks for several GPU resources (", *limits],
            rule="requests.oneGpuResource",
        )
        for number, limits in enumerate(
            (
                {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "1"},
                {"nvidia.com/gpu.shared": "1", "nvidia.com/gpu": "1"},
                {"nvidia.com/gpu": "1", MEMORY: "2"},
                {"aliyun.com/gpu": "1", MEMORY: "2"},
                {"nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "1"},
            )
        )
    ),
]

BAD_ISOLATION = [
    *(
        Row(f"mount-{number}", **mounting(path), words=["container main holds a slice and mounts " + path],
            rule="isolation.mounts")
        for number, path in enumerate((
            "/etc/ld.so.preload", "/etc/ld-nix.so.preload", "/run/gpu-device-plugin", "/run/gpu-device-plugin/config/limits",
            "/usr/local/lib/gpu-device-plugin/", "//etc/./ld.so.preload", "/var/run/gpu-device-plugin/config",
            "/opt/../etc/ld.so.preload", "run/gpu-device-plugin",
        ))
    ),
    *(
        Row(f"node-directory-{number}", **of_node(path),
            words=["the pod holds a slice and mounts from its node " + path], rule="isolation.mounts")
        for number, path in enumerate((
            "/", "/run", "/run/", "//run/./gpu-device-plugin", "/run/gpu-device-plugin/slices/s1",
            "/var/run/gpu-device-plugin", "/var", "/var/lib/gpu-device-plugin/grants",
            "/usr/local/lib", "/usr/local/lib/gpu-device-plugin/0.1.0",
        ))
    ),
    Row("privileged", [holding(securityContext={"privileged": True})],
        ["container main holds a slice and is privileged"], rule="isolation.privileged"),
    *(
        Row(f"capability-{name}", [holding(securityContext={"capabilities": {"add": ["CHOWN", name]}})],
            [f"adds the capability {name}"], rule="isolation.capabilities")
        for name in ("SYS_ADMIN", "SYS_PTRACE", "CAP_SYS_ADMIN", "sys_ptrace", "ALL")
    ),
    Row("visible-devices", [holding(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])],
        ["NVIDIA_VISIBLE_DEVICES"], rule="isolation.visibleDevices"),
    Row("visible-devices-by-mount", **mounting("/var/run/nvidia-container-devices/all"),
        words=["/var/run/nvidia-container-devices"], rule="isolation.visibleDevices"),
    *(
        Row(f"runtime-class-{name}", [holding()],
            [f"the pod holds a slice, and its runtimeClassName {name} is of a sandbox"],
            {"runtimeClassName": name}, rule="isolation.runtimeClass")
        for name in SANDBOXES
    ),
]  # fmt: skip

BAD_FOR_THE_SERVER = [
    Row("fraction", [asking("1500m")], ["must be an integer"]),
    Row("other-request", [container("main", resources={"limits": {MEMORY: "2"}, "requests": {MEMORY: "1"}})],
        ["must be equal to aliyun.com/gpu-mem"]),
    Row("request-only", [container("main", resources={"requests": {MEMORY: "1"}})],
        ["Limit must be set for non overcommitable resources"]),
    Row("negative-cards", [asking(8)], ["a valid label must be"], labels=several("-1")),
]  # fmt: skip

ROWS = (*GOOD, *percentages(), *BAD_REQUESTS, *BAD_ISOLATION, *BAD_FOR_THE_SERVER)


def runtime_classes() -> list[dict[str, Any]]:
    """Those of the table's pods; the API server itself refuses a pod with another one."""
    return [
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": name,
        }
        for name in (*SANDBOXES, *PLAIN_RUNTIMES)
    ]


def in_template(kind: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """A pod as the template of an object of that kind."""
    if kind == "Pod":
        return dict(made)
    labels = dict(made["metadata"]["labels"])
    restart = "Never" if kind in ("Job", "CronJob") else "Always"
    template = {"metadata": {"labels": labels}, "spec": {**made["spec"], "restartPolicy": restart}}
    spec: dict[str, Any] = {"template": template}
    if kind in ("Deployment", "StatefulSet", "DaemonSet"):
        spec["selector"] = {"matchLabels": {"app": labels["app"]}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    group = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    metadata = {"name": made["metadata"]["name"]}
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec}
