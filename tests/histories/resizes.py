"""Slices that grow and shrink while they run: what their pods' author asks, and what must hold meanwhile."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.histories.node import Node
from tests.histories.pods import Life, path_of
from tests.histories.shapes import CORE, MEM
from tests.histories.truth import grants, holds

from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH, RESIZE
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.errors import StateError

NAMESPACE = "/api/v1/namespaces/default"
_REVISION = re.compile(rb"^revision=([0-9]+)$", re.MULTILINE)


def allow(node: Node, growth: str) -> None:
    """The operator's word on the namespace."""
    meta = {"name": "default", "uid": "namespace-uid", "annotations": {GROWTH: growth}}
    node.api.store(NAMESPACE, {"metadata": meta})


def ask(node: Node, life: Life, text: str) -> None:
    """The annotation of a pod, where the API server has this one."""
    found = node.api.objects.get(path_of(life.pod), {})
    if found.get("metadata", {}).get("uid") == life.pod.uid:
        node.api.patch(path_of(life.pod), {"metadata": {"annotations": {RESIZE: text}}})


def ask_back(node: Node) -> None:
    """Whoever asked for another size asks for that of its spec again."""
    for life in node.pods.living():
        meta = node.api.objects.get(path_of(life.pod), {}).get("metadata", {})
        if RESIZE in (meta.get("annotations") or {}):
            sizes = [
                f"{c.name}=mem:{c.limits[MEM]}"
                + (f",core:{c.limits[CORE]}" if CORE in c.limits else "")
                for c in life.pod.containers
                if c.limits.get(MEM)
            ]
            ask(node, life, ";".join(sizes))


def is_resize(before: bytes | None, now: bytes | None) -> bool:
    """Whether limits were replaced as a resize does it: by some with a larger revision."""
    return now is not None and _revision(now) > _revision(before or b"")


def _revision(limits: bytes) -> int:
    found = _REVISION.search(limits)
    return int(found[1]) if found else 0


def problems(node: Node) -> Iterator[str]:
    """Units that are held twice, and limits above what is booked."""
    known: tuple[Grant, ...] = ()
    with contextlib.suppress(StateError):
        known = grants(node)
    living = {life.pod.uid for life in node.pods.living() if not life.is_forgotten}
    owner = {hold.unit: hold.life.pod.uid for hold in holds(node) if not hold.life.is_forgotten}
    for grant in known:
        if grant.resized is None or grant.pod.uid not in living:
            continue
        node.explored["moments with a slice that was resized"] += 1
        node.explored["moments with a slice that has grown"] += bool(grant.extra_ids)
        for unit in grant.extra_ids:
            if owner.setdefault(unit, grant.slice_id) != grant.slice_id:
                yield f"slice {grant.slice_id} of {grant.pod} has grown into {unit}, which {owner[unit]} holds"
        yield from _above_booked(node, grant)


def _above_booked(node: Node, grant: Grant) -> Iterator[str]:
    path: Path = node.machine.root / "run" / "slices" / grant.slice_id / "config" / "limits"
    text = path.read_text("ascii") if path.exists() else ""
    sizes = {card.uuid: card.memory_mib for card in node.driver.cards}
    for share in grant.shares:
        found = re.search(
            rf"^device={share.device} memory_bytes=(\d+)(?: core_percent=(\d+))?",
            text,
            re.MULTILINE,
        )
        if found is None or share.device not in sizes:
            continue
        unit, total = fraction_of(grant).unit_mib, sizes[share.device]
        booked = total * (share.memory_mib // unit) // max(1, total // unit)
        if int(found[1]) >> 20 > booked or int(found[2] or 0) > share.core_percent:
            yield f"slice {grant.slice_id} is limited to {found[0]}, and {booked} MiB, {share.core_percent} % are booked"
