"""Puts the agent's parts together; the life of the process is in `run`.

No part knows this one. Each is made from parts that are there already, and nothing is put into it
afterwards; what it must tell to a later part goes by a signal, to which that one subscribes here.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_device_plugin import __version__
from gpu_device_plugin.agent.admission.admission import Admission
from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.admission.library_installer import LibraryInstaller
from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
from gpu_device_plugin.agent.card_watch.configuration_follower import ConfigurationFollower, InForce
from gpu_device_plugin.agent.card_watch.mode_follower import ModeFollower
from gpu_device_plugin.agent.claims.claim_service import ClaimEndpoint
from gpu_device_plugin.agent.claims.preparation import ClaimParts
from gpu_device_plugin.agent.kubelet_calls.caller_lookup import CallerLookup, Sources
from gpu_device_plugin.agent.kubelet_calls.device_calls import DeviceCalls
from gpu_device_plugin.agent.kubelet_calls.fraction_calls import FractionCalls
from gpu_device_plugin.agent.kubelet_calls.holder_check import HolderCheck
from gpu_device_plugin.agent.kubelet_calls.prestart import PreStart
from gpu_device_plugin.agent.node_checks.admin_socket import AdminCommands
from gpu_device_plugin.agent.node_checks.driver_limits_check import KEEPER_SOCKET, DriverLimitsCheck
from gpu_device_plugin.agent.node_checks.node_checks import LayoutCheck
from gpu_device_plugin.agent.node_checks.node_follower import NodeFollower
from gpu_device_plugin.agent.node_checks.other_plugin_search import OtherPluginSearch
from gpu_device_plugin.agent.node_checks.readiness import Readiness
from gpu_device_plugin.agent.node_checks.withdrawal import Withdrawal
from gpu_device_plugin.agent.node_edges import Edges, real_edges, simulated_driver
from gpu_device_plugin.agent.publish.api_cluster import ClusterSignals
from gpu_device_plugin.agent.publish.device_lists import DeviceLists, Registrations
from gpu_device_plugin.agent.publish.feature_labels_writer import FeatureLabels
from gpu_device_plugin.agent.publish.publisher import Publisher
from gpu_device_plugin.agent.publish.usage_reader import UsageReader
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.reconcile.holders import Holders
from gpu_device_plugin.agent.reconcile.reconciler import Reconciler
from gpu_device_plugin.agent.reconcile.snapshot_reader import SnapshotReader
from gpu_device_plugin.agent.resize.resizer import Resizer
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore, LiveLedger
from gpu_device_plugin.agent.state.node_store import NodeStore, first_state
from gpu_device_plugin.disk.cdi_files import CdiFiles
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.disk.locks import NodeLock
from gpu_device_plugin.disk.processes import holds_region, is_populated
from gpu_device_plugin.disk.remains import Remains
from gpu_device_plugin.disk.selinux import SelinuxKernel
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.disk.state_file import CardsRecord, Memory, MemoryFile, NodeRecord
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState, Pool
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.kubelet.registration import Endpoint, EndpointPhase, EndpointState
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.settings.agent_settings import Settings, configuration_at_start
from gpu_device_plugin.web.http_server import Page
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics


class Wiring:
    """Every part of one agent, connected."""

    def __init__(
        self, settings: Settings, edges: Edges | None = None, *, kernel: SelinuxKernel | None = None
    ) -> None:
        self.settings = settings
        self.node_store = NodeStore(first_state(settings))
        self.in_force = in_force = InForce(configuration_at_start(settings))
        self.live = LiveLedger()
        self.schemes = Schemes(lambda: in_force.current, lambda: self.live.shown.grants.values())
        self.edges = edges or real_edges(settings, self.schemes.resources)
        self.kernel = kernel or SelinuxKernel()
        self.metrics = AgentMetrics(__version__)
        self.signals = ClusterSignals()
        self.cluster = self.edges.cluster(
            self.signals, partial(self.metrics.count, "events_dropped")
        )
        clock = self.edges.clock.wall_seconds
        self.recorder = EventRecorder(
            self.metrics, self.cluster.post, self.node_store, clock, self.schemes
        )
        self._wire_state()
        self._wire_inventory()
        self._wire_admission()
        self._wire_reconcile()
        self._wire_resize()
        self._wire_calls()
        self._wire_offers()
        self._wire_readers()
        self._wire_lifecycle()

    def _wire_state(self) -> None:
        edges, state_dir = self.edges, Path(self.settings.state_dir)
        self.writer = Writer()
        self.lock = NodeLock(state_dir / "lock")
        grants = GrantStore(state_dir, edges.boot_id, schemes=self.schemes)
        self.ledger_store = LedgerStore(grants, self.writer, self.live)
        self.files = SliceFiles(Path(self.settings.run_dir), Path(self.settings.cdi_dir))
        self.specs = partial(edges.specs, self.cluster)
        self.snapshots = SnapshotReader(
            edges.pods.list,
            edges.checkpoint,
            self.specs,
            self.cluster.is_synced,
            edges.kubelet_identity,
            self._runs,
        )
        self.holders = Holders(self.ledger_store)

    def _runs(self, grant: Grant) -> bool:
        is_held = holds_region(self.files.region(grant.slice_id))
        return is_held or is_populated(self.edges.cgroups, grant.pod.uid)

    def _wire_inventory(self) -> None:
        settings, edges, directory = self.settings, self.edges, Path(self.settings.state_dir)
        self.mode = ModeFollower(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(directory, "node", NodeRecord, edges.boot_id), self.writer),
            settings,
            self.holders.of,
            self.schemes.divides,
        )
        mode = self.mode
        self.configuration = ConfigurationFollower(
            settings,
            self.node_store,
            lambda: mode.labels,
            self.holders.every,
            self.recorder,
            self.in_force,
            mode.remember,
        )
        self.cards = CardInventory(
            self.node_store,
            self.recorder,
            Memory(MemoryFile(directory, "cards", CardsRecord, edges.boot_id), self.writer),
            health_rules(
                settings.recovery_seconds,
                Path(settings.xid_table) if settings.xid_table else None,
                settings.disable_healthchecks,
                settings.enable_healthchecks,
            ),
            edges.boot_id,
            boot_seconds=edges.clock.boot_seconds,
            wall_seconds=edges.clock.wall_seconds,
            held_numbers=partial(self.snapshots.held_numbers, self.ledger_store, self.schemes),
            schemes=self.schemes,
            held_devices=self.holders.devices,
            system_memory=_system_memory(settings.unified_memory_reserve_mib),
        )
        self.nvml = edges.nvml(self.cards.observe)

    def _wire_admission(self) -> None:
        settings, in_force = self.settings, self.in_force
        self.library = LibraryInstaller(
            Path(settings.library_dir), self.recorder, self.writer, self.node_store
        )
        self.setup = ContainerSetup(
            self.files,
            self.library,
            self.schemes,
            lambda: in_force.current.access,
            settings.run_dir,
            settings.library_dir,
            driver=simulated_driver(settings),
            driver_root=lambda: settings.simulator_dir or in_force.current.driver_root,
            limit_by=settings.driver_limit_by,
        )
        cdi = CdiFiles(Path(settings.cdi_dir))
        self.driver_limits = DriverLimitsCheck(
            self.node_store,
            self.recorder,
            self.cards,
            self.setup.files,
            self.live,
            Path(settings.run_dir) / KEEPER_SOCKET,
            lambda: cdi.check() if settings.cdi_dir else "the agent has no --cdi-dir",
        )
        self.admission = Admission(
            self.ledger_store,
            self.setup,
            self.recorder,
            self.node_store.read,
            self.schemes,
            self.edges.clock.wall_seconds,
        )

    def _wire_reconcile(self) -> None:
        edges, ledger_store = self.edges, self.ledger_store
        self.gate, self.registrations = CallGate(), Registrations()
        self.fetch_spec = partial(edges.fetch_spec, self.cluster)
        sources = Sources(edges.pods.list, self.specs, self.fetch_spec, self.snapshots.witnesses)
        self.caller_lookup = CallerLookup(sources, self.live)
        self.reconciler = Reconciler(
            ledger_store=ledger_store,
            setup=self.setup,
            snapshots=self.snapshots,
            recorder=self.recorder,
            state=self.node_store.read,
            gate=self.gate,
            on_listed=self.caller_lookup.remember_too,
            holders=self.holders,
            registrations=self.registrations,
            wall_seconds=edges.clock.wall_seconds,
            schemes=self.schemes,
        )
        self.other_plugin_search = OtherPluginSearch(
            self.settings,
            self.mode,
            self.cluster,
            self.registrations,
            edges.plugins,
            edges.pods,
            edges.resources,
            edges.clock.boot_seconds,
        )

    def _wire_resize(self) -> None:
        self.resizer = Resizer(
            self.ledger_store,
            self.setup,
            self.recorder,
            self.node_store.read,
            self.schemes,
            self.gate,
            self.holders,
            self.cluster,
            self.driver_limits.resize,
            self.edges.clock.wall_seconds,
        )

    def _wire_calls(self) -> None:
        state = self.node_store.read
        behind = self.holders.is_behind
        check = HolderCheck(self.edges.pods.get, self.snapshots, behind)
        self.prestart = PreStart(
            self.ledger_store,
            self.setup,
            check,
            self.recorder,
            state,
            self.schemes,
            fetch_spec=self.fetch_spec,
            adopt=self.reconciler.run_pass,
        )
        both = (
            self.admission,
            self.setup,
            check,
            self.prestart,
            self.recorder,
            state,
            self.gate,
            self.schemes,
            self.metrics,
        )
        self.fraction_calls = FractionCalls(*both, self.caller_lookup)
        self.device_calls = DeviceCalls(*both, self.holders.unreconciled_allocations)

    def _wire_offers(self) -> None:
        """What claims and the device plugin offer of the cards; claims only while the allocation API is `dra`."""
        self.claim_endpoint = ClaimEndpoint(
            ClaimParts(
                admission=self.admission,
                setup=self.setup,
                cdi=CdiFiles(Path(self.settings.cdi_dir)),
                claims=self.cluster.resource_claims,
                node_store=self.node_store,
                schemes=self.schemes,
                recorder=self.recorder,
                gate=self.gate,
                cards=self.cards,
                specs=self.specs,
                fetch_spec=self.fetch_spec,
                mode=self.mode,
                has_passed=lambda: self.holders.has_passed,
            ),
            Path(self.settings.kubelet_dir),
        )
        self._extra: frozenset[str] = frozenset()
        self.device_lists = DeviceLists(self._endpoint, self.offered_pools)
        self.node_store.subscribe(self.claim_endpoint.changed)
        self.ledger_store.changed.subscribe(self.claim_endpoint.changed)
        self.reconciler.checkpoint_stale.subscribe(self.device_lists.send_again)
        self.registrations.changed.subscribe(self._endpoint_changed)

    def _endpoint(self, resource: str) -> Endpoint:
        plugins, note = self.edges.plugins, self.registrations.note
        divides = self.schemes.divides(resource)
        calls = self.fraction_calls if divides else self.device_calls
        return Endpoint(resource, calls, plugins, divides, note)

    def offered_pools(self, state: NodeState) -> tuple[Pool, ...]:
        """What the device plugin offers: nothing while claims give the cards, and to nobody what slices have grown into."""
        extra = self.live.ledger.extra_ids()
        pools = [pool.without(extra) for pool in self.schemes.pools(state)]
        is_by_claims = state.allocation_api is AllocationApi.DRA
        return tuple(replace(pool, groups=()) for pool in pools) if is_by_claims else tuple(pools)

    def _wire_readers(self) -> None:
        cards, in_force = self.cards, self.in_force
        reconciler, store = self.reconciler, self.ledger_store
        self.usage = UsageReader(self.files, self.live, cards.used_by_driver, cards.used_bytes)
        self.publisher = Publisher(
            self.metrics,
            self.cluster,
            self.node_store.read,
            self.schemes,
            self.live,
            self.usage,
            driver=lambda: cards.versions,
            drift=lambda: reconciler.drift,
            wall_seconds=self.edges.clock.wall_seconds,
            specs=self.specs,
        )
        self.features = FeatureLabels(
            lambda: in_force.current.features,
            self.schemes.nvidia.feature_labels,
            lambda: cards.every_card,
            lambda: cards.versions,
            self.node_store.read,
            self.cluster,
            self.recorder,
        )
        self.node_store.subscribe(self.publisher.changed)
        store.changed.subscribe(self.publisher.changed)
        reconciler.passed.subscribe(self.publisher.changed)
        self.signals.reach_changed.subscribe(self.publisher.changed)

    def _wire_lifecycle(self) -> None:
        settings, claims = self.settings, self.claim_endpoint
        self.layout = LayoutCheck(self.schemes, self.node_store, self.recorder)
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
        self.node_follower = NodeFollower(
            self.cluster, self.mode, self.withdrawal, self.node_store.read, settings
        )
        self.readiness = Readiness(
            self.node_store.read,
            self.cards,
            self.device_lists,
            self.cluster,
            self.schemes,
            claims,
            self.configuration,
            self.find_idle_sharing,
            settings.state_dir,
        )
        self.commands = AdminCommands(
            self.recorder, self.ledger_store, self.cards, self.node_store.read
        )
        self.signals.node_changed.subscribe(self.node_follower.node_changed)
        self.signals.node_changed.subscribe(self.configuration.run)
        self.signals.node_changed.subscribe(claims.changed)
        self.signals.taken_out.subscribe(self.cards.take_out)
        self.signals.pod_gone.subscribe(self.reconciler.pod_gone)
        self.signals.pod_gone.subscribe(self.resizer.pod_gone)
        self.signals.pod_synced.subscribe(self.resizer.pod_synced)
        self.signals.pod_synced.subscribe(self._pod_synced)
        self.configuration.changed.subscribe(self._configuration_changed)

    @property
    def is_waited_for(self) -> bool:
        """Whether a switch, a card or an uninstall waits until no pod holds a slice."""
        is_leaving = self.node_store.read().is_leaving
        return self.mode.is_waiting or is_leaving or bool(self.layout.waiting)

    async def metrics_page(self, accept: str) -> Page:
        """The metrics page, made at each scrape, so that it costs nothing without one."""
        await self.usage.refresh()
        self.publisher.show()
        return self.metrics.page(accept, is_ready=self.readiness.tell()[0])

    def publish_lists(self, _: None = None) -> None:
        """Those that differ from what the kubelet has are sent; what a card offers may follow from its holders."""
        self.device_lists.publish(self.node_store.read())

    def publish_resized(self, ledger: Ledger) -> None:
        """Units that slices have grown into, or gave back, change what others may have."""
        if (extra := ledger.extra_ids()) != self._extra:
            self._extra = extra
            self.publish_lists()

    def remove_startup_taint(self) -> None:
        """Once the node is ready and the kubelet counts what it offers."""
        key, node = self.settings.startup_taint, self.cluster.node
        if not key or node is None or not self.readiness.tell().is_ready:
            return
        offered = self.device_lists.registered_resources(self.node_store.read())
        if {*offered} <= node.allocatable.keys():
            self.cluster.remove_taint(key)

    def find_idle_sharing(self) -> str | None:
        """That NVIDIA's configuration shares devices of which the node's mode offers no replicas.

        Not where somebody has labelled the node: one file can be for nodes of several modes.
        """
        state = self.node_store.read()
        names = "" if self.mode.is_from_label else ", ".join(self.schemes.layout(state).unshared)
        where = f"{self.configuration.file} has no effect in mode {state.mode}"
        return f"sharing of {where}: {names}" if names else None

    def _configuration_changed(self, _: None) -> None:
        self.cards.follow_rules()
        self.layout.run()
        self.publish_lists()

    def _pod_synced(self, pod: PodRef) -> None:
        """The spec of a pod arrived: a grant that was made without it can be checked now."""
        by_name = replace(pod, uid="")
        if any(not grant.is_checked for grant in self.ledger_store.ledger.of_pod(by_name)):
            self.reconciler.request_pass()

    def _endpoint_changed(self, state: EndpointState) -> None:
        if state.phase is EndpointPhase.REGISTERED:
            self.metrics.count("registrations", state.resource)
            self.mode.note_registered(state.resource)


def _system_memory(reserve_mib: int) -> MiB:
    """This machine's memory, less what slices do not get."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MiB(max(0, (total >> 20) - reserve_mib))
