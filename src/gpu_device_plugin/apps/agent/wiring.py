"""Puts the agent's parts together; the life of the process is in `run`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.admission.allocator import Allocator
from gpu_device_plugin.apps.agent.admission.holder_check import HolderCheck
from gpu_device_plugin.apps.agent.admission.identify import Identifier, Sources
from gpu_device_plugin.apps.agent.admission.prestart import PreStart
from gpu_device_plugin.apps.agent.admission.service import Service
from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower, ModeSettings
from gpu_device_plugin.apps.agent.inventory.usage import UsageReader
from gpu_device_plugin.apps.agent.publish.cluster_side import ClusterSide, NoCluster
from gpu_device_plugin.apps.agent.publish.device_lists import DeviceLists
from gpu_device_plugin.apps.agent.publish.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.publish.publisher import Facts, Publisher, Readers
from gpu_device_plugin.apps.agent.reconcile.kubelet_snapshot import SnapshotReader
from gpu_device_plugin.apps.agent.reconcile.reconciler import Parts, Reconciler
from gpu_device_plugin.apps.agent.slices.container_setup import ContainerSetup
from gpu_device_plugin.apps.agent.slices.library import LibraryInstaller
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore, boot_id
from gpu_device_plugin.apps.agent.state.node_state import NodeState
from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.config import Isolation, Settings
from gpu_device_plugin.domain.edits import DeviceAccess, Mount
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.units import Resource
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME
from gpu_device_plugin.kubelet.directory import PluginDirectory
from gpu_device_plugin.kubelet.endpoint import Endpoint, EndpointState, Phase
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.nvml.source import NvmlSource
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.store.grants import GrantStore
from gpu_device_plugin.store.memory import Memory, MemoryFile
from gpu_device_plugin.store.region import read_region
from gpu_device_plugin.store.remembered import CardsRecord, NodeRecord
from gpu_device_plugin.store.slices import SliceFiles
from gpu_device_plugin.store.writer import Writer
from gpu_device_plugin.web.metrics import AgentMetrics


class Wiring:
    """Every part of one agent, connected."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = AgentMetrics(__version__)
        self.node_store = NodeStore(
            NodeState(
                node=settings.node_name,
                policy=settings.placement,
                unit=settings.memory_unit,
                wants_isolation=settings.isolation is Isolation.ON,
                honors_disable=settings.honor_cgpu_disable,
            )
        )
        self.boot_id = boot_id()
        self.cluster = self._cluster()
        self.recorder = EventRecorder(self.metrics, self.cluster.post, self.node_store.read)
        self._wire_state()
        self._wire_kubelet()
        self._wire_calls()
        self._wire_readers()

    def _cluster(self) -> ClusterSide | NoCluster:
        if self.settings.standalone:
            return NoCluster()
        kubeconfig = Path(self.settings.kubeconfig) if self.settings.kubeconfig else None
        return ClusterSide(kubeconfig, self.settings.node_name, self.metrics.count_dropped_event)

    def _wire_state(self) -> None:
        settings, state_dir = self.settings, Path(self.settings.state_dir)
        self.writer = Writer()
        self.ledger_store = LedgerStore(
            GrantStore(state_dir, self.boot_id), self.writer, self._ledger_changed
        )
        table = Path(settings.xid_table) if settings.xid_table else None
        rules = health_rules(settings.recovery_seconds, table)
        memory = Memory(MemoryFile(state_dir, "cards", CardsRecord, self.boot_id), self.writer)
        self.cards = CardInventory(self.node_store, self.recorder, memory, rules, self.boot_id)
        self.nvml = NvmlSource(self._nvml_library(), self.cards.observe)
        self.mode = ModeFollower(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(state_dir, "node", NodeRecord, self.boot_id), self.writer),
            ModeSettings(settings.mode, settings.placement, settings.memory_unit),
            self._holders,
        )
        self.library = LibraryInstaller(Path(settings.library_dir), self.recorder, self.writer)
        self.setup = ContainerSetup(
            SliceFiles(Path(settings.run_dir)),
            self.library,
            settings.device_access,
            settings.run_dir,
            settings.library_dir,
            driver=self._simulated_driver(),
        )

    def _nvml_library(self) -> Path | None:
        if self.settings.simulator_dir:
            return Path(self.settings.simulator_dir) / "libnvidia-ml.so.1"
        return Path(self.settings.nvml_library) if self.settings.nvml_library else None

    def _simulated_driver(self) -> tuple[Mount, ...]:
        is_by_cdi = self.settings.device_access is DeviceAccess.CDI  # its spec brings the driver
        if not self.settings.simulator_dir or is_by_cdi:
            return ()
        # Not at the top: an agent of real cards loads nothing of the simulation.
        from gpu_device_plugin.simulation.containers import driver_mounts
        from gpu_device_plugin.simulation.node import STATE_NAME, SimulatedNode

        return driver_mounts(SimulatedNode(Path(self.settings.simulator_dir) / STATE_NAME))

    def _wire_kubelet(self) -> None:
        plugins = Path(self.settings.kubelet_dir) / "device-plugins"
        self.directory = PluginDirectory(plugins)
        self.pod_resources = PodResources(
            Path(self.settings.kubelet_dir) / "pod-resources" / "kubelet.sock"
        )
        self.snapshots = SnapshotReader(self.pod_resources.list, plugins / FILE_NAME)

    def _wire_calls(self) -> None:
        sources = Sources(
            list_pods=self.pod_resources.list,
            get_pod=self.pod_resources.get,
            specs=self.cluster.specs,
            fetch_spec=self.cluster.fetch_spec,
        )
        self.identifier = Identifier(sources, lambda: self.ledger_store.ledger)
        self.allocator = Allocator(
            self.identifier, self.ledger_store, self.setup, self.recorder, self.node_store.read
        )
        guard = HolderCheck(self.pod_resources.get, self.snapshots)
        self.prestart = PreStart(
            self.ledger_store, self.setup, guard, self.recorder, self.node_store.read
        )
        self.prestart.fetch_spec = self.cluster.fetch_spec
        parts = Parts(
            ledger_store=self.ledger_store,
            setup=self.setup,
            snapshots=self.snapshots,
            recorder=self.recorder,
            state=self.node_store.read,
            specs=self.cluster.specs,
            is_synced=self.cluster.is_synced,
            kubelet_identity=self._kubelet_identity,
            refresh_checkpoint=lambda: self.endpoints[Resource.MEM].send_again(),
        )
        self.reconciler = Reconciler(parts, self.allocator.call_lock)
        self.reconciler.on_settled = self.identifier.remember_too
        self.reconciler.is_between = lambda: self.allocator.is_between
        self.prestart.adopt = self.reconciler.run_pass
        service = Service(self.allocator, self.prestart, self.metrics)
        self.endpoints = {
            resource: Endpoint(resource, service, self.directory, self._endpoint_changed)
            for resource in Resource
        }
        self.device_lists = DeviceLists(self.endpoints.items())

    def _wire_readers(self) -> None:
        cluster = self.cluster if isinstance(self.cluster, ClusterSide) else None
        readers = Readers(
            self.metrics,
            cluster.metadata if cluster else None,
            cluster.annotations if cluster else None,
        )
        regions = self.setup.files
        self.usage = UsageReader(
            lambda slice_id: read_region(regions.region(slice_id)), self.reconciler.living
        )
        facts = Facts(
            ledger=self.reconciler.living,
            driver=lambda: (self.cards.driver_version, self.cards.cuda_version),
            drift=lambda: self.reconciler.drift,
            is_api_reachable=lambda: None if cluster is None else not cluster.api.reach.is_away,
            usage=self.usage.of,
        )
        self.publisher = Publisher(readers, facts, self.node_store.read)
        self.node_store.listen(self.publisher.changed)
        if cluster is not None:
            cluster.on_pod_gone = self.reconciler.request_pass
            cluster.on_pod_synced = self._pod_synced
            cluster.api.reach.on_change = self.publisher.changed

    async def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus reads, made when it asks: figures that nobody reads cost nothing."""
        await self.usage.refresh()
        self.publisher.show()
        return self.metrics.page(accept)

    def _ledger_changed(self, _: object) -> None:
        self.publisher.changed()

    def _pod_synced(self, pod: PodRef) -> None:
        """The spec of a pod that was granted without it can be checked, and passed on, now."""
        by_name = replace(pod, uid="")
        if any(not grant.is_checked for grant in self.ledger_store.ledger.of_pod(by_name)):
            self.reconciler.request_pass()

    def _holders(self) -> Sequence[PodRef]:
        return self.reconciler.holders()

    def _kubelet_identity(self) -> object | None:
        """A kubelet that starts answers List some time before it makes its kubelet.sock anew."""
        plugins = self.directory.kubelet_identity()
        return None if plugins is None else (plugins, self.pod_resources.identity())

    def _endpoint_changed(self, state: EndpointState) -> None:
        if state.phase is Phase.REGISTERED:
            self.metrics.count_registration(str(state.resource))
