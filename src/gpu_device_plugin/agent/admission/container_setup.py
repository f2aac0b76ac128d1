"""From a grant to the slice's files and to what the container receives."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_device_plugin.agent.admission.library_installer import LibraryInstaller
from gpu_device_plugin.disk.device_nodes import read_mig_minors
from gpu_device_plugin.disk.slice_files import SliceFiles, SliceSpec
from gpu_device_plugin.domain.fractions.fraction import limit_of
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.cdi_spec import CDI_KIND, HOOK, LIMIT_VARIABLE, limit_device
from gpu_device_plugin.domain.grants.container_edits import (
    CardLimit,
    ContainerEdits,
    DeviceAccess,
    Mount,
    Paths,
    limits_text,
)
from gpu_device_plugin.domain.grants.grant import Grant, Resized
from gpu_device_plugin.domain.node.memory_enforcer import LimitBy, MemoryEnforcer
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import NodeError

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """Makes the files of slices and the answers to Allocate."""

    files: SliceFiles
    library: LibraryInstaller
    schemes: Schemes
    access: Callable[[], DeviceAccess]
    run_dir: str
    library_dir: str
    driver: tuple[Mount, ...] = ()  # mounts of the simulated driver, if there is one
    driver_root: Callable[[], str] = lambda: "/"
    limit_by: LimitBy = LimitBy.HOOK

    async def make_files(self, grant: Grant, *, is_start: bool = False) -> bool:
        """Make the files that isolation mounts for a slice; returns whether any was missing.

        The slice's own files lie in memory (a tmpfs), so they are made here and now. `is_start`: a
        container is about to start. NodeError: its version of the library cannot be installed.
        """
        if not grant.is_isolated:
            return False
        was_missing = await self.library.provide(grant, is_start=is_start)
        spec = slice_spec(grant)
        if grant.memory_enforcer is MemoryEnforcer.DRIVER:
            spec = replace(spec, cdi=json.dumps(self._limit_device(grant)))
        return self.files.make(spec) or was_missing

    def _limit_device(self, grant: Grant) -> dict[str, object]:
        """A slice that has one already keeps what limits it, whatever the setting says now."""
        size = min(share.memory_bytes or 0 for share in grant.shares)
        known = self.files.cdi_text(grant.slice_id)
        is_toolkits = LIMIT_VARIABLE in known and HOOK not in known
        by = LimitBy.TOOLKIT if is_toolkits else LimitBy.HOOK if HOOK in known else self.limit_by
        return limit_device(grant.slice_id, size, self._paths(grant.library_version), by)

    def above_told(self, grant: Grant) -> Grant:
        """The grant with a newer revision than its limits file, where that is newer than the grant.

        A write was lost, and processes that have limits with a revision follow only a newer one.
        """
        told, known = self.files.revision(grant.slice_id), grant.resized
        if not grant.is_isolated or told <= (known.revision if known else 0):
            return grant
        known = known or Resized(limit_of(grant))
        return replace(grant, resized=known._replace(revision=told + 1))

    def with_enforcer_found(self, grant: Grant) -> Grant:
        """A grant that is made again, whose containers run: by whether the slice has a CDI file."""
        grant = self.above_told(grant)
        is_driver = grant.is_isolated and self.files.cdi_text(grant.slice_id) != ""
        enforcer = MemoryEnforcer.DRIVER if is_driver else MemoryEnforcer.LIBRARY
        return replace(grant, memory_enforcer=enforcer)

    def edits(self, grant: Grant, state: NodeState) -> ContainerEdits:
        """What the holder of fractions receives."""
        cards = tuple(card for card in map(state.card, grant.devices) if card is not None)
        if len(cards) != len(grant.devices):
            raise NodeError(
                f"a card of slice {grant.slice_id} has gone ({', '.join(grant.devices)}); create the "
                f"pod again",
                reason="CardGone",
            )
        paths = self._paths(grant.library_version)
        edits = self.schemes.fractions.edits(grant, cards, state, self.access(), paths)
        if grant.memory_enforcer is MemoryEnforcer.LIBRARY:
            return edits
        return replace(edits, cdi_names=(*edits.cdi_names, f"{CDI_KIND}={grant.slice_id}"))

    def edits_of_chosen(self, call: Call, state: NodeState) -> ContainerEdits:
        """What a container receives for whole devices."""
        paths = replace(
            self._paths(""), control_devices=self._existing_nodes(), mig_minors=read_mig_minors()
        )
        return self.schemes.nvidia.edits(call, state, paths)

    def _paths(self, version: str) -> Paths:
        return Paths(
            run_dir=self.run_dir,
            library_dir=self.library_dir,
            library_version=version,
            has_selftest=bool(version) and self.library.has_selftest(version),
            control_devices=self._existing_nodes() if self.access().passes_nodes else (),
            # A CDI specification brings the simulated driver too.
            driver_root=self.driver_root(),
            driver=() if self.access().is_cdi_only else self.driver,
        )

    def _existing_nodes(self) -> tuple[str, ...]:
        names = [name for name in _CONTROL_NODES if Path("/dev", name).exists()]
        return tuple(f"/dev/{name}" for name in names)


def slice_spec(grant: Grant) -> SliceSpec:
    """The files of a grant; a card whose size is not known contributes none."""
    limits = [
        CardLimit(s.device, s.memory_bytes or 0, grant.limit_percent or None) for s in grant.shares
    ]
    revision = grant.resized.revision if grant.resized else 0
    policy, enforcer = grant.compute_policy, grant.memory_enforcer
    text = limits_text(grant.slice_id, limits, policy, enforcer, revision)
    return SliceSpec(
        grant.slice_id, text, grant.devices, is_certain=grant.is_sized, revision=revision
    )
