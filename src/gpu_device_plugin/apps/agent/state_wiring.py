"""What every agent remembers and knows before any front serves: the first half of the wiring."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.edges import Edges, real_edges, simulated_driver
from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.inventory.configuration import ConfigurationFollower
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.publish.cluster import ClusterSignals
from gpu_device_plugin.apps.agent.publish.device_lists import DeviceLists
from gpu_device_plugin.apps.agent.reconcile.reconciler import Reconciler
from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.apps.agent.slices.container_setup import ContainerSetup
from gpu_device_plugin.apps.agent.slices.library import LibraryInstaller
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.apps.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.config.agent import Settings, takes_mig
from gpu_device_plugin.domain.reports import DriverChanged
from gpu_device_plugin.domain.schemes.registry import Schemes, shipped
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.store.grants import GrantStore
from gpu_device_plugin.store.lock import NodeLock
from gpu_device_plugin.store.selinux import Kernel
from gpu_device_plugin.store.slices import SliceFiles
from gpu_device_plugin.store.state_file import Memory, MemoryFile
from gpu_device_plugin.store.state_records import CardsRecord, NodeRecord
from gpu_device_plugin.store.writer import Writer
from gpu_device_plugin.web.metrics import AgentMetrics


class StateWiring:
    """Settings, edges, and the parts that know the node; the fronts come with `Wiring`."""

    reconciler: Reconciler
    device_lists: DeviceLists

    def __init__(
        self,
        settings: Settings,
        edges: Edges | None = None,
        schemes: Schemes | None = None,
        *,
        on_driver_changed: Callable[[DriverChanged], None] = lambda _: None,
        kernel: Kernel | None = None,
    ) -> None:
        self.settings = settings
        self.configuration = ConfigurationFollower(
            settings,
            lambda: self.reconciler.holders,
            lambda: self.recorder,
            lambda: self.device_lists.publish(self.node_store.read()),
        )
        self.schemes = schemes or Schemes(*shipped(lambda: self.configuration.current))
        self.edges = edges or real_edges(settings, self.schemes.resources)
        self._on_driver_changed = on_driver_changed
        self._kernel = kernel or Kernel()
        self.metrics = AgentMetrics(__version__)
        self.node_store = NodeStore(first_state(settings))
        self.signals = ClusterSignals()
        self.cluster = self.edges.cluster(self.signals, self.metrics.count_dropped_event)
        self.recorder = EventRecorder(
            self.metrics,
            self.cluster.post,
            self.node_store.read,
            self.edges.clock.wall_seconds,
            self.schemes,
        )
        self._wire_state()

    def _wire_state(self) -> None:
        settings, edges, state_dir = self.settings, self.edges, Path(self.settings.state_dir)
        self.writer = Writer()
        self.lock = NodeLock(state_dir / "lock")
        grants = GrantStore(state_dir, edges.boot_id, schemes=self.schemes)
        self.ledger_store = LedgerStore(grants, self.writer)
        self.snapshots = SnapshotReader(edges.pods.list, edges.checkpoint)
        table = Path(settings.xid_table) if settings.xid_table else None
        self.cards = CardInventory(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(state_dir, "cards", CardsRecord, edges.boot_id), self.writer),
            health_rules(settings.recovery_seconds, table, takes_mig=takes_mig(settings)),
            edges.boot_id,
            boot_seconds=edges.clock.boot_seconds,
            held_numbers=partial(self.snapshots.held_numbers, self.ledger_store, self.schemes),
            on_driver_changed=self._on_driver_changed,
        )
        self.nvml = edges.nvml(self.cards.observe)
        self.mode = ModeFollower(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(state_dir, "node", NodeRecord, edges.boot_id), self.writer),
            settings,
            lambda: self.reconciler.holders,
            self.schemes.check_unit,
        )
        self.library = LibraryInstaller(Path(settings.library_dir), self.recorder, self.writer)
        self.setup = ContainerSetup(
            SliceFiles(Path(settings.run_dir)),
            self.library,
            lambda: self.configuration.current.access,
            settings.run_dir,
            settings.library_dir,
            self.schemes,
            driver=simulated_driver(settings),
        )
