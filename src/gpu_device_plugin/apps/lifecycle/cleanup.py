"""`gpu-device-plugin cleanup`: remove from a node what an agent that is gone has left there.

Runs on the node (or in a pod with its directories), without any agent. What is in use, the
kubelet tells: a slice stays whose pod the kubelet still has.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.apps.agent.reconcile.kubelet_snapshot import KubeletSnapshot, SnapshotReader
from gpu_device_plugin.apps.agent.state.ledger_store import boot_id
from gpu_device_plugin.domain.ledger import Ledger, live
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.store.grants import GrantStore
from gpu_device_plugin.store.library import LibraryVersions
from gpu_device_plugin.store.lock import NodeLock
from gpu_device_plugin.store.remains import Remains, remove_empty
from gpu_device_plugin.store.slices import SliceFiles


@dataclass(frozen=True, slots=True)
class Places:
    """Where the agent's directories lie."""

    state: Path
    run: Path
    library: Path
    kubelet: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done.

    Attributes:
        removed: What is gone, in words.
        in_use: What stays because it is in use, in words.
    """

    removed: tuple[str, ...]
    in_use: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _InUse:
    slices: frozenset[str]
    versions: frozenset[str]


async def clean(places: Places, *, is_forced: bool) -> Outcome:
    """Remove all that nothing uses; forced, the rest as well.

    Raises:
        ConfigError: An agent serves this node.
        KubeletError: The kubelet does not tell what is in use, and nobody forced us.
        StorageError: The file system refused.
    """
    lock = NodeLock(places.state / "lock")
    lock.take("(none): gpu-device-plugin cleanup", os.getpid())
    try:
        return await _clean(places, is_forced=is_forced)
    finally:
        # With the grants goes the file; where some stay, so does the place of the lock.
        if any(places.state.glob("grants*")):
            lock.release()
        else:
            lock.remove()
        for path in (places.state, places.run, places.library):
            remove_empty(path)


async def _clean(places: Places, *, is_forced: bool) -> Outcome:
    store = GrantStore(places.state, boot_id())
    ledger = store.load(time.time()).ledger
    used = _InUse(frozenset(), frozenset())
    if not is_forced:
        used = _used(ledger, await _testimony(places.kubelet))
    files = SliceFiles(places.run)
    removed = []
    for slice_id in sorted(files.present() - used.slices):
        files.remove(slice_id)
        removed.append(_in_words(slice_id, ledger))
    versions = LibraryVersions(places.library, None)
    gone = versions.remove_unused(used.versions, is_leaving=True)
    removed += [f"library version {name}" for name in gone]
    remains = Remains(places.state, places.run)
    remains.sweep()
    if used.slices:
        kept = {key: grant for key, grant in ledger.grants.items() if key in used.slices}
        if kept != ledger.grants:
            store.save(Ledger(kept))
            store.save_former()
    else:
        removed += remains.forget()
    return Outcome(tuple(removed), tuple(_in_words(name, ledger) for name in sorted(used.slices)))


async def _testimony(kubelet: Path) -> KubeletSnapshot:
    pods = PodResources(kubelet / "pod-resources" / "kubelet.sock")
    try:
        snapshots = SnapshotReader(pods.list, kubelet / "device-plugins" / FILE_NAME)
        return await snapshots.take()
    except KubeletError as error:
        raise KubeletError(
            f"the kubelet does not tell which slices are in use ({error}): nothing is removed. "
            f"Give its directory with --kubelet-dir, or --force where no pod with a slice is left"
        ) from error
    finally:
        await pods.close()


def _used(ledger: Ledger, snapshot: KubeletSnapshot) -> _InUse:
    """Slices of pods that the kubelet has, by our grants and by the answers that it keeps."""
    grants = live(ledger, snapshot.names).grants
    held = [units for units in snapshot.living(()) if units.slice_id]
    return _InUse(
        frozenset(grants) | {units.slice_id for units in held},
        frozenset(grant.library_version for grant in grants.values())
        | {units.library_version for units in held},
    )


def _in_words(slice_id: str, ledger: Ledger) -> str:
    grant = ledger.grants.get(slice_id)
    if grant is None or not grant.pod.name:
        return f"slice {slice_id}"
    return f"slice {slice_id} of pod {grant.pod}, container {grant.container}"
