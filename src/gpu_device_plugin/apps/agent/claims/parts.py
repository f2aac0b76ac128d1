"""What the front of claims works with."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_device_plugin.apps.agent.admission.admission import Admission
from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.publish.cluster import ResourceClaims
from gpu_device_plugin.apps.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.store.cdi import CdiFiles
from gpu_device_plugin.store.state_file import Memory
from gpu_device_plugin.store.state_records import ClaimsRecord


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """What claims are prepared with.

    Attributes:
        admission: Makes and ends grants.
        cdi: Files that container runtimes read.
        claims: The API server.
        node_store: The node state.
        schemes: The rules of what is shared.
        recorder: Where events go.
        gate: Keeps the device plugin's calls away meanwhile.
        driver_version: Of the NVIDIA driver.
        memory: What was offered, over a restart.
        mode: Chooses the door, also where the API server takes no offers of ours.
        republish: Sends the device lists of the device plugin again, where they have changed.
    """

    admission: Admission
    cdi: CdiFiles
    claims: ResourceClaims
    node_store: NodeStore
    schemes: Schemes
    recorder: EventRecorder
    gate: CallGate
    driver_version: Callable[[], str]
    memory: Memory[ClaimsRecord]
    mode: ModeFollower
    republish: Callable[[NodeState], None]
