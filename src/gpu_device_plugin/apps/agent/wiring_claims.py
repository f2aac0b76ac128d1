"""The front of claims of one agent, connected to its parts; it does nothing before the door is `dra`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.apps.agent.claims.door import ClaimDoor
from gpu_device_plugin.apps.agent.claims.parts import ClaimParts
from gpu_device_plugin.domain.claims import pools_behind
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pools import Pool
from gpu_device_plugin.store.cdi import CdiFiles
from gpu_device_plugin.store.state_file import ClaimsRecord, Memory, MemoryFile

if TYPE_CHECKING:
    from gpu_device_plugin.apps.agent.wiring import Wiring


def claim_door(of: Wiring) -> ClaimDoor:
    """The front, which follows the node and its grants."""
    door = ClaimDoor(
        ClaimParts(
            admission=of.admission,
            setup=of.setup,
            cdi=CdiFiles(Path(of.settings.cdi_dir)),
            claims=of.cluster.resource_claims,
            node_store=of.node_store,
            schemes=of.schemes,
            recorder=of.recorder,
            gate=of.gate,
            driver_version=lambda: of.cards.driver_version,
            memory=Memory(
                MemoryFile(Path(of.settings.state_dir), "claims", ClaimsRecord, of.edges.boot_id),
                of.writer,
            ),
            mode=of.mode,
            republish=lambda state: _republish(of, state),
        ),
        Path(of.settings.kubelet_dir),
    )
    of.node_store.subscribe(door.changed)
    of.ledger_store.changed.subscribe(door.held_changed)
    return door


def _republish(of: Wiring, state: NodeState) -> None:
    of.device_lists.publish(state)
    of.publisher.changed()


def offered_pools(of: Wiring, state: NodeState) -> tuple[Pool, ...]:
    """What the device plugin offers beside the claims."""
    return pools_behind(
        of.schemes.pools(state), state.door, of.ledger_store.ledger, of.claim_door.withheld
    )
