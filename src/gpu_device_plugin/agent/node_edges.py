"""Everything outside the process that the agent's parts speak to, as one value.

`real_edges` is what the shipped agent has; tests and simulations pass their own.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_device_plugin.agent.publish.api_cluster import (
    AgentIdentity,
    ApiCluster,
    Cluster,
    ClusterSignals,
    NoCluster,
)
from gpu_device_plugin.domain.cards.nvml_reports import NvmlReport
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.container_edits import Mount
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.node.pods import PodKey, PodRequest, known_here
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME, read_checkpoint
from gpu_device_plugin.kubelet.plugin_directory import PluginDirectory
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.kubelet.pods_api import PodsApi
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request
from gpu_device_plugin.nvml.nvml_source import NvmlSource
from gpu_device_plugin.settings.agent_settings import Settings, may_take_mig


@dataclass(frozen=True, slots=True)
class Clock:
    """Clocks that the event loop does not have; durations come from the loop's own."""

    wall_seconds: Callable[[], float] = lambda: time.time()  # looked up when called
    boot_seconds: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    """Seconds since boot: never jumps, and stays comparable over a restart."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The node around the agent."""

    clock: Clock
    resources: Collection[str]  # those that this agent may offer
    boot_id: str  # the kernel's id of this boot, or "" where it does not tell
    pods: PodResources
    pods_api: PodsApi
    checkpoint: Callable[[], Sequence[CheckpointEntry] | None]
    """The kubelet's checkpoint, None where there is none. Raises KubeletError."""
    plugins: PluginDirectory
    cluster: Callable[[ClusterSignals, Callable[[], None]], Cluster]
    """Makes the side of the API server, from signals and what counts dropped Events."""
    nvml: Callable[[Callable[[NvmlReport], None]], NvmlSource]
    """Makes the source of reports, from who takes them."""
    cgroups: Path = Path("/sys/fs/cgroup")

    def specs(self, cluster: Cluster) -> Specs:
        """Pods as the API server has them; of a forged mirror only that it is there."""
        return known_here(cluster.specs(), self.pods.listed)

    async def fetch_spec(self, cluster: Cluster, namespace: str, name: str) -> PodRequest | None:
        """A pod that the watch lacks: from the kubelet if it tells (1.37), else from the API server.

        Raises:
            ClusterError: No answer in time, or a limit that is no quantity.
        """
        found = await self.pods_api.find(namespace, name)
        if found is None:
            return await cluster.fetch_spec(namespace, name)
        return pod_request(msgspec.convert(found, Pod), self.resources)

    def kubelet_identity(self) -> object | None:
        """Both sockets, because a starting kubelet answers List before it makes kubelet.sock."""
        plugins = self.plugins.kubelet_identity()
        return None if plugins is None else (plugins, self.pods.identity())


def real_edges(settings: Settings, resources: Collection[str] = OUR_RESOURCES) -> Edges:
    """The node that the settings name; `resources` are those that this agent may offer."""
    kubelet = Path(settings.kubelet_dir)
    plugins = kubelet / "device-plugins"
    return Edges(
        clock=Clock(),
        resources=resources,
        boot_id=boot_id(),
        pods=PodResources(kubelet / "pod-resources" / "kubelet.sock", resources),
        pods_api=PodsApi(kubelet / "pods-api" / "pods-api.sock"),
        checkpoint=lambda: read_checkpoint(plugins / FILE_NAME, frozenset(resources)),
        plugins=PluginDirectory(plugins),
        cluster=lambda signals, on_drop: _cluster(settings, resources, signals, on_drop),
        nvml=lambda on_report: NvmlSource(
            _nvml_library(settings), on_report, slices=Path(settings.run_dir) / "slices"
        ),
    )


def simulated_driver(settings: Settings) -> tuple[Mount, ...]:
    """Files of the simulated driver that containers mount; none of a real one."""
    if not settings.simulator_dir:
        return ()
    # Not at the top: an agent with real cards does not load the simulation.
    from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode, driver_mounts

    return driver_mounts(SimulatedNode(Path(settings.simulator_dir) / STATE_NAME))


def own_pod() -> PodKey:
    """Namespace and name of our own pod; empty outside one."""
    return os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's id of this boot, or "" where it does not tell."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _cluster(
    settings: Settings,
    resources: Collection[str],
    signals: ClusterSignals,
    on_drop: Callable[[], None],
) -> Cluster:
    if settings.standalone:
        return NoCluster()
    api = ApiServer.at(Path(settings.kubeconfig) if settings.kubeconfig else None)
    place = AgentIdentity(settings.node_name, own_pod(), resources, _own(settings, resources))
    return ApiCluster(api, place, signals, on_drop)


def _own(settings: Settings, resources: Collection[str]) -> frozenset[str]:
    """The names that no other plugin has: NVIDIA's only of MIG instances, where we offer them."""
    prefix = "nvidia.com/mig-" if may_take_mig(settings) else "nvidia.com//"
    return frozenset(
        r for r in resources if r.startswith(prefix) or not r.startswith("nvidia.com/")
    )


def _nvml_library(settings: Settings) -> Path | None:
    if settings.simulator_dir:
        return Path(settings.simulator_dir) / "libnvidia-ml.so.1"
    return Path(settings.nvml_library) if settings.nvml_library else None
