"""From a grant to what lies on the node and what the container receives."""

from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.apps.agent.library import LibraryKeeper
from gpu_device_plugin.apps.agent.state import NodeState
from gpu_device_plugin.domain.edits import ContainerEdits, DeviceAccess, Paths, container_edits
from gpu_device_plugin.domain.ledger import Grant
from gpu_device_plugin.domain.slices import CardLimit, limits_text, slice_bytes
from gpu_device_plugin.domain.units import MemoryUnit
from gpu_device_plugin.errors import NodeError
from gpu_device_plugin.store.slices import SliceFiles, SliceSpec

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Answers:
    """Makes the files of slices and the answers to Allocate.

    Attributes:
        files: The files on the node.
        library: The isolation library's versions on the node.
        access: How cards reach containers.
        run_dir: Where the slices' files lie.
        library_dir: Where the library's versions lie.
        device_dir: `/dev`.
    """

    files: SliceFiles
    library: LibraryKeeper
    access: DeviceAccess
    run_dir: str
    library_dir: str
    device_dir: Path = Path("/dev")

    def make_files(self, grant: Grant, state: NodeState) -> bool:
        """Make what isolation mounts for a slice; whether anything was missing.

        Raises:
            NodeError: Its version of the library is gone for good.
            StorageError: The file system refused.
        """
        if not grant.is_capped:
            return False
        was_missing = self.library.provide(grant)
        return self.files.make(slice_spec(grant, state)) or was_missing

    def edits(self, grant: Grant, state: NodeState) -> ContainerEdits:
        """The whole answer for a container, as it rides on gpu-mem."""
        cards = tuple(card for card in map(state.card, grant.cards) if card is not None)
        if len(cards) != len(grant.cards):
            raise NodeError(
                f"node {state.node}: a card of slice {grant.slice_id} has gone "
                f"({', '.join(grant.cards)}); create the pod anew",
                reason="CardGone",
            )
        paths = Paths(
            run_dir=self.run_dir,
            library_dir=self.library_dir,
            library_version=grant.library_version,
            has_selftest=self.library.has_selftest(grant.library_version),
            control_devices=self._control_devices(),
        )
        return container_edits(grant, cards, state.terms, self.access, paths)

    def _control_devices(self) -> tuple[str, ...]:
        names = [name for name in _CONTROL_NODES if (self.device_dir / name).exists()]
        return tuple(f"/dev/{name}" for name in names)


def slice_spec(grant: Grant, state: NodeState) -> SliceSpec:
    """What must lie on the node for `grant`."""
    limits = []
    unit = next(unit for unit in MemoryUnit if unit.mib == grant.unit_mib)
    for uuid in grant.cards:
        card = state.card(uuid)
        if card is not None:
            share = slice_bytes(card, grant.units_per_card, unit) if grant.mem_units else 0
            limits.append(CardLimit(uuid, share, grant.core_percent or None))
    return SliceSpec(grant.slice_id, limits_text(grant.slice_id, limits), grant.cards)
