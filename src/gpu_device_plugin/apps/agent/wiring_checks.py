"""The checks of one agent and the rules of its cards' health: the second half of `wiring`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.apps.agent.lifecycle import node_checks as checking
from gpu_device_plugin.apps.agent.lifecycle.exposure import Exposure
from gpu_device_plugin.apps.agent.lifecycle.mps_check import MpsCheck
from gpu_device_plugin.apps.agent.lifecycle.other_plugin import SocketCheck
from gpu_device_plugin.config.agent import Settings
from gpu_device_plugin.domain.health_values import HealthRules
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.store.imex import imex_channels
from gpu_device_plugin.store.mounts import has_own_file_system
from gpu_device_plugin.store.selinux import SecurityLabels

if TYPE_CHECKING:
    from gpu_device_plugin.apps.agent.wiring import Wiring

_SHARED = (
    "the run directory has no file system of its own: a container that enlarges its files can fill "
    "that of the node for a moment, as far as its own memory limit goes"
)


def node_checks(of: Wiring, library: checking.LibraryCheck) -> checking.NodeChecks:
    """Every check, in order."""
    return checking.NodeChecks(_checks(of), _disk_checks(of, library))


def _disk_checks(of: Wiring, library: checking.LibraryCheck) -> list[checking.DiskBoundCheck]:
    settings, recorder, node_store = of.settings, of.recorder, of.node_store
    places = [settings.run_dir, settings.library_dir, settings.state_dir]
    labels = SecurityLabels([Path(place) for place in places], of.kernel)
    return [
        SocketCheck(of.edges.plugins, of.mode, settings),
        checking.StateDirectoryCheck(
            partial(of.writer.run, of.lock.keep),
            settings.state_dir,
            recorder,
            of.ledger_store,
            (of.cards, of.mode),
        ),
        library,
        of.features,
        checking.SecurityLabelCheck(partial(of.writer.run, labels.ensure), node_store, recorder),
    ]


def _checks(of: Wiring) -> list[checking.Check]:
    settings, recorder, node_store = of.settings, of.recorder, of.node_store
    checks: list[checking.Check] = [
        checking.CallCheck(of.withdrawal.follow),
        checking.DiskCheck(of.ledger_store, node_store, recorder),
        checking.DeviceListCheck(of.schemes, node_store, recorder),
        of.configuration,
        MpsCheck(lambda: of.configuration.current, node_store, of.mode.remember),
        checking.CallCheck(partial(_look_for_imex, of)),
        checking.CallCheck(of.cards.follow_mig),
        of.layout,
        checking.KubeletCheck(of.cluster, recorder),
        checking.CallCheck(of.mode.settle_if_waiting),
        checking.CallCheck(of.setup.files.sizes.cut_back),
        checking.CallCheck(lambda: of.metrics.show_nvml_restarts(of.nvml.restarts)),
    ]
    if not has_own_file_system(Path(settings.run_dir)):
        recorder.node_note("RunDirectoryShared", _SHARED, is_warning=False)
    if not settings.simulator_dir:
        checks.append(checking.ExposureCheck(Exposure(os.environ), of.cluster, recorder))
    return checks


def _look_for_imex(of: Wiring) -> None:
    found = imex_channels(of.configuration.current.imex_channels)
    of.node_store.update(imex_channels=found)


def rules_of_health(settings: Settings) -> HealthRules:
    """The table of XIDs, and what the settings make of it."""
    return health_rules(
        settings.recovery_seconds,
        Path(settings.xid_table) if settings.xid_table else None,
        settings.disable_healthchecks,
        settings.enable_healthchecks,
    )
