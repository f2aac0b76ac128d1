"""What the API server and the webhook tell each other: AdmissionReviews (admission.k8s.io/v1)."""

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_device_plugin.domain.models.pod_admission import MOST_AFFINITY_BYTES, Admitted, Applicant
from gpu_device_plugin.errors import ClusterError, clip, shorten
from gpu_device_plugin.kubernetes.objects.quantity import whole_number

_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_FORBIDDEN = 403
_LONGEST_UID = 128
_MOST_PATCH_BYTES = 512 * 1024
"""An affinity as long as it may be, and what 64 containers ask. Anybody may send what an answer repeats."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    resources: dict[str, Any] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    containers: msgspec.Raw = msgspec.Raw(b"null")
    init_containers: msgspec.Raw = msgspec.Raw(b"null")


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Resource(msgspec.Struct):
    resource: str = ""
    group: str = ""


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: str = ""
    namespace: str = ""
    resource: _Resource = msgspec.field(default_factory=_Resource)
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, rename="camel"):
    request: _Request
    api_version: str = ""
    kind: str = ""


_review = msgspec.json.Decoder(_Review)
_pod = msgspec.json.Decoder(_Pod)
_affinity = msgspec.json.Decoder(dict[str, Any] | None)
_containers = msgspec.json.Decoder(list[_Container] | None)
_MOST_CONTAINER_BYTES = 3 << 19
"""Bytes of a pod's containers: an object has at most 1.5 MiB."""
_MOST_CONTAINERS = 1024


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's `resources`."""

    container: str
    path: str  # where they stand in the pod, for a patch
    plain: Mapping[str, Any]

    @property
    def limits(self) -> Mapping[str, object]:
        limits = self.plain.get("limits")
        return limits if isinstance(limits, dict) else {}

    def amounts(self, names: Collection[str]) -> dict[str, int]:
        """Those limits that it has, as whole numbers; ClusterError where one is no quantity."""
        return {name: whole_number(str(self.limits[name])) for name in names if name in self.limits}

    def rename(self, gone: Collection[str], new: Mapping[str, int]) -> Mapping[str, Any]:
        """The same, without some resources and with others, in limits and requests."""
        found = dict(self.plain)
        for part in ("limits", "requests"):
            before = found.get(part) or {}
            if not isinstance(before, dict):
                raise ClusterError(f"container {clip(self.container)}: {part} are no object")
            kept = {key: value for key, value in before.items() if key not in gone}
            found[part] = kept | {key: str(amount) for key, amount in new.items()}
        return found


@dataclass(frozen=True, slots=True)
class Review:
    """One question of the API server; `pod` is None where it is about no new pod.

    Attributes:
        containers: Path in the pod -> the list as it came: three bytes of it are a container.
        name: The pod's; its `generateName` where the API server has yet to make one of it.
    """

    uid: str
    namespace: str
    pod: Applicant | None
    containers: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    name: str = ""

    def resources(self) -> Iterator[ContainerResources]:
        """Those of each container; ClusterError where they are none, or more than a pod has."""
        for path, raw in self.containers.items():
            if len(raw) > _MOST_CONTAINER_BYTES:
                raise ClusterError(f"{path} has {len(raw)} bytes")
            try:
                found = _containers.decode(raw) or []
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ClusterError(f"{path}: {error}") from error
            if len(found) > _MOST_CONTAINERS:
                raise ClusterError(f"{path} has {len(found)} containers")
            for place, each in enumerate(found):
                yield ContainerResources(
                    each.name, f"{path}/{place}/resources", each.resources or {}
                )


def read_review(body: bytes) -> Review:
    """The body of a call; ClusterError, which says where, if it is no AdmissionReview of a pod."""
    try:
        review = _review.decode(body)
        if (review.api_version, review.kind) != (_API_VERSION, _KIND):
            raise ClusterError(
                f"the body is {review.api_version} {review.kind}, not {_API_VERSION} {_KIND}"
            )
        asked = review.request
        if len(asked.uid) > _LONGEST_UID:
            raise ClusterError(f"the review's uid has {len(asked.uid)} characters")
        is_pod = (asked.resource.group, asked.resource.resource) == ("", "pods")
        if not is_pod or asked.sub_resource or asked.operation != "CREATE":
            return Review(asked.uid, asked.namespace, None)
        pod = _pod.decode(asked.object)
        raw = pod.spec.affinity
        affinity = _affinity.decode(raw) if len(raw) <= MOST_AFFINITY_BYTES else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterError(f"the body is no {_KIND} of a pod: {error}") from error
    applicant = Applicant(
        labels=pod.metadata.labels or {},
        annotations=pod.metadata.annotations or {},
        node_selector=pod.spec.node_selector or {},
        affinity=affinity,
        affinity_bytes=len(raw),
    )
    lists = {
        "/spec/containers": pod.spec.containers,
        "/spec/initContainers": pod.spec.init_containers,
    }
    meta = pod.metadata
    name = meta.name or meta.generate_name
    return Review(asked.uid, asked.namespace or meta.namespace, applicant, lists, name)


def allow_pod(uid: str) -> bytes:
    """The answer for a pod that stays as it is."""
    return _answer(uid, {"allowed": True})


def deny_pod(uid: str, text: str) -> bytes:
    """The answer for a pod that may not be, with the reason for people."""
    result = {"code": _FORBIDDEN, "reason": "Forbidden", "message": shorten(text)}
    return _answer(uid, {"allowed": False, "status": result})


def patch_pod(
    review: Review,
    admitted: Admitted,
    resources: Mapping[str, Mapping[str, Any]] | None = None,
    warnings: Sequence[str] = (),
) -> bytes:
    """The answer for a pod that is changed, as a JSON patch (RFC 6902); refused where that is too long.

    `resources` is path of a container's resources -> what they are to be; clients show `warnings`.
    """
    pod = review.pod or Applicant()
    patch = [
        *_additions("/metadata/labels", pod.labels, admitted.labels),
        *_additions("/metadata/annotations", pod.annotations, admitted.annotations),
    ]
    if admitted.affinity is not None:
        patch.append({"op": "add", "path": "/spec/affinity", "value": admitted.affinity})
    patch += [
        {"op": "add", "path": path, "value": value} for path, value in (resources or {}).items()
    ]
    if not patch:
        return allow_pod(review.uid)
    plain = msgspec.json.encode(patch)
    if len(plain) > _MOST_PATCH_BYTES:
        why = f"the pod would need a patch of {len(plain)} bytes, and {_MOST_PATCH_BYTES} are sent"
        return deny_pod(review.uid, f"{why}: use fewer terms in spec.affinity")
    return _patched(review.uid, plain, warnings)


def name_scheduler(review: Review, name: str) -> bytes:
    """The answer for a pod that gets this `schedulerName`."""
    if review.pod is None:
        return allow_pod(review.uid)
    patch = [{"op": "add", "path": "/spec/schedulerName", "value": name}]
    return _patched(review.uid, msgspec.json.encode(patch))


def _additions(
    path: str, before: Mapping[str, str], new: Mapping[str, str]
) -> list[dict[str, object]]:
    """Keys are added one by one, so that another webhook's stay; to an absent map all at once."""
    if not new:
        return []
    if not before:
        return [{"op": "add", "path": path, "value": dict(new)}]
    escaped = {key.replace("~", "~0").replace("/", "~1"): value for key, value in new.items()}
    return [{"op": "add", "path": f"{path}/{key}", "value": v} for key, v in escaped.items()]


def _patched(uid: str, patch: bytes, warnings: Sequence[str] = ()) -> bytes:
    encoded = base64.b64encode(patch).decode("ascii")
    told: dict[str, object] = {"warnings": list(warnings)} if warnings else {}
    return _answer(uid, {"allowed": True, "patchType": "JSONPatch", "patch": encoded, **told})


def _answer(uid: str, response: Mapping[str, object]) -> bytes:
    body = {"apiVersion": _API_VERSION, "kind": _KIND, "response": {"uid": uid, **response}}
    return msgspec.json.encode(body)
