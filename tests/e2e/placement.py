"""The chart's controller and its scheduler on three nodes of four cards, each with an agent."""

import base64
import json
import ssl
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.agent_image import AgentImage
from tests.e2e.conftest import STATE
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.binaries import provide_scheduler, scheduler_version
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import (
    ADDRESS,
    DEPLOYMENTS,
    RELEASE,
    RELEASE_NAMESPACE,
    WRITER,
    Helm,
    load_scheduler,
    wait_for_rollout,
)
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.controller.webhook_certificates import SECRET
from gpu_device_plugin.kubernetes.objects.leader_label import LEADER_LABEL

SCHEDULER = "gpu-scheduler"
_FURTHER = {"n2": "core_mem", "n3": "cgpu"}
MEMORY_ONLY = "n3"


@dataclass(frozen=True, slots=True)
class Placement:
    """What runs.

    Attributes:
        cluster: Where.
        agents: Node -> its agent.
        tls: What kube-scheduler shows to the controller.
    """

    cluster: Cluster
    agents: dict[str, Agent]
    tls: ssl.SSLContext

    def leader(self) -> str:
        """The pod that serves kube-scheduler; "" while there is none."""
        selector = f"{LEADER_LABEL}=true"
        names = [
            p["metadata"]["name"] for p in self.cluster.every("pod", RELEASE_NAMESPACE, selector)
        ]
        return names[0] if len(names) == 1 else ""

    def inspected(self) -> dict[str, list[dict[str, Any]]]:
        """Node -> cards, as the leader's ledger has them."""
        request = f"https://{ADDRESS}/gpushare-scheduler/inspect"
        with urllib.request.urlopen(request, timeout=10, context=self.tls) as answer:
            return {node["name"]: node["devs"] for node in json.load(answer)["nodes"]}

    def kill(self, pod: str) -> None:
        """End a pod of the release as kill -9 does."""
        self.cluster.kubectl(
            *("-n", RELEASE_NAMESPACE, "delete", "pod", pod, "--grace-period=0", "--force")
        )

    def scheduler_pods(self) -> Sequence[str]:
        """Replicas of the second scheduler."""
        selector = "app.kubernetes.io/name=gpu-device-plugin-scheduler"
        found = self.cluster.every("pod", RELEASE_NAMESPACE, selector)
        return [each["metadata"]["name"] for each in found]


@contextmanager
def placement(cluster: Cluster, first: Agent, image: AgentImage, logs: Path) -> Iterator[Placement]:
    """All of it, from two further nodes to a leader that answers."""
    if not first.program.running():
        first.start()
    with ExitStack() as stack:
        agents = {NODE: first}
        for name, mode in _FURTHER.items():
            node = stack.enter_context(cluster.another_node(name))
            cluster.kubectl("label", "node", name, f"ack.node.gpu.schedule={mode}")
            directories = AgentDirectories(STATE / f"agent-{name}", logs / name, node)
            agents[name] = Agent(cluster, directories, {"mode": mode})
            agents[name].prepare("--seed", name)
            agents[name].start()
            stack.callback(agents[name].stop)
        _install(cluster, image)
        stack.callback(Helm(cluster).uninstall)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = Placement(cluster, agents, _tls(cluster, folder))
        wait_for("a controller leads", found.leader, 120, 0.5)

        def is_answered() -> bool:
            try:
                return len(found.inspected()) == len(agents)
            except OSError:
                return False

        wait_for("the leader answers", is_answered, 60, 0.5)
        yield found


def _install(cluster: Cluster, image: AgentImage) -> None:
    """The chart without agents, which run beside; the scheduler is in the version that SCHEDULER names."""
    load_scheduler(cluster, provide_scheduler())
    Helm(cluster).install(
        *(f"image.repository={image.repository}", f"image.tag={image.tag}"),
        *("image.pullPolicy=Never", "nodeSelector.agents=none"),
        *("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false"),
        *("controller.enabled=true", f"controller.clusterIP={ADDRESS}"),
        *(f"controller.nodeSelector.kubernetes\\.io/hostname={NODE}", "controller.replicas=2"),
        "scheduler.replicas=2",
        f"scheduler.name={SCHEDULER}",
        WRITER,
    )
    version = cluster.binaries.kubernetes_version
    if scheduler_version() != version:
        # A newer one waits for APIs that this API server lacks, unless it is told which version it schedules for.
        flag = f"--emulated-version={'.'.join(version.split('.')[:2])}"
        patch = {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag}
        scheduler = ("deployment", f"{RELEASE}-scheduler")
        cluster.kubectl(
            "patch",
            *scheduler,
            "-n",
            RELEASE_NAMESPACE,
            "--type=json",
            f"--patch={json.dumps([patch])}",
        )
    wait_for_rollout(cluster, *DEPLOYMENTS)


def _tls(cluster: Cluster, folder: Path) -> ssl.SSLContext:
    """By the Secret that the controller made."""
    data = cluster.get("secret", SECRET, RELEASE_NAMESPACE)["data"]
    told = {key: base64.b64decode(value) for key, value in data.items()}
    context = ssl.create_default_context(cadata=told["ca.crt"].decode())
    pair = folder / "client.pem"
    pair.write_bytes(told["client.crt"] + told["client.key"])
    context.load_cert_chain(pair)
    return context


def asking(name: str, units: int, percent: int | None, **spec: Any) -> dict[str, Any]:
    """A pod for the second scheduler."""
    main = container("main", resources=slice_of(units, percent))
    return pod(name, main, schedulerName=SCHEDULER, **spec)


def on(node: str) -> dict[str, Any]:
    """The part of a pod's spec that allows one node only."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}
