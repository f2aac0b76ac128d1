"""Puts the agent's parts together; the life of the process is in `run`.

No part knows this one: each gets what it needs, and nothing is put into a part afterwards.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_device_plugin import __version__
from gpu_device_plugin.apps.agent.admission.admission import Admission
from gpu_device_plugin.apps.agent.device_plugin.caller_lookup import Identifier, Sources
from gpu_device_plugin.apps.agent.device_plugin.holder_check import HolderCheck
from gpu_device_plugin.apps.agent.device_plugin.prestart import PreStart
from gpu_device_plugin.apps.agent.device_plugin.recorded import RecordedCalls
from gpu_device_plugin.apps.agent.device_plugin.service import Service
from gpu_device_plugin.apps.agent.device_plugin.session import CallParts, Session
from gpu_device_plugin.apps.agent.edges import Edges, real_edges, simulated_driver
from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.inventory.configuration import ConfigurationFollower
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle.admin_socket import AdminCommands
from gpu_device_plugin.apps.agent.lifecycle.node_checks import LayoutCheck
from gpu_device_plugin.apps.agent.lifecycle.readiness import Readiness
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import NodeFollower, Withdrawal
from gpu_device_plugin.apps.agent.publish.cluster import ClusterSignals
from gpu_device_plugin.apps.agent.publish.device_lists import DeviceLists
from gpu_device_plugin.apps.agent.publish.features import FeatureLabels
from gpu_device_plugin.apps.agent.publish.publisher import Facts, Publisher
from gpu_device_plugin.apps.agent.publish.usage import UsageReader
from gpu_device_plugin.apps.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.apps.agent.reconcile.reconciler import Parts, Reconciler
from gpu_device_plugin.apps.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.apps.agent.slices.container_setup import ContainerSetup
from gpu_device_plugin.apps.agent.slices.library import LibraryInstaller
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.apps.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.apps.agent.wiring_checks import node_checks
from gpu_device_plugin.apps.agent.wiring_claims import claim_door, offered_pools
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.health_values import HealthRules
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.reports import DriverChanged
from gpu_device_plugin.domain.schemes.registry import Schemes, shipped
from gpu_device_plugin.kubelet.resource_server import Endpoint, EndpointState, Phase
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.store.grants import GrantStore
from gpu_device_plugin.store.lock import NodeLock
from gpu_device_plugin.store.region import read_region
from gpu_device_plugin.store.remains import Remains
from gpu_device_plugin.store.selinux import Kernel
from gpu_device_plugin.store.slices import SliceFiles
from gpu_device_plugin.store.state_file import Memory, MemoryFile
from gpu_device_plugin.store.state_records import CardsRecord, NodeRecord
from gpu_device_plugin.store.writer import Writer
from gpu_device_plugin.web.metrics import AgentMetrics


class Wiring:
    """Every part of one agent, connected."""

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
        self.node_store = NodeStore(first_state(settings))
        self.configuration = self._configured()
        self.schemes = schemes or self._shipped()
        self.edges = edges or real_edges(settings, self.schemes.resources)
        self._on_driver_changed = on_driver_changed
        self.kernel = kernel or Kernel()
        self.metrics = AgentMetrics(__version__)
        self.signals = ClusterSignals()
        self.cluster = self.edges.cluster(
            self.signals, partial(self.metrics.count, "events_dropped")
        )
        state, clock = self.node_store.read, self.edges.clock.wall_seconds
        self.recorder = EventRecorder(self.metrics, self.cluster.post, state, clock, self.schemes)
        self._wire_state()
        self._wire_admission()
        self._wire_kubelet()
        self.claim_door = claim_door(self)
        self._wire_readers()
        self._wire_lifecycle()

    def _configured(self) -> ConfigurationFollower:
        return ConfigurationFollower(
            self.settings,
            self.node_store,
            lambda: self.mode.labels,
            lambda: self.reconciler.holders,
            lambda: self.recorder,
            self._configuration_changed,
            lambda: self.mode.remember(),
        )

    def _keeps_mode(self, resource: str) -> bool:
        """Whether pods that hold it keep the node's mode; not what another plugin must have given."""
        return resource in self.mode.registered or not self.schemes.recorder(resource)

    def _shipped(self) -> Schemes:
        """The schemes of this release, which ask for the configuration and the holders of now."""
        held = lambda: self.ledger_store.living.grants.values()  # noqa: E731
        return Schemes(*shipped(lambda: self.configuration.current, held))

    def _wire_state(self) -> None:
        settings, edges, state_dir = self.settings, self.edges, Path(self.settings.state_dir)
        self.writer = Writer()
        self.lock = NodeLock(state_dir / "lock")
        grants = GrantStore(state_dir, edges.boot_id, schemes=self.schemes)
        self.ledger_store = LedgerStore(grants, self.writer)
        self.snapshots = SnapshotReader(edges.pods.list, edges.checkpoint)
        self.cards = CardInventory(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(state_dir, "cards", CardsRecord, edges.boot_id), self.writer),
            _health_rules(settings),
            edges.boot_id,
            boot_seconds=edges.clock.boot_seconds,
            held_numbers=partial(self.snapshots.held_numbers, self.ledger_store, self.schemes),
            takes_mig=lambda card: self.schemes.takes_mig(card, self.node_store.read().mode),
            on_driver_changed=self._on_driver_changed,
        )
        self.nvml = edges.nvml(self.cards.observe)
        self.mode = ModeFollower(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(state_dir, "node", NodeRecord, edges.boot_id), self.writer),
            settings,
            lambda: self.reconciler.holders_of(self._keeps_mode),
            self.schemes.check_unit,
        )
        self.library = LibraryInstaller(
            Path(settings.library_dir), self.recorder, self.writer, self.node_store
        )
        self.setup = ContainerSetup(
            SliceFiles(Path(settings.run_dir)),
            self.library,
            lambda: self.configuration.current.access,
            settings.run_dir,
            settings.library_dir,
            self.schemes,
            driver=simulated_driver(settings),
        )

    def _wire_admission(self) -> None:
        edges, cluster, state = self.edges, self.cluster, self.node_store.read
        self.gate, self._specs = (gate := CallGate()), partial(edges.specs, cluster)
        self.identifier = Identifier(
            Sources(edges.pods.list, edges.pods.get, self._specs, cluster.fetch_spec),
            lambda: self.ledger_store.ledger,
        )
        store, recorder, schemes = self.ledger_store, self.recorder, self.schemes
        clock = edges.clock.wall_seconds
        self.admission = Admission(store, self.setup, recorder, state, schemes, clock)
        self.calls = CallParts(self.identifier, self.admission, recorder, state, gate, schemes)
        self.session = Session(self.calls)
        self.reconciler = Reconciler(
            Parts(
                ledger_store=self.ledger_store,
                setup=self.setup,
                snapshots=self.snapshots,
                recorder=self.recorder,
                state=state,
                specs=self._specs,
                is_synced=cluster.is_synced,
                kubelet_identity=edges.kubelet_identity,
                gate=gate,
                on_settled=self.identifier.remember_too,
                is_offering=lambda: self.device_lists.is_offering,
                is_waited_for=lambda: (
                    self.mode.is_waiting or state().is_leaving or bool(self.layout.waiting)
                ),
                wall_seconds=edges.clock.wall_seconds,
                schemes=self.schemes,
            )
        )

    def _wire_kubelet(self) -> None:
        """The device plugin front: what the kubelet's calls reach, and the lists it gets."""
        edges = self.edges
        self.prestart = PreStart(
            self.ledger_store,
            self.setup,
            HolderCheck(edges.pods.get, self.snapshots),
            self.recorder,
            self.node_store.read,
            self.schemes,
            fetch_spec=self.cluster.fetch_spec,
            adopt=self.reconciler.run_pass,
        )
        self.recorded = RecordedCalls(
            self.calls, self.snapshots, self.reconciler.unread_answers.note
        )
        service = Service(self.session, self.recorded, self.prestart, self.schemes, self.metrics)
        self.device_lists = DeviceLists(
            lambda name: Endpoint(name, service, edges.plugins, self._endpoint_changed),
            partial(offered_pools, self),
        )
        self.reconciler.checkpoint_stale.subscribe(lambda _: self.device_lists.send_again())

    def _wire_readers(self) -> None:
        self.usage = UsageReader(
            lambda slice_id: read_region(self.setup.files.region(slice_id)),
            lambda: self.ledger_store.living,
        )
        facts = Facts(
            ledger=lambda: self.ledger_store.living,
            driver=lambda: (self.cards.driver_version, self.cards.cuda_version),
            drift=lambda: self.reconciler.drift,
            wall_seconds=self.edges.clock.wall_seconds,
            usage=self.usage.of,
            used_bytes=self.cards.used_bytes,
            by_claims=self.claim_door.cards,
            specs=self._specs,
        )
        self.publisher = Publisher(
            self.metrics, self.cluster, facts, self.node_store.read, self.schemes
        )
        self.features = FeatureLabels(
            lambda: self.configuration.current.features,
            self.schemes.feature_labels,
            lambda: self.cards.machine,
            self.node_store.read,
            self.cluster,
            self.recorder,
        )
        self.node_store.subscribe(self.publisher.changed)
        self.ledger_store.changed.subscribe(self.publisher.changed)
        self.reconciler.passed.subscribe(self.publisher.changed)
        self.signals.reach_changed.subscribe(self.publisher.changed)

    def _wire_lifecycle(self) -> None:
        settings = self.settings
        self.layout = LayoutCheck(self.schemes, self.node_store, self.recorder, self._publish_lists)
        self.withdrawal = Withdrawal(
            self.node_store,
            self.ledger_store,
            self.cluster,
            self.recorder,
            self.reconciler,
            self.library,
            Remains(Path(settings.state_dir), Path(settings.run_dir)),
            self.schemes.resources,
        )
        self.node_checks = node_checks(self)
        follower = NodeFollower(
            self.cluster, self.mode, self.withdrawal, self.node_store.read, settings
        )
        self.readiness = Readiness(
            self.node_store.read,
            self.cards,
            self.device_lists,
            self.cluster,
            self.schemes.offers,
            settings.state_dir,
            lambda: self.claim_door.trouble,
        )
        self.commands = AdminCommands(
            self.recorder, self.ledger_store, self.cards, self.node_store.read
        )
        self.signals.node_changed.subscribe(follower.node_changed)
        self.signals.node_changed.subscribe(lambda _: self.configuration.run())
        self.signals.pod_gone.subscribe(self.reconciler.pod_gone)
        self.signals.pod_synced.subscribe(self._pod_synced)

    async def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """The metrics page, made at each scrape, so that it costs nothing without one."""
        await self.usage.refresh()
        self.publisher.show()
        return self.metrics.page(accept, is_ready=self.readiness.tell()[0])

    def _publish_lists(self) -> None:
        self.device_lists.publish(self.node_store.read())

    def _configuration_changed(self) -> None:
        self.cards.follow_mig()
        self.layout.run()  # before the lists: what waits now is published again when it has ended
        self._publish_lists()

    def _pod_synced(self, pod: PodRef) -> None:
        """The spec of a pod arrived: a grant that was made without it can be checked now."""
        by_name = replace(pod, uid="")
        if any(not grant.is_checked for grant in self.ledger_store.ledger.of_pod(by_name)):
            self.reconciler.request_pass()

    def _endpoint_changed(self, state: EndpointState) -> None:
        if state.phase is Phase.REGISTERED:
            self.metrics.count("registrations", state.resource)
            self.mode.note_registered(state.resource)


def _health_rules(settings: Settings) -> HealthRules:
    """The table of XIDs, and what the settings make of it."""
    return health_rules(
        settings.recovery_seconds,
        Path(settings.xid_table) if settings.xid_table else None,
        settings.disable_healthchecks,
        settings.enable_healthchecks,
    )
