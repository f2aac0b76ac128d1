"""The product as an operator has it: the image on the nodes, and a release of the chart for each kind.

The unit of memory is a value of the chart, so nodes that count in 128 MiB have a release of their
own. Cards are simulated, and brought into containers by the agents.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import RELEASE, RELEASE_NAMESPACE, Helm
from tools.harness.cluster.node import AGENT_STATE, Node
from tools.harness.cluster.pods import CORE, COUNT, FOUR_CARDS, MEMORY
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.grant_file import GrantStore

MODE_LABEL = "ack.node.gpu.schedule"
SHARED_RELEASE = "shared"
DRIVER = os.environ.get("DRIVER", "")
"""Version of the simulated driver; empty for the profile's."""
# A grant ends when the kubelet lacks it twice, 30 s apart.
RELEASE_SECONDS = 150
OFFERED = {
    RELEASE: FOUR_CARDS,
    # floor(16160 / 128) = 126 units a card.
    SHARED_RELEASE: {MEMORY: "504", COUNT: "4"},
}
KINDS: Mapping[str, Sequence[str]] = {
    RELEASE: ("mode=core_mem", "gpuMemoryUnit=GiB"),
    SHARED_RELEASE: ("mode=share", "gpuMemoryUnit=128MiB"),
}


@dataclass(frozen=True, slots=True)
class Installation:
    """Two releases, one for each node.

    Attributes:
        cluster: Where.
        second: The node in mode share; the cluster's first divides time as well.
        repository: Name of the image.
    """

    cluster: Cluster
    second: Node
    repository: str

    def node(self, release: str) -> Node:
        """The node of a release."""
        return self.cluster.node if release == RELEASE else self.second

    def helm(self, release: str) -> Helm:
        """The helm of one of them."""
        return Helm(self.cluster, release)

    def bring(self, release: str, tag: str, *settings: str) -> None:
        """Install a release, or upgrade it, and wait until its agent serves its node."""
        self.helm(release).install(*self.values(release, tag), *settings)
        self.wait_until_served(release, tag)

    def values(self, release: str, tag: str) -> Sequence[str]:
        """What the operator sets."""
        mode = KINDS[release][0].partition("=")[2]
        return (
            f"image.repository={self.repository}",
            f"image.tag={tag}",
            "image.pullPolicy=Never",
            "simulate.profile=v100",
            f"simulate.driverVersion={DRIVER}",
            f"nodeSelector.ack\\.node\\.gpu\\.schedule={mode}",
            *KINDS[release],
        )

    def wait_until_served(self, release: str, tag: str) -> None:
        """Return when an agent of that image serves the node, and the node offers its cards."""
        name = daemonset(release)
        self.cluster.kubectl(
            *("-n", RELEASE_NAMESPACE, "rollout", "status", f"daemonset/{name}", "--timeout=360s"),
            seconds=400,
        )
        wait_for(f"{name} runs {tag}", lambda: self._runs(release, tag), 120, 0.5)
        wait_for(f"{name} serves", lambda: self.offered(release) == OFFERED[release], 60, 0.5)

    def agent_pod(self, release: str) -> dict[str, Any]:
        """The pod of a release's agent; empty while there is none."""
        # A hook's pod carries another name; one that failed stays to be read.
        labels = {"instance": release, "name": "gpu-device-plugin"}
        selector = ",".join(f"app.kubernetes.io/{key}={value}" for key, value in labels.items())
        pods = self.cluster.every("pod", RELEASE_NAMESPACE, selector)
        ended = [one for one in pods if "deletionTimestamp" in one["metadata"]]
        living = [one for one in pods if one not in ended]
        return dict(living[0]) if len(living) == 1 and not ended else {}

    def agent_tag(self, release: str) -> str:
        """Which image the agent of a release runs."""
        (container,) = self.agent_pod(release)["spec"]["containers"]
        return str(container["image"]).rpartition(":")[2]

    def offered(self, release: str) -> dict[str, str]:
        """Our resources in the allocatable of a release's node."""
        status = self.cluster.get("node", self.node(release).name)["status"]
        return {n: v for n, v in status["allocatable"].items() if n in (MEMORY, CORE, COUNT)}

    def _runs(self, release: str, tag: str) -> bool:
        pod = self.agent_pod(release)
        statuses = pod.get("status", {}).get("containerStatuses", [])
        wanted = f"{self.repository}:{tag}"
        return bool(statuses) and all(
            one["ready"] and one["image"].endswith(wanted) for one in statuses
        )


def daemonset(release: str) -> str:
    """The name that the chart gives it."""
    return release if "gpu-device-plugin" in release else f"{release}-gpu-device-plugin"


def granted_pods(node: Node) -> set[str]:
    """Pods that hold slices, as the agent of a node has written it down."""
    ledger = GrantStore(node.place.directory / AGENT_STATE, "").read()
    return {grant.pod.name for grant in ledger.grants.values()}
