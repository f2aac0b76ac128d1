"""The pod spec: a pod's JSON as the request that the domain uses."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpu_device_plugin.domain.fractions.demands import (
    CARD_LABEL,
    COUNT_LABEL,
    ClaimShape,
    parse_claim_name,
)
from gpu_device_plugin.domain.fractions.foreign_resource_names import KOORDINATOR
from gpu_device_plugin.domain.fractions.pod_annotations import with_wish
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.holdings_annotation import TOPOLOGY_GPU
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.compute_policy import COMPUTE_POLICY_KEY
from gpu_device_plugin.domain.node.modes import PLACEMENT_ANNOTATION
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    PodRef,
    PodRequest,
    Standing,
)
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import ClusterError, clip
from gpu_device_plugin.kubernetes.client.wire import (
    CGPU_DISABLE,
    Container,
    ObjectMeta,
    Pod,
    Resources,
)
from gpu_device_plugin.kubernetes.objects.quantity import milli, whole_number

_LONGEST_NAME = 253
_MOST_CONTAINERS = 128


def pod_request(pod: Pod, resources: Collection[str] = OUR_RESOURCES) -> PodRequest:
    """What `pod` asks for of our `resources`; ClusterError where a limit is no quantity."""
    meta = pod.metadata
    annotations, labels = meta.annotations or {}, meta.labels or {}
    containers = [
        _container(each, (ContainerKind.INIT, ContainerKind.SIDECAR)[each.is_sidecar], n, resources)
        for n, each in enumerate(pod.spec.init_containers or ())
    ]
    containers += [
        _container(container, ContainerKind.APP, index, resources)
        for index, container in enumerate(pod.spec.containers)
    ]
    if len(containers) > _MOST_CONTAINERS:
        # Thousands fit into an object. As many that ask are refused, and others are only named.
        containers = [each for each in containers if each.asks][:_MOST_CONTAINERS]
    request = PodRequest(
        ref=PodRef(sys.intern(meta.namespace), meta.name, meta.uid),
        containers=tuple(containers),
        card_count_label=_said(labels, COUNT_LABEL),
        is_finished=pod.status.is_over,
        owner=_owner(meta),
        compute_policy=_said(annotations, COMPUTE_POLICY_KEY),
        placement=_said(annotations, PLACEMENT_ANNOTATION),
        card_label=_said(labels, CARD_LABEL),
        runtime_class=sys.intern(pod.spec.runtime_class_name[:_LONGEST_NAME]),
    )
    return with_wish(request, annotations)


def _said(values: Mapping[str, str], key: str) -> str | None:
    """A value that is one of a few words or is refused: so much of it as a refusal repeats."""
    value = values.get(key)
    return None if value is None else clip(value)


def _owner(meta: ObjectMeta) -> str:
    """The API server bounds neither kind nor name of an owner; a name is one of an object."""
    owner = meta.owner
    if owner is None:
        return ""
    return f"{clip(owner.kind)} {meta.namespace}/{owner.name[:_LONGEST_NAME]}"


def whole_request(pod: Pod) -> PodRequest:
    """What a pod asks for, by its limits or by the claims that they were made into (docs/dra.md).

    For people who ask about this pod: anybody may write such a name, so it says what the pod asks
    for, and never that it holds anything. It counts once, for the container that it is named after:
    others share it. One of an init container lasts as long as the pod, as what a sidecar holds does.
    """
    request = pod_request(pod)
    names = (claim.name for claim in pod.spec.resource_claims or ())
    shapes = [shape for name in names if (shape := parse_claim_name(name))]
    by_place = {(shape.is_app, shape.index): shape for shape in shapes}
    if not by_place:
        return request
    containers = [
        _by_claim(each, by_place.get((each.kind is ContainerKind.APP, each.index)))
        for each in request.containers
    ]
    return replace(request, containers=tuple(containers), allocation_api=AllocationApi.DRA)


def _by_claim(container: ContainerRequest, shape: ClaimShape | None) -> ContainerRequest:
    if shape is None:
        return container
    amounts = {str(Resource.MEM): shape.units, str(Resource.CORE): shape.percent}
    kind = ContainerKind.APP if shape.is_app else ContainerKind.SIDECAR
    asked = {name: amount for name, amount in amounts.items() if amount}
    return replace(container, kind=kind, amounts=asked)


def scheduled_request(pod: Pod) -> PodRequest:
    """The request with the processor that kube-scheduler counts for the pod, and its standing.

    Claims are no part of it: kube-scheduler allocates them, on cards that are given by nothing else.

    Source:
        k8s.io/component-helpers, `resource.PodRequests`: app containers and sidecars together, or
        an init container with the sidecars before it if that is more; what the spec says for the
        whole pod instead; and the overhead of its runtime. A resize that is under way is not seen.
    """
    beside, most = 0, 0
    for container in pod.spec.init_containers or ():
        needs = _cpu(container.resources, container.name)
        beside += needs if container.is_sidecar else 0
        most = max(most, beside if container.is_sidecar else beside + needs)
    needed = max(most, beside + sum(_cpu(c.resources, c.name) for c in pod.spec.containers))
    whole = pod.spec.resources
    if whole is not None and "cpu" in (whole.requests or {}):
        needed = _cpu(whole, "")
    overhead = _cpu(Resources(requests=pod.spec.overhead), "")
    meta = pod.metadata
    standing = Standing(
        pod.spec.priority or 0, meta.creation_timestamp, meta.deletion_timestamp is not None
    )
    return replace(pod_request(pod), cpu_milli=needed + overhead, standing=standing)


def _cpu(resources: Resources, container: str) -> int:
    """`container` is for the error; empty for what is asked for the whole pod."""
    try:
        return milli(str((resources.requests or {}).get("cpu", "0")))
    except ClusterError as error:
        whose = f"container {container}" if container else "pod"
        raise ClusterError(f"{whose}: cpu: {error}") from error


def _container(
    container: Container, kind: ContainerKind, index: int, resources: Collection[str]
) -> ContainerRequest:
    limits = container.resources.limits or {}
    amounts = {name: _amount(container, limits.get(name)) for name in resources if name in limits}
    env = {entry.name: entry.value for entry in container.env or ()}
    return ContainerRequest(
        name=container.name,
        kind=kind,
        index=index,
        amounts={name: amount for name, amount in amounts.items() if amount},
        wants_no_isolation=env.get(CGPU_DISABLE, "").lower() in ("true", "1"),
        claims=tuple(claim.name for claim in container.resources.claims or ()),
    )


def _amount(container: Container, quantity: str | float | None) -> int:
    if quantity is None:
        return 0
    try:
        return whole_number(str(quantity))
    except ClusterError as error:
        raise ClusterError(f"container {container.name}: {error}") from error


def devices_asked(pod: Pod) -> Mapping[str, int]:
    """Resource -> how many devices.

    Amounts that are no whole numbers are left out; the API server takes none for such a resource.
    """
    return _added_up(pod, _asked)


def koordinator_amounts(pod: Pod) -> Mapping[str, int]:
    """What a pod asks under Koordinator's names for cards and their parts; one that is bound may be Koordinator's own."""

    def asked(container: Container) -> dict[str, int]:
        limits = container.resources.limits or {}
        return {n: _amount(container, limits[n]) for n in KOORDINATOR.names if n in limits}

    return {} if pod.spec.node_name else _added_up(pod, asked)


def _added_up(pod: Pod, asked: Callable[[Container], Mapping[str, int]]) -> Mapping[str, int]:
    """As kube-scheduler adds amounts up: an init container runs beside the sidecars before it alone."""
    together, most = Counter[str](), Counter[str]()
    for init in pod.spec.init_containers or ():
        own = Counter(asked(init))
        most |= together + own
        if init.is_sidecar:
            together.update(own)
    for container in pod.spec.containers:
        together.update(asked(container))
    return most | together


def asking_containers(pod: Pod) -> list[str]:
    """Names of the containers that ask for devices."""
    every = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return [container.name for container in every if _asked(container)]


def asking_together(pod: Pod) -> list[str]:
    """Those of them that run together: an ordinary init container's devices go to a later one."""
    return [each.name for each in _together(pod) if _asked(each)]


def _together(pod: Pod) -> list[Container]:
    return [*(c for c in pod.spec.init_containers or () if c.is_sidecar), *pod.spec.containers]


def device_count(amount: object) -> int:
    """The amount, or 0 where it is none.

    >>> device_count("8"), device_count("1k")
    (8, 0)
    """
    text = str(amount)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _asked(container: Container) -> dict[str, int]:
    limits = container.resources.limits or {}
    # NVIDIA's configuration renames its resources, but none out of its domain.
    devices = [name for name in limits if name.startswith("nvidia.com/") or name == TOPOLOGY_GPU]
    whole = {name: device_count(limits[name]) for name in devices}
    return {name: amount for name, amount in whole.items() if amount}
