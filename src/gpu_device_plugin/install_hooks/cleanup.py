"""`gpu-device-plugin cleanup`: remove from a node what a former agent has left there.

Runs on the node, or in a pod with its directories, without an agent. The kubelet says what is in
use: the slice of a pod that it still has is kept, also one that the pod has by a claim. Its List
alone is not enough, because it is empty while a restarted kubelet cannot reach the API server. So a
pod counts as gone only when its directory is gone too, which the kubelet keeps as long as it knows
the pod.
"""

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_device_plugin.agent.node_edges import boot_id
from gpu_device_plugin.disk.cdi_files import CdiFiles
from gpu_device_plugin.disk.grant_file import GrantStore
from gpu_device_plugin.disk.library_versions import LibraryVersions
from gpu_device_plugin.disk.locks import NodeLock
from gpu_device_plugin.disk.remains import Remains, remove_empty
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.grants.cdi_spec import claim_of_spec
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import Witnesses
from gpu_device_plugin.domain.grants.snapshot_comparison import complete_holder
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.install_hooks.pods_of_kubelet import kubelet_snapshot, pod_directories
from gpu_device_plugin.kubelet.dra_sockets import remove_sockets

WAIT_SECONDS = 20.0
"""A kubelet forgets a pod that has ended within some seconds."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of the agent's directories."""

    state: Path
    run: Path
    library: Path
    kubelet: Path
    cdi: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done."""

    removed: tuple[str, ...]
    in_use: tuple[str, ...]  # descriptions of what was kept because it is in use


@dataclass(frozen=True, slots=True)
class _InUse:
    """What stays."""

    slices: frozenset[str] = frozenset()
    versions: frozenset[str] | None = frozenset()
    """Library versions that they mount; None is all of them."""
    is_ending: bool = False
    """Whether the kubelet no longer lists some of the pods, and may forget them soon."""


async def clean(places: Places, *, is_forced: bool, wait_seconds: float = WAIT_SECONDS) -> Outcome:
    """Remove everything that is not in use; if forced, the rest as well.

    Raises:
        ConfigError: An agent serves this node.
        KubeletError: The kubelet does not say what is in use, and it was not forced.
    """
    lock = NodeLock(places.state / "lock")
    lock.take("(none): gpu-device-plugin cleanup", os.getpid())
    try:
        return await _clean(places, None if is_forced else wait_seconds)
    finally:
        # Without grants the lock file goes too; if some are kept, so is the lock.
        if any(places.state.glob("grants*")):
            lock.release()
        else:
            lock.remove()
        for path in (places.state, places.run, places.library):
            remove_empty(path)


async def _clean(places: Places, wait_seconds: float | None) -> Outcome:
    store = GrantStore(places.state, boot_id())
    ledger = store.load(time.time()).ledger
    files, cdi = SliceFiles(places.run, places.cdi), CdiFiles(places.cdi)
    used, claims = _InUse(), _claims(cdi)
    if wait_seconds is not None:
        used = await _used(places.kubelet, ledger, files.present(), wait_seconds)
        used = _add_lost_claims(used, ledger, claims)
    removed = _remove_claim_files(cdi, claims, used.slices)
    remove_sockets(places.kubelet)
    for slice_id in sorted(files.present() - used.slices):
        files.remove(slice_id)
        removed.append(_in_words(slice_id, ledger))
    if used.versions is not None:
        versions = LibraryVersions(places.library, None)
        gone = versions.remove_unused(used.versions, is_leaving=True)
        removed += [f"library version {name}" for name in gone]
    remains = Remains(places.state, places.run)
    remains.sweep()
    if used.slices:
        kept = {key: grant for key, grant in ledger.grants.items() if key in used.slices}
        if kept != ledger.grants:
            store.save(Ledger(kept))
    else:
        removed += remains.forget()
    return Outcome(tuple(removed), tuple(_in_words(name, ledger) for name in sorted(used.slices)))


async def _snapshot(kubelet: Path) -> KubeletSnapshot:
    try:
        return await kubelet_snapshot(kubelet)
    except KubeletError as error:
        raise KubeletError(
            f"the kubelet does not say which slices are in use ({error}): nothing is removed. "
            f"Give its directory with --kubelet-dir, or --force if no pod with a slice is left"
        ) from error


async def _used(
    kubelet: Path, ledger: Ledger, present: frozenset[str], wait_seconds: float
) -> _InUse:
    """What stays, once no pod is about to be forgotten by the kubelet."""
    deadline = time.monotonic() + wait_seconds
    while True:
        used = _in_use(ledger, present, await _snapshot(kubelet), pod_directories(kubelet))
        if not used.is_ending or time.monotonic() > deadline:
            return used
        await asyncio.sleep(_LOOK_SECONDS)


def _in_use(
    ledger: Ledger, present: frozenset[str], snapshot: KubeletSnapshot, known: frozenset[str] | None
) -> _InUse:
    """Slices of pods that the kubelet has, by our grants and by the answers that it keeps.

    `known` are uids of the pods with a directory of the kubelet's; None where these cannot be seen:
    then a pod that the checkpoint names counts as there.
    """
    uids = snapshot.uids if known is None else known
    witnesses = Witnesses(snapshot)
    # Every claim counts; and the checkpoint has none, so without `known` none is gone.
    claims = {key for key, grant in ledger.grants.items() if grant.holder.claim}
    listed = {
        key
        for key, grant in ledger.release(witnesses.over(ledger)).grants.items()
        if key not in claims or grant.pod.key in snapshot.names
    }
    held = [units for units in snapshot.held if units.slice_id]
    living = frozenset(units.slice_id for units in witnesses.held)
    kept = [units for units in held if units.slice_id in living or units.pod.uid in uids]
    grants = [
        grant
        for key, grant in ledger.grants.items()
        if key in listed
        or (key in claims and known is None)
        or complete_holder(grant, snapshot).pod.uid in {"", *uids}
    ]
    slices = {grant.slice_id for grant in grants} | {units.slice_id for units in kept}
    is_ending = not slices <= living | listed
    if snapshot.has_checkpoint or not present:
        versions = {g.library_version for g in grants} | {units.library_version for units in kept}
        return _InUse(frozenset(slices), frozenset(versions), is_ending)
    # Without a checkpoint it is not known to which pods the slices without a grant belong.
    return _InUse(frozenset(slices) | (present - frozenset(ledger.grants)), None, is_ending)


def _claims(cdi: CdiFiles) -> dict[str, str]:
    """Uids of the claims that have a CDI file, with the slices that these name; "" where they name none."""
    named = {uid: claim_of_spec(uid, cdi.read(uid)) for uid in sorted(cdi.present())}
    return {uid: known[1] if known else "" for uid, known in named.items()}


def _remove_claim_files(
    cdi: CdiFiles, claims: Mapping[str, str], used: Collection[str]
) -> list[str]:
    """Remove the CDI files of claims whose slices are not used; what was removed."""
    gone = [uid for uid, slice_id in claims.items() if slice_id not in used]
    for uid in gone:
        cdi.remove(uid)
    return [f"CDI file of claim {uid}" for uid in gone]


def _add_lost_claims(used: _InUse, ledger: Ledger, claims: Mapping[str, str]) -> _InUse:
    """And the slices that only a CDI file names: whose pods have them is not known."""
    lost = frozenset(claims.values()) - ledger.grants.keys() - {""}
    return replace(used, slices=used.slices | lost, versions=None) if lost else used


def _in_words(slice_id: str, ledger: Ledger) -> str:
    grant = ledger.grants.get(slice_id)
    if grant is None or not grant.pod.name:
        return f"slice {slice_id}"
    return f"slice {slice_id} of pod {grant.pod}, {grant.holder}"
