"""ResourceClaims: one by one GET, or those of the cluster that have devices of ours."""

from collections.abc import Mapping, Sequence

import msgspec

from gpu_device_plugin.cluster.api import ApiServer, Request
from gpu_device_plugin.cluster.listing import list_items
from gpu_device_plugin.cluster.quantity import whole_number
from gpu_device_plugin.cluster.wire import Bare
from gpu_device_plugin.domain.claims import DRIVER, AllocatedDevice, Claim, ClaimRef
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.errors import ClusterError, clip

_BYTES_PER_MIB = 1 << 20
_NAME_IN_POD = "resource.kubernetes.io/pod-claim-name"


class _Result(msgspec.Struct, rename="camel"):
    """One entry of `status.allocation.devices.results`."""

    driver: str
    pool: str
    device: str
    request: str = ""
    share_id: str = msgspec.field(default="", name="shareID")
    consumed_capacity: dict[str, str | int | float] | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Consumer(msgspec.Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation = msgspec.field(default_factory=_Allocation)
    reserved_for: list[_Consumer] | None = None


class _Claim(Bare):
    status: _Status = msgspec.field(default_factory=_Status)


_LIST = "/apis/resource.k8s.io/v1/resourceclaims"
_claim = msgspec.json.Decoder(_Claim)


async def fetch_claim(
    api: ApiServer, namespace: str, name: str, deadline_seconds: float
) -> Claim | None:
    """A claim by one GET; None if there is none of that name.

    Raises:
        ClusterError: The API server does not answer in time, or not with a claim.
    """
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
    answer = await api.call(Request("GET", path), deadline_seconds=deadline_seconds)
    if answer.is_not_found:
        return None
    if not answer.is_success:
        raise ClusterError(f"GET {path}: {answer.text}")
    try:
        return _understood(_claim.decode(answer.body))
    except msgspec.MsgspecError as error:
        raise ClusterError(f"GET {path}: {error}") from error


async def list_allocated(api: ApiServer) -> Sequence[Claim]:
    """The claims of the cluster that have a device of ours.

    The API server selects none by what is allocated. So all are read, page by page: of tens of
    thousands one answer would be as large as an agent's memory.

    Raises:
        ClusterError: The API server does not answer, or not with claims.
    """
    return [
        _understood(claim)
        async for claim in list_items(api, _LIST, _Claim)
        if any(each.driver == DRIVER for each in claim.status.allocation.devices.results or ())
    ]


def _understood(claim: _Claim) -> Claim:
    meta, status = claim.metadata, claim.status
    pods = [each for each in status.reserved_for or () if each.resource == "pods"]
    pod = PodRef(meta.namespace, pods[0].name, pods[0].uid) if len(pods) == 1 else None
    ref = ClaimRef(meta.namespace, meta.name, meta.uid)
    name_in_pod = (meta.annotations or {}).get(_NAME_IN_POD, "")
    devices = tuple(map(_device, status.allocation.devices.results or ()))
    owners = frozenset(clip(o.uid) for o in meta.owner_references or () if o.kind == "Pod")
    return Claim(ref, pod, devices, clip(name_in_pod), owners)


def _device(result: _Result) -> AllocatedDevice:
    consumed: Mapping[str, str | int | float] = result.consumed_capacity or {}
    return AllocatedDevice(
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        request=result.request,
        share_id=result.share_id,
        memory_mib=whole_number(str(consumed.get("memory", "0"))) // _BYTES_PER_MIB,
        core_percent=whole_number(str(consumed.get("cores", "0"))),
    )
