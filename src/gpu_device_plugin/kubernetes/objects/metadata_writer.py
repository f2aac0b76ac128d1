"""Labels and annotations of our node and its pods, and its startup taint, written in the background."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Literal

from gpu_device_plugin.domain.grants.node_annotations import TAINT_ANNOTATION
from gpu_device_plugin.domain.node.labels import is_of_features
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.patches import Patch, PatchQueue
from gpu_device_plugin.kubernetes.objects.node_object import OwnNode
from gpu_device_plugin.kubernetes.objects.pod_watch import WatchedPod

_MAX_PODS = 1024
Wanted = Mapping[str, str | None]
_Field = Literal["labels", "annotations"]


class _Part(StrEnum):
    """What goes into one patch: a feature label that is refused keeps nothing else from the node."""

    OWN = "the node's labels and annotations"
    FEATURES = "the node's feature labels"
    TAINT = "the node without its startup taint"


class NodeMetadata:
    """The labels and annotations that our node should have.

    `put` merges into what was put before; None removes a key. Connect `observe` to the node
    watch, so that changes by others are undone.
    """

    def __init__(
        self,
        api: ApiServer,
        node_name: str,
        view: Callable[[], OwnNode | None],
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_refused` gets what was refused, and why, once until another patch is refused."""
        self._node_name = node_name
        self._on_refused = on_refused
        self._refused: dict[_Part, str] = {}
        self._view = view
        self._wanted: dict[_Field, dict[str, str | None]] = {"labels": {}, "annotations": {}}
        # What is to be removed once.
        self._dropped: dict[_Field, set[str]] = {"labels": set(), "annotations": set()}
        self._taint = ""
        self._queue = PatchQueue[_Part](api, self._difference, self._forget, self._refuse)
        self.run = self._queue.run

    def put(self, *, labels: Wanted | None = None, annotations: Wanted | None = None) -> None:
        """Want these; returns at once."""
        self._wanted["labels"].update(labels or {})
        self._wanted["annotations"].update(annotations or {})
        for field, wanted in self._wanted.items():
            self._dropped[field] -= wanted.keys()
        self._mark()

    def drop(self, *, label: str = "", annotation: str = "") -> None:
        """Want a label or an annotation no more and remove it once; a later one is left alone."""
        dropped: dict[_Field, str] = {"labels": label, "annotations": annotation}
        for field, key in dropped.items():
            self._wanted[field].pop(key, None)
            self._dropped[field] |= {key} - {""}
        self._mark()

    def remove_taint(self, key: str) -> None:
        """Want no taint of this key, unless this node had one that was removed; another that comes later stays."""
        self._taint = key
        self._queue.mark(_Part.TAINT)

    def observe(self) -> None:
        view = self._view()
        if view is not None:
            self._dropped["labels"] &= view.labels.keys()
            self._dropped["annotations"] &= view.annotations.keys()
        if any(self._wanted.values()):
            self._mark()

    def _mark(self) -> None:
        for part in (_Part.OWN, _Part.FEATURES):
            self._queue.mark(part)

    def _difference(self, part: "_Part") -> Patch | None:
        view = self._view()
        if view is None:
            return None
        if part is _Part.TAINT:
            return self._without_taint(view)
        present = {"labels": view.labels, "annotations": view.annotations}
        metadata: dict[str, object] = {}
        for field, wanted in self._wanted.items():
            asked = _of(part, {**wanted, **dict.fromkeys(self._dropped[field])})
            if missing := _missing(asked, present[field]):
                metadata[field] = missing
        return Patch(f"/api/v1/nodes/{self._node_name}", metadata) if metadata else None

    def _without_taint(self, view: OwnNode) -> Patch | None:
        """The list of taints can only be replaced, so it has to be that of the version that was seen."""
        kept = [taint for taint in view.taints if taint.get("key") != self._taint]
        if len(kept) == len(view.taints) or TAINT_ANNOTATION in view.annotations:
            return None
        told = {TAINT_ANNOTATION: self._taint}
        metadata = {"resourceVersion": view.resource_version, "annotations": told}
        return Patch(f"/api/v1/nodes/{self._node_name}", metadata, {"taints": kept or None})

    def _refuse(self, part: "_Part", text: str) -> None:
        if self._refused.get(part) != text:
            self._refused[part] = text
            self._on_refused(f"{part} cannot be written: {text}")

    def _forget(self, _: "_Part") -> None:
        """The node is gone, or a value was refused; the next `put` tries again."""


class PodAnnotations:
    """The annotations that our node's pods should have.

    They belong to one pod, by its uid: one that has its name does not get them, and keeps nothing from
    it. They are dropped when the pod is gone. Connect `observe` and `forget` to the pod watch.

    Others may fill a pod's annotations up to the API server's limit. The
    differing values of a refused patch are then removed, which makes the object smaller, before all are tried again.
    """

    def __init__(
        self,
        api: ApiServer,
        watched: Callable[[str, str], WatchedPod | None],
        on_refused: Callable[[PodRef, str], None] = lambda _ref, _text: None,
    ) -> None:
        """`on_refused` gets the API server's words, once until the pod is as it should be."""
        self._watched = watched
        self._on_refused = on_refused
        self._refused: set[PodRef] = set()
        self._wanted: dict[PodRef, dict[str, str | None]] = {}
        self._queue = PatchQueue[PodRef](api, self._difference, self.forget, self._refuse)
        self.run = self._queue.run

    def put(self, ref: PodRef, annotations: Wanted) -> None:
        """Want these on the pod, beside what was wanted before; returns at once."""
        self._wanted.setdefault(ref, {}).update(annotations)
        self._queue.mark(ref)
        if len(self._wanted) > _MAX_PODS:  # pods that the API never showed
            self.forget(next(iter(self._wanted)))

    def forget(self, ref: PodRef) -> None:
        self._wanted.pop(ref, None)
        self._refused.discard(ref)
        self._queue.drop(ref)

    def observe(self, ref: PodRef) -> None:
        if ref in self._wanted:
            self._queue.mark(ref)

    def _difference(self, ref: PodRef) -> Patch | None:
        pod = self._watched(*ref.key)
        if pod is None or pod.request.ref.uid != ref.uid:
            return None  # the watch is behind, and will call `observe` or `forget`
        missing = _missing(self._wanted.get(ref, {}), pod.annotations)
        if not missing:
            self._refused.discard(ref)
            return None
        if ref in self._refused:
            missing = {k: None for k in missing if k in pod.annotations} or missing
        # The uid makes the server refuse the patch for another pod of the same name.
        metadata: dict[str, object] = {"uid": pod.api_uid, "annotations": missing}
        return Patch(f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}", metadata)

    def _refuse(self, ref: PodRef, text: str) -> None:
        if ref not in self._refused and ref in self._wanted:
            self._on_refused(ref, text)
        self._refused.add(ref)


def _of(part: _Part, wanted: Wanted) -> Wanted:
    return {
        key: value
        for key, value in wanted.items()
        if is_of_features(key) == (part is _Part.FEATURES)
    }


def _missing(wanted: Wanted, present: Mapping[str, str]) -> dict[str, str | None]:
    return {key: value for key, value in wanted.items() if present.get(key) != value}
