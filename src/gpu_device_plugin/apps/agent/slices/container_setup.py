"""From a grant to the slice's files and to what the container receives."""

from dataclasses import dataclass, replace
from pathlib import Path

from gpu_device_plugin.apps.agent.slices.library import LibraryInstaller
from gpu_device_plugin.domain.edits import (
    ContainerEdits,
    DeviceAccess,
    Mount,
    Paths,
    container_edits,
)
from gpu_device_plugin.domain.ledger import Grant
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.slices import CardLimit, limits_text, slice_bytes
from gpu_device_plugin.domain.units import MemoryUnit
from gpu_device_plugin.errors import NodeError
from gpu_device_plugin.store.slices import SliceFiles, SliceSpec

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """Makes the files of slices and the answers to Allocate.

    Attributes:
        files: The files on the node.
        library: The isolation library's versions on the node.
        access: How cards reach containers.
        run_dir: Directory of the slices' files.
        library_dir: Directory of the library's versions.
        device_dir: `/dev`.
        driver: Mounts of the simulated driver, if there is one.
    """

    files: SliceFiles
    library: LibraryInstaller
    access: DeviceAccess
    run_dir: str
    library_dir: str
    device_dir: Path = Path("/dev")
    driver: tuple[Mount, ...] = ()

    async def make_files(self, grant: Grant, *, is_start: bool = False) -> bool:
        """Make the files that isolation mounts for a slice; returns whether any was missing.

        The slice's own files lie in memory (a tmpfs), so they are made here and now.

        Args:
            grant: Whose slice.
            is_start: A container is about to start with it; see `LibraryInstaller.provide`.

        Raises:
            NodeError: Its version of the library is missing and cannot be installed.
            StorageError: The file system refused.
        """
        if not grant.is_capped:
            return False
        was_missing = await self.library.provide(grant, is_start=is_start)
        return self.files.make(slice_spec(grant)) or was_missing

    def edits(self, grant: Grant, state: NodeState) -> ContainerEdits:
        """The whole answer for a container, which is given with gpu-mem."""
        cards = tuple(card for card in map(state.card, grant.cards) if card is not None)
        if len(cards) != len(grant.cards):
            raise NodeError(
                f"a card of slice {grant.slice_id} has gone ({', '.join(grant.cards)}); create the "
                f"pod again",
                reason="CardGone",
            )
        paths = Paths(
            run_dir=self.run_dir,
            library_dir=self.library_dir,
            library_version=grant.library_version,
            has_selftest=self.library.has_selftest(grant.library_version),
            control_devices=self._control_devices(),
            driver=self.driver,
        )
        return container_edits(grant, cards, state.terms, self.access, paths)

    def _control_devices(self) -> tuple[str, ...]:
        if self.access is not DeviceAccess.DEVICE_SPECS:
            return ()
        names = [name for name in _CONTROL_NODES if (self.device_dir / name).exists()]
        return tuple(f"/dev/{name}" for name in names)


def sized(grant: Grant, state: NodeState) -> Grant:
    """The grant with its memory on each card in bytes, as the cards are now.

    A card that is away leaves the sizes unknown; one that shows less than was granted (for
    instance to a grant made again from the kubelet's checkpoint) gives what it has.
    """
    unit = MemoryUnit.of_mib(grant.unit_mib)
    cards = [card for card in map(state.card, grant.cards) if card is not None]
    if not grant.units_per_card or len(cards) != len(grant.cards):
        return replace(grant, card_bytes=())
    sizes = (
        slice_bytes(card, min(grant.units_per_card, card.capacity(unit)), unit)
        if card.capacity(unit)
        else 0
        for card in cards
    )
    return replace(grant, card_bytes=tuple(sizes))


def slice_spec(grant: Grant) -> SliceSpec:
    """The files of a grant; a card whose size is not known contributes none."""
    is_known = len(grant.card_bytes) == len(grant.cards)
    sizes = grant.card_bytes if is_known else (0,) * len(grant.cards)
    core = grant.core_percent or None
    limits = [CardLimit(uuid, size, core) for uuid, size in zip(grant.cards, sizes, strict=True)]
    text = limits_text(grant.slice_id, limits)
    return SliceSpec(grant.slice_id, text, grant.cards, is_certain=is_known)
