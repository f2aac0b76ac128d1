"""What the API server and the webhook tell each other: AdmissionReviews (admission.k8s.io/v1)."""

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_device_plugin.domain.models.pod_admission import MOST_AFFINITY_BYTES, Admitted, Applicant
from gpu_device_plugin.errors import ClusterError, bounded, clip
from gpu_device_plugin.kubernetes.objects.quantity import whole_number

_API_VERSION, _KIND = "admission.k8s.io/v1", "AdmissionReview"
_FORBIDDEN = 403


class _Meta(msgspec.Struct):
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    resources: dict[str, Any] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None


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


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's `resources`."""

    container: str
    path: str  # where they stand in the pod, for a patch
    plain: Mapping[str, Any]

    @property
    def limits(self) -> Mapping[str, object]:
        """Its limits, as they stand there."""
        limits = self.plain.get("limits")
        return limits if isinstance(limits, dict) else {}

    def amounts(self, names: Collection[str]) -> dict[str, int]:
        """Those limits that it has, as whole numbers; ClusterError where one is no quantity."""
        return {name: whole_number(str(self.limits[name])) for name in names if name in self.limits}

    def renamed(self, gone: Collection[str], new: Mapping[str, int]) -> Mapping[str, Any]:
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
    """One question of the API server; `pod` is None where it is about no new pod."""

    uid: str
    namespace: str
    pod: Applicant | None
    resources: tuple[ContainerResources, ...] = ()


def read_review(body: bytes) -> Review:
    """The body of a call; ClusterError, which says where, if it is no AdmissionReview of a pod."""
    try:
        review = _review.decode(body)
        if (review.api_version, review.kind) != (_API_VERSION, _KIND):
            raise ClusterError(
                f"the body is {review.api_version} {review.kind}, not {_API_VERSION} {_KIND}"
            )
        asked = review.request
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
    resources = (
        *_resources("/spec/containers", pod.spec.containers),
        *_resources("/spec/initContainers", pod.spec.init_containers or ()),
    )
    return Review(asked.uid, asked.namespace or pod.metadata.namespace, applicant, resources)


def _resources(path: str, containers: Sequence[_Container]) -> Iterator[ContainerResources]:
    for place, each in enumerate(containers):
        yield ContainerResources(each.name, f"{path}/{place}/resources", each.resources or {})


def allowed(uid: str) -> bytes:
    """The answer for a pod that stays as it is."""
    return _answer(uid, {"allowed": True})


def denied(uid: str, text: str) -> bytes:
    """The answer for a pod that may not be, with the reason for people."""
    result = {"code": _FORBIDDEN, "reason": "Forbidden", "message": bounded(text)}
    return _answer(uid, {"allowed": False, "status": result})


def patched(
    review: Review, admitted: Admitted, resources: Mapping[str, Mapping[str, Any]] | None = None
) -> bytes:
    """The answer for a pod that is changed, as a JSON patch (RFC 6902).

    `resources` is path of a container's resources -> what they are to be.
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
        return allowed(review.uid)
    encoded = base64.b64encode(msgspec.json.encode(patch)).decode("ascii")
    return _answer(review.uid, {"allowed": True, "patchType": "JSONPatch", "patch": encoded})


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


def _answer(uid: str, response: Mapping[str, object]) -> bytes:
    body = {"apiVersion": _API_VERSION, "kind": _KIND, "response": {"uid": uid, **response}}
    return msgspec.json.encode(body)
