"""The checks of one agent, over its parts.

Each reason has its cure in docs/troubleshooting.md, to which `kubectl gpu doctor` points.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.agent.node_checks.node_checks import (
    EXPOSED,
    Check,
    Exposure,
    NodeChecks,
    too_old_text,
)
from gpu_device_plugin.agent.node_checks.withdrawal import CURE
from gpu_device_plugin.disk.device_nodes import imex_channels
from gpu_device_plugin.disk.mps_lock import kept_by_daemon, waits_for
from gpu_device_plugin.disk.selinux import SecurityLabels
from gpu_device_plugin.disk.slice_files import has_own_file_system
from gpu_device_plugin.errors import ConfigError, StorageError

if TYPE_CHECKING:  # the wiring makes the parts that the checks here look at
    from gpu_device_plugin.agent.wiring import Wiring

_SHARED = (
    "the run directory has no file system of its own: a container that enlarges its files can fill "
    "that of the node for a moment, as far as its own memory limit goes"
)


def node_checks(of: Wiring) -> NodeChecks:
    """Every check, in order."""
    if not has_own_file_system(Path(of.settings.run_dir)):
        of.recorder.node_note("RunDirectoryShared", _SHARED, is_warning=False)
    return NodeChecks(of.node_store, of.recorder, _checks(of), _disk_checks(of))


def _checks(of: Wiring) -> Sequence[Check[str | None]]:
    cluster, is_simulated = of.cluster, bool(of.settings.simulator_dir)
    exposure = Exposure({} if is_simulated else os.environ)
    return [
        Check(of.withdrawal.follow),
        Check(partial(_disk_fault, of), "StateNotWritable"),
        Check(partial(_list_fault, of), "DeviceListTooLong"),
        Check(of.configuration.run),
        Check(partial(_follow_mps, of)),
        Check(partial(_look_for_imex, of)),
        Check(of.cards.follow_mig),
        Check(of.layout.run),
        Check(of.driver_limits.follow, "DriverLimitsMissing"),
        Check(
            lambda: too_old_text(cluster.node.kubelet_version) if cluster.node else None,
            "KubeletTooOld",
            is_fault=False,
        ),
        Check(of.mode.republish_if_waiting),
        Check(partial(_cut_back, of)),
        Check(lambda: of.metrics.show_nvml_restarts(of.nvml.restarts)),
        Check(
            lambda: EXPOSED if exposure.is_proven(cluster.runtime_class) else None,
            "CardsExposed",
            is_fault=False,
        ),
    ]


def _disk_checks(of: Wiring) -> Sequence[Check[Awaitable[str | None]]]:
    settings = of.settings
    places = (settings.run_dir, settings.library_dir, settings.state_dir)
    labels = SecurityLabels([Path(place) for place in places], of.kernel)
    return [
        Check(partial(_dial_other_plugins, of)),
        Check(partial(_keep_state_directory, of)),
        Check(of.library.run),
        Check(of.features.run),
        Check(of.driver_limits.repair),
        Check(partial(_label, of, labels), "LabelsMissing"),
    ]


def _disk_fault(of: Wiring) -> str | None:
    """A disk that refused a grant is tried again, until a write succeeds."""
    if of.ledger_store.disk_fault is not None:
        of.ledger_store.rewrite()
    return of.ledger_store.disk_fault


def _list_fault(of: Wiring) -> str | None:
    """The kubelet must be able to receive the device lists of this node."""
    try:
        for scheme, view in of.schemes.views(of.schemes.deciders, of.node_store.read()):
            scheme.check_size(view)
    except ConfigError as error:
        return str(error)
    return None


def _follow_mps(of: Wiring) -> None:
    """Publish what is served now; of a daemon that was killed, which cards it has not given back.

    The daemon's lock lies in memory (below /run). A directory that is configured no more counts
    until another one is, and its cards are back.
    """
    root, wanted = of.node_store.read().mps_root, of.in_force.current.mps_root
    kept = kept_by_daemon(root)
    of.node_store.update(mps_waits=waits_for(Path(wanted)) if wanted else "")
    if kept or wanted in {"", root}:
        of.node_store.update(mps_served=kept)
    else:
        of.node_store.update(mps_root=wanted, mps_served=kept_by_daemon(wanted))
        of.mode.remember()


def _cut_back(of: Wiring) -> None:
    if not of.setup.files.sizes.is_watched:
        of.setup.files.sizes.cut_back()


def _look_for_imex(of: Wiring) -> None:
    of.node_store.update(imex_channels=imex_channels(of.in_force.current.imex_channels))


async def _dial_other_plugins(of: Wiring) -> None:
    """One that answers on a socket of the names of NVIDIA's plugin gives away the same cards.

    It is dialled once before anything is registered.
    """
    if not of.settings.allow_other_plugin:
        names = ", ".join(await of.edges.plugins.other_plugins())
        text = f"another device plugin answers on {names} in {of.edges.plugins.path}; {CURE}"
        of.mode.note_answering(text if names else "")


async def _keep_state_directory(of: Wiring) -> None:
    """If the lock file is gone, so are the others: write them again. An error ends the process.

    In a pod the directory is a mount. If it is removed on the node, no file can be written there
    until the container is created again.
    """
    if await of.writer.run(of.lock.keep):
        text = (
            f"{of.settings.state_dir}: was emptied while the agent ran; the agent writes it again"
        )
        of.recorder.file_set_aside(text)
        of.ledger_store.rewrite()
        of.cards.republish()
        of.mode.republish()


async def _label(of: Wiring, labels: SecurityLabels) -> str | None:
    """Where slices are enforced, containers must be allowed to read our directories."""
    try:
        if of.node_store.read().isolates:
            await of.writer.run(labels.ensure)
    except StorageError as error:
        return str(error)
    return None
