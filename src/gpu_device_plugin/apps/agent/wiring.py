"""Puts the agent's parts together; the life of the process is in `run`.

No part knows this one: each gets what it needs, and nothing is put into a part afterwards.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpu_device_plugin.apps.agent.admission.admission import Admission
from gpu_device_plugin.apps.agent.claims.door import ClaimDoor
from gpu_device_plugin.apps.agent.claims.parts import ClaimParts
from gpu_device_plugin.apps.agent.device_plugin.caller_lookup import Identifier, Sources
from gpu_device_plugin.apps.agent.device_plugin.holder_check import HolderCheck
from gpu_device_plugin.apps.agent.device_plugin.prestart import PreStart
from gpu_device_plugin.apps.agent.device_plugin.recorded import RecordedCalls
from gpu_device_plugin.apps.agent.device_plugin.service import Service
from gpu_device_plugin.apps.agent.device_plugin.session import CallParts, Session
from gpu_device_plugin.apps.agent.edges import Edges
from gpu_device_plugin.apps.agent.lifecycle import node_checks as checking
from gpu_device_plugin.apps.agent.lifecycle.admin_commands import AdminCommands
from gpu_device_plugin.apps.agent.lifecycle.exposure import Exposure
from gpu_device_plugin.apps.agent.lifecycle.node_follower import NodeFollower
from gpu_device_plugin.apps.agent.lifecycle.other_plugin import SocketCheck
from gpu_device_plugin.apps.agent.lifecycle.readiness import Readiness
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import Withdrawal
from gpu_device_plugin.apps.agent.publish.device_lists import DeviceLists
from gpu_device_plugin.apps.agent.publish.publisher import Facts, Publisher
from gpu_device_plugin.apps.agent.publish.usage import UsageReader
from gpu_device_plugin.apps.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.apps.agent.reconcile.reconciler import Parts, Reconciler
from gpu_device_plugin.apps.agent.state_wiring import StateWiring
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.claims import pools_behind
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.pools import Pool
from gpu_device_plugin.domain.reports import DriverChanged
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.kubelet.resource_server import Endpoint, EndpointState, Phase
from gpu_device_plugin.store.cdi import CdiFiles
from gpu_device_plugin.store.region import read_region
from gpu_device_plugin.store.remains import Remains
from gpu_device_plugin.store.selinux import Kernel, SecurityLabels


class Wiring(StateWiring):
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
        super().__init__(
            settings, edges, schemes, on_driver_changed=on_driver_changed, kernel=kernel
        )
        self._wire_admission()
        self._wire_kubelet()
        self._wire_claims()
        self._wire_readers()
        self._wire_lifecycle()

    def _wire_admission(self) -> None:
        edges, cluster, state = self.edges, self.cluster, self.node_store.read
        self.gate = gate = CallGate()
        self.identifier = Identifier(
            Sources(edges.pods.list, edges.pods.get, cluster.specs, cluster.fetch_spec),
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
                specs=cluster.specs,
                is_synced=cluster.is_synced,
                kubelet_identity=edges.kubelet_identity,
                gate=gate,
                on_settled=self.identifier.remember_too,
                is_waited_for=lambda: self.mode.is_waiting or state().is_leaving,
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
            self.calls, self.snapshots, self.reconciler.request_pass, self.reconciler.note_answer
        )
        service = Service(self.session, self.recorded, self.prestart, self.schemes, self.metrics)
        self.device_lists = DeviceLists(
            lambda name: Endpoint(name, service, edges.plugins, self._endpoint_changed),
            self._pools,
        )
        self.reconciler.checkpoint_stale.subscribe(lambda _: self.device_lists.send_again())

    def _wire_claims(self) -> None:
        """The front of claims; it does nothing before the node's door is `dra`."""
        self.claim_door = ClaimDoor(
            ClaimParts(
                admission=self.admission,
                cdi=CdiFiles(Path(self.settings.cdi_dir)),
                cluster=self.cluster,
                node_store=self.node_store,
                schemes=self.schemes,
                recorder=self.recorder,
                gate=self.gate,
                driver_version=lambda: self.cards.driver_version,
                republish=self.device_lists.publish,
            ),
            Path(self.settings.kubelet_dir),
        )
        self.node_store.subscribe(self.claim_door.changed)
        self.ledger_store.changed.subscribe(self.claim_door.held_changed)

    def _pools(self, state: NodeState) -> tuple[Pool, ...]:
        return pools_behind(self.schemes.pools(state), state.door, self.ledger_store.ledger)

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
        )
        self.publisher = Publisher(
            self.metrics, self.cluster, facts, self.node_store.read, self.schemes
        )
        self.node_store.subscribe(self.publisher.changed)
        self.ledger_store.changed.subscribe(self.publisher.changed)
        self.reconciler.passed.subscribe(self.publisher.changed)
        self.signals.reach_changed.subscribe(self.publisher.changed)

    def _wire_lifecycle(self) -> None:
        settings = self.settings
        library = checking.LibraryCheck(self.library, self.node_store, self.recorder)
        self.withdrawal = Withdrawal(
            self.node_store,
            self.ledger_store,
            self.cluster,
            self.recorder,
            self.reconciler,
            library,
            Remains(Path(settings.state_dir), Path(settings.run_dir)),
            self.schemes.resources,
        )
        self.node_checks = checking.NodeChecks(self._checks(), self._disk_checks(library))
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
        )
        self.commands = AdminCommands(
            self.recorder, self.ledger_store, self.cards, self.node_store.read
        )
        self.signals.node_changed.subscribe(follower.node_changed)
        self.signals.pod_gone.subscribe(self.reconciler.pod_gone)
        self.signals.pod_synced.subscribe(self._pod_synced)

    def _disk_checks(self, library: checking.LibraryCheck) -> list[checking.DiskBoundCheck]:
        settings, recorder, node_store = self.settings, self.recorder, self.node_store
        places = [settings.run_dir, settings.library_dir, settings.state_dir]
        labels = SecurityLabels([Path(place) for place in places], self._kernel)
        return [
            SocketCheck(self.edges.plugins, self.mode, settings),
            checking.StateDirectoryCheck(
                partial(self.writer.run, self.lock.keep),
                settings.state_dir,
                recorder,
                self.ledger_store,
                (self.cards, self.mode),
            ),
            library,
            checking.SecurityLabelCheck(
                partial(self.writer.run, labels.ensure), node_store, recorder
            ),
        ]

    def _checks(self) -> list[checking.Check]:
        settings, recorder, node_store = self.settings, self.recorder, self.node_store
        checks: list[checking.Check] = [
            checking.CallCheck(self.withdrawal.follow),
            checking.DiskCheck(self.ledger_store, node_store, recorder),
            checking.DeviceListCheck(self.schemes, node_store, recorder),
            self.configuration,
            checking.LayoutCheck(self.schemes, node_store, recorder),
            checking.KubeletCheck(self.cluster, recorder),
            checking.CallCheck(self.mode.settle_if_waiting),
            checking.CallCheck(self.reconciler.cut_back_if_filling),
            checking.CallCheck(lambda: self.metrics.show_nvml_restarts(self.nvml.restarts)),
        ]
        if not settings.simulator_dir:
            checks.append(checking.ExposureCheck(Exposure(os.environ), self.cluster, recorder))
        return checks

    async def metrics_page(self, accept: str) -> tuple[bytes, str]:
        """The metrics page, made at each scrape, so that it costs nothing without one."""
        await self.usage.refresh()
        self.publisher.show()
        return self.metrics.page(accept, is_ready=self.readiness.tell()[0])

    def _pod_synced(self, pod: PodRef) -> None:
        """The spec of a pod arrived: a grant that was made without it can be checked now."""
        by_name = replace(pod, uid="")
        if any(not grant.is_checked for grant in self.ledger_store.ledger.of_pod(by_name)):
            self.reconciler.request_pass()

    def _endpoint_changed(self, state: EndpointState) -> None:
        if state.phase is Phase.REGISTERED:
            self.metrics.count_registration(state.resource)
            self.mode.note_registered(state.resource)
