"""Which checks a node runs: for each the reason, what finds it, and its cure.

Each reason stands in docs/operations/events.md too, whose words `kubectl gpu explain` has. Not here are faults that the part which
offers cards must set or end in that same step, because a check may come 5 s later: OtherPlugin (mode_follower), ConfigurationMissing
(configuration_follower), LayoutNotServed (LayoutCheck), IsolationLibraryMissing (library_installer), CdiDirNotWritable (claim_service).
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from gpu_device_plugin.agent.node_checks.exposure import Exposure
from gpu_device_plugin.agent.node_checks.lost_devices import LOST_DEVICES, LostDevices
from gpu_device_plugin.agent.node_checks.node_checks import (
    Check,
    NodeChecks,
    Severity,
    find_driver_upgrade,
    find_long_list,
    find_old_kubelet,
    find_shared_run_dir,
    find_unreadable,
)
from gpu_device_plugin.agent.node_checks.strangers import Strangers
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.disk.selinux import SecurityLabels
from gpu_device_plugin.domain.node.modes import is_served

_OTHER_RUNTIME = (
    "make another runtime the default and name NVIDIA's in runtimeClassName, or set "
    "accept-nvidia-visible-devices-envvar-when-unprivileged = false in its config.toml with "
    "deviceListStrategy volume-mounts"
)


def node_checks(wiring: Wiring) -> NodeChecks:
    """Every check of this agent, and its periodic work."""
    return NodeChecks(
        wiring.recorder, _work(wiring), _checks(wiring), _disk_work(wiring), _disk_checks(wiring)
    )


def _checks(wiring: Wiring) -> Sequence[Check[str | None]]:
    """Reason, what finds it, its cure, in the order of the checks; docs/operations/events.md lists them."""
    settings, cluster = wiring.settings, wiring.cluster
    exposure = Exposure({} if settings.simulator_dir else os.environ)
    return (
        Check(
            "RunDirectoryShared",
            partial(find_shared_run_dir, Path(settings.run_dir)),
            "mount a file system of its own there for a hard bound",
            Severity.INFORMATION,
        ),
        Check("StateNotWritable", wiring.ledger_store.find_disk_fault, "free space there"),
        Check(
            "DeviceListTooLong",
            partial(find_long_list, wiring.schemes, wiring.node_store),
            "set that unit",
        ),
        Check(
            "DriverLimitsMissing",
            wiring.driver_limits.follow,
            "repair what this text names, or choose another memory enforcer",
        ),
        Check(
            "KubeletTooOld",
            lambda: find_old_kubelet(cluster.node.kubelet_version if cluster.node else ""),
            "upgrade the node",
            Severity.WARNING,
        ),
        _cdi_check(wiring),
        *_without_effect(wiring),
        _upgrade_check(wiring),
        Check(
            "CardsExposed",
            lambda: exposure.find(cluster.runtime_class),
            _OTHER_RUNTIME,
            Severity.WARNING,
        ),
        _strangers_check(wiring),
        _devices_check(Path(settings.run_dir)),
    )


def _cdi_check(wiring: Wiring) -> Check[str | None]:
    cure = "with cdi.generator delete the agent's pod; else write it with `nvidia-ctk cdi generate`"
    return Check("CardsNotInCdi", wiring.configuration.find_cdi_misfit, cure, Severity.WARNING)


def _without_effect(wiring: Wiring) -> Sequence[Check[str | None]]:
    """Valid settings that have no effect here: the node offers less than they ask for."""
    sharing = (
        "label the node ack.node.gpu.schedule=default (chart: mode=default), or leave sharing out"
    )
    mode = "label the node with another mode"
    find_mode = partial(_find_idle_mode, wiring.node_store)
    return (
        Check("SharingUnused", wiring.find_idle_sharing, sharing, Severity.WARNING),
        Check("ModeNotServedYet", find_mode, mode, Severity.WARNING),
    )


def _find_idle_mode(node_store: NodeStore) -> str | None:
    mode = node_store.read().mode
    if mode is None or is_served(mode):
        return None
    return f"mode {mode} is not served by this release: the node offers nothing"


def _upgrade_check(wiring: Wiring) -> Check[str | None]:
    cluster = wiring.cluster
    cure = "none, unless the state stays: then pods hold the old driver, kubectl drain NODE --ignore-daemonsets"
    return Check(
        "DriverUpgrade",
        lambda: find_driver_upgrade(cluster.node.labels if cluster.node else {}),
        cure,
        Severity.INFORMATION,
    )


def _strangers_check(wiring: Wiring) -> Check[str | None]:
    strangers = Strangers(wiring.node_store, wiring.usage, wiring.live)
    cure = "end these programs; `kubectl gpu explain MemoryTaken` says how they come by a card"
    return Check("MemoryTaken", strangers.find, cure, Severity.WARNING)


def _devices_check(run_dir: Path) -> Check[str | None]:
    lost = LostDevices(run_dir / LOST_DEVICES)
    cure = "delete the agent's pod, and the pods whose programs fail; `kubectl gpu explain DevicesDenied` says how to prevent it"
    return Check("DevicesDenied", lost.find, cure, Severity.WARNING, lost.was_lost)


def _work(wiring: Wiring) -> Sequence[Callable[[], None]]:
    """What is done before the checks; what it finds it reports by itself."""
    return (
        wiring.withdrawal.follow,
        wiring.configuration.run,
        wiring.configuration.follow_mps,
        wiring.configuration.follow_imex,
        wiring.cards.follow_rules,
        wiring.layout.run,
        wiring.mode.republish_if_waiting,
        wiring.remove_startup_taint,
        wiring.setup.files.sizes.cut_back_unwatched,
        lambda: wiring.metrics.show_nvml_restarts(wiring.nvml.restarts),
    )


def _disk_checks(wiring: Wiring) -> Sequence[Check[Awaitable[str | None]]]:
    """Those that may wait for a disk or a socket."""
    settings = wiring.settings
    places = (settings.run_dir, settings.library_dir, settings.state_dir)
    labels = SecurityLabels([Path(place) for place in places], wiring.kernel)
    # The cure is a command with paths of this node, in the finding.
    return (
        Check("LabelsMissing", partial(find_unreadable, labels, wiring.writer, wiring.node_store)),
    )


def _disk_work(wiring: Wiring) -> Sequence[Callable[[], Awaitable[None]]]:
    """Work that may wait for a disk or a socket, before those checks."""
    return (
        wiring.other_plugin_search.run,
        partial(_keep_state_directory, wiring),
        wiring.library.run,
        wiring.features.run,
        wiring.driver_limits.repair,
        wiring.configuration.read_cdi,
    )


async def _keep_state_directory(wiring: Wiring) -> None:
    """If the lock file is gone, so are the others: write them again. An error ends the process.

    In a pod the directory is a mount. If it is removed on the node, no file can be written there
    until the container is created again.
    """
    if await wiring.writer.run(wiring.lock.keep):
        place = wiring.settings.state_dir
        text = f"{place}: was emptied while the agent ran; the agent writes it again"
        wiring.recorder.file_set_aside(text)
        wiring.ledger_store.rewrite()
        wiring.cards.republish()
        wiring.mode.republish()
