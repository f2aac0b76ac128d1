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


def node_checks(of: Wiring) -> NodeChecks:
    """Every check of this agent, and its periodic work."""
    return NodeChecks(
        of.node_store, of.recorder, _work(of), _checks(of), _disk_work(of), _disk_checks(of)
    )


def _checks(of: Wiring) -> Sequence[Check[str | None]]:
    """Reason, what finds it, its cure, in the order of the checks; docs/operations/events.md lists them."""
    settings, cluster = of.settings, of.cluster
    exposure = Exposure({} if settings.simulator_dir else os.environ)
    return (
        Check(
            "RunDirectoryShared",
            partial(find_shared_run_dir, Path(settings.run_dir)),
            "mount a file system of its own there for a hard bound",
            Severity.INFORMATION,
        ),
        Check("StateNotWritable", of.ledger_store.find_disk_fault, "free space there"),
        Check(
            "DeviceListTooLong", partial(find_long_list, of.schemes, of.node_store), "set that unit"
        ),
        Check(
            "DriverLimitsMissing",
            of.driver_limits.follow,
            "repair what this text names, or choose another memory enforcer",
        ),
        Check(
            "KubeletTooOld",
            lambda: find_old_kubelet(cluster.node.kubelet_version if cluster.node else ""),
            "upgrade the node",
            Severity.WARNING,
        ),
        _cdi_check(of),
        *_without_effect(of),
        _upgrade_check(of),
        Check(
            "CardsExposed",
            lambda: exposure.find(cluster.runtime_class),
            _OTHER_RUNTIME,
            Severity.WARNING,
        ),
        _strangers_check(of),
        _devices_check(Path(settings.run_dir)),
    )


def _cdi_check(of: Wiring) -> Check[str | None]:
    cure = "with cdi.generator delete the agent's pod; else write it with `nvidia-ctk cdi generate`"
    return Check("CardsNotInCdi", of.configuration.find_unnamed, cure, Severity.WARNING)


def _without_effect(of: Wiring) -> Sequence[Check[str | None]]:
    """Valid settings that have no effect here: the node offers less than they ask for."""
    sharing = (
        "label the node ack.node.gpu.schedule=default (chart: mode=default), or leave sharing out"
    )
    mode = "label the node with another mode"
    find_mode = partial(_find_idle_mode, of.node_store)
    return (
        Check("SharingUnused", of.find_idle_sharing, sharing, Severity.WARNING),
        Check("ModeNotServedYet", find_mode, mode, Severity.WARNING),
    )


def _find_idle_mode(node_store: NodeStore) -> str | None:
    mode = node_store.read().mode
    if mode is None or is_served(mode):
        return None
    return f"mode {mode} is not served by this release: the node offers nothing"


def _upgrade_check(of: Wiring) -> Check[str | None]:
    cluster = of.cluster
    cure = "none, unless the state stays: then pods hold the old driver, kubectl drain NODE --ignore-daemonsets"
    return Check(
        "DriverUpgrade",
        lambda: find_driver_upgrade(cluster.node.labels if cluster.node else {}),
        cure,
        Severity.INFORMATION,
    )


def _strangers_check(of: Wiring) -> Check[str | None]:
    strangers = Strangers(of.node_store, of.usage, of.live)
    cure = "end these programs; `kubectl gpu explain MemoryTaken` says how they come by a card"
    return Check("MemoryTaken", strangers.find, cure, Severity.WARNING)


def _devices_check(run_dir: Path) -> Check[str | None]:
    lost = LostDevices(run_dir / LOST_DEVICES)
    cure = "delete the agent's pod, and the pods whose programs fail; `kubectl gpu explain DevicesDenied` says how to prevent it"
    return Check("DevicesDenied", lost.find, cure, Severity.WARNING, lost.was_lost)


def _work(of: Wiring) -> Sequence[Callable[[], None]]:
    """What is done before the checks; what it finds it reports by itself."""
    return (
        of.withdrawal.follow,
        of.configuration.run,
        of.configuration.follow_mps,
        of.configuration.follow_imex,
        of.cards.follow_rules,
        of.layout.run,
        of.mode.republish_if_waiting,
        of.remove_startup_taint,
        of.setup.files.sizes.cut_back_unwatched,
        lambda: of.metrics.show_nvml_restarts(of.nvml.restarts),
    )


def _disk_checks(of: Wiring) -> Sequence[Check[Awaitable[str | None]]]:
    """Those that may wait for a disk or a socket."""
    settings = of.settings
    places = (settings.run_dir, settings.library_dir, settings.state_dir)
    labels = SecurityLabels([Path(place) for place in places], of.kernel)
    # The cure is a command with paths of this node, in the finding.
    return (Check("LabelsMissing", partial(find_unreadable, labels, of.writer, of.node_store)),)


def _disk_work(of: Wiring) -> Sequence[Callable[[], Awaitable[None]]]:
    """Work that may wait for a disk or a socket, before those checks."""
    return (
        of.other_plugin_search.run,
        partial(_keep_state_directory, of),
        of.library.run,
        of.features.run,
        of.driver_limits.repair,
        of.configuration.read_cdi,
    )


async def _keep_state_directory(of: Wiring) -> None:
    """If the lock file is gone, so are the others: write them again. An error ends the process.

    In a pod the directory is a mount. If it is removed on the node, no file can be written there
    until the container is created again.
    """
    if await of.writer.run(of.lock.keep):
        place = of.settings.state_dir
        text = f"{place}: was emptied while the agent ran; the agent writes it again"
        of.recorder.file_set_aside(text)
        of.ledger_store.rewrite()
        of.cards.republish()
        of.mode.republish()
