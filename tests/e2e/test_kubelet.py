"""A real kubelet does what the stand-in of the other tests does: one script, one transcript.

`tests/golden/kubelet/script.txt` is what both must say; what this kubelet said lies beside the logs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.golden_files import same_as_golden_file
from tests.kubelet.rig import until
from tests.kubelet.script import Script
from tools.harness.cluster.binaries import DEFAULT_KUBERNETES
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.node import Node
from tools.harness.cluster.pods import TELL, container, environment_of, pod
from tools.harness.kubelet_pods import StandInContainer, StandInPod

from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.kubelet.unix_sockets import socket_identity

SLOW_END = "trap 'sleep 2; exit 0' TERM; trap 'exit 1' USR1; while :; do sleep 0.1; done"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """One of its own, because its kubelet is started again."""
    if cluster.binaries.kubernetes_version != DEFAULT_KUBERNETES:
        pytest.skip(f"the stand-in kubelet has the habits of {DEFAULT_KUBERNETES}")
    with cluster.another_node() as further:
        yield further


class RealPlayer:
    """A real kubelet for the script. Its pods name their node, so that no scheduler keeps one away."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.plugin_dir = node.kubelet_directory / "device-plugins"
        self.pod_resources_socket = node.kubelet_directory / "pod-resources" / "kubelet.sock"
        self._cluster, self._node = cluster, node
        self._uids: dict[str, str] = {}

    async def run(self, pod: StandInPod) -> str:
        status = await self._admitted(pod)
        return str(status["message"]) if status["phase"] == "Failed" else ""

    async def reject_later(self, pod: StandInPod) -> str:
        status = await self._admitted(pod, nodeSelector={"no": "node"})
        return str(status["reason"])

    async def start_again(self, pod: str) -> str:
        before = self._restarts(pod)
        self._signal(pod, "USR1")
        await until(lambda: self._restarts(pod) > before or self._failures(pod))
        return next(iter(self._failures(pod)), "").removeprefix("Error: ")

    async def finish(self, pod: str) -> None:
        self._signal(pod, "TERM")
        await until(lambda: self._status(pod)["phase"] == "Succeeded")

    async def end_soon(self, pod: str) -> Callable[[], None]:
        # What a pod does that ends by itself, the kubelet sees only after an admission.
        self._cluster.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=5")
        return lambda: None

    async def remove(self, *pods: str) -> None:
        if pods:
            words = ("--ignore-not-found=true", "--grace-period=1")
            self._cluster.kubectl("delete", "pod", *pods, *words)

    async def restart(self) -> None:
        socket = self.plugin_dir / "kubelet.sock"
        before = socket_identity(socket)
        self._node.restart_kubelet()
        await until(lambda: socket_identity(socket) not in (None, before))

    async def environment(self, pod: str, container: str) -> str:
        def told() -> Mapping[str, str]:
            return environment_of(self._cluster.kubectl("logs", pod, "-c", container))

        await until(told)
        return told()["FROM"]

    def uid(self, pod: str) -> str:
        return self._uids[pod]

    async def capacity(self, resource: str, allocatable: int) -> int:
        def amount(of: str) -> int:
            return int(self._cluster.get("node", self._node.name)["status"][of].get(resource, "0"))

        await until(lambda: amount("allocatable") == allocatable)
        return amount("capacity")

    async def _admitted(self, pod: StandInPod, **spec: Any) -> Mapping[str, Any]:
        """The pod's status once it runs, all of it, or has been rejected."""
        self._cluster.apply(_object(pod, self._node.name, spec))
        self._uids[pod.name] = self._cluster.get("pod", pod.name)["metadata"]["uid"]
        await until(lambda: self._restarts(pod.name) >= 0 or self._has_failed(pod.name))
        return self._status(pod.name)

    def _status(self, pod: str) -> Mapping[str, Any]:
        return dict(self._cluster.get("pod", pod)["status"])

    def _has_failed(self, pod: str) -> bool:
        return bool(self._status(pod)["phase"] == "Failed")

    def _restarts(self, pod: str) -> int:
        """Of its containers; -1 where they do not run, all of them."""
        found = self._status(pod).get("containerStatuses", [])
        is_running = found and all(each["ready"] for each in found)
        return sum(each["restartCount"] for each in found) if is_running else -1

    def _failures(self, pod: str) -> Sequence[str]:
        """What Events say of starts of its containers that failed."""
        events = self._cluster.every("event")
        mine = [e for e in events if e["involvedObject"].get("uid") == self.uid(pod)]
        return [event["message"] for event in mine if event["reason"] == "Failed"]

    def _signal(self, pod: str, signal: str) -> None:
        self._cluster.kubectl("exec", pod, "-c", "main", "--", "sh", "-c", f"kill -{signal} 1")


def _object(wanted: StandInPod, node: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    of: dict[ContainerKind, list[dict[str, Any]]] = {kind: [] for kind in ContainerKind}
    for each in wanted.containers:
        of[each.kind].append(_container(each))
    firsts = [*of[ContainerKind.INIT], *of[ContainerKind.SIDECAR]]
    more = {"restartPolicy": "OnFailure", "nodeName": node, "initContainers": firsts, **spec}
    return pod(wanted.name, *of[ContainerKind.APP], **more)


def _container(wanted: StandInContainer) -> dict[str, Any]:
    resources = {"limits": {name: str(amount) for name, amount in wanted.limits.items()}}
    env = [{"name": name, "value": value} for name, value in wanted.env.items()]
    script = TELL if wanted.kind is ContainerKind.INIT else f"{TELL}; {SLOW_END}"
    made = container(wanted.name, script, resources=resources, env=env)
    if wanted.kind is ContainerKind.SIDECAR:
        made["restartPolicy"] = "Always"
    return made


async def test_a_real_kubelet_does_what_the_stand_in_does(
    cluster: Cluster, node: Node, results: Path
) -> None:
    """Registration, lists, what plugins are asked and when, List, checkpoint, rejections, a restart."""
    transcript = await Script(RealPlayer(cluster, node)).play()
    (results / "kubelet-script.txt").write_text(transcript)
    same_as_golden_file("kubelet/script.txt", transcript)
