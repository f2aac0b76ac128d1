"""ResourceClaims: what the scheduler has allocated to them of our devices, and for which pods."""

from collections.abc import Sequence

import msgspec

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.claims import DRIVER, AllocatedDevice, Claim, ClaimRef
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.listing import list_items, read_object
from gpu_device_plugin.kubernetes.client.wire import Bare, OwnerReference
from gpu_device_plugin.kubernetes.objects.quantity import whole_number

_BYTES_PER_MIB = 1 << 20
_MOST_BYTES, _MOST_PERCENT = 1 << 50, 100
_MOST_RESULTS = 32
"""AllocationResultsMaxSize of resource.k8s.io/v1: the API server admits no more."""
_MOST_TEXT = 63
"""Characters of a name in a pod (a DNS label) and of a uid; who may write metadata may write anything there."""


_Amount = str | int | float


class _Consumed(msgspec.Struct):
    """From Kubernetes 1.38 on an allocator may write the driver's name before that of a capacity."""

    memory: _Amount = 0
    cores: _Amount = 0
    full_memory: _Amount = msgspec.field(default=0, name=f"{DRIVER}/memory")
    full_cores: _Amount = msgspec.field(default=0, name=f"{DRIVER}/cores")


class _Result(msgspec.Struct, rename="camel"):
    """One entry of `status.allocation.devices.results`."""

    driver: str
    pool: str
    device: str
    request: str = ""
    share_id: str = msgspec.field(default="", name="shareID")
    consumed_capacity: _Consumed | None = None


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


class _Notes(msgspec.Struct):
    name_in_pod: str = msgspec.field(default="", name="resource.kubernetes.io/pod-claim-name")


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: _Notes | None = None
    owner_references: list[OwnerReference] | None = None


class _Claim(Bare):
    metadata: _Meta = msgspec.field(default_factory=_Meta)  # type: ignore[assignment]
    status: _Status = msgspec.field(default_factory=_Status)


_LIST = "/apis/resource.k8s.io/v1/resourceclaims"


async def fetch_claim(
    api: ApiServer, namespace: str, name: str, deadline_seconds: float
) -> Claim | None:
    """A claim by one GET; None if there is none of that name."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
    found = await read_object(api, path, _Claim, deadline_seconds)
    return None if found is None else _understood(found)


async def list_allocated(api: ApiServer) -> Sequence[Claim]:
    """The claims of the cluster that have a device of this driver.

    The API server selects none by what is allocated. So all are read, page by page: of tens of
    thousands one answer would be as large as an agent's memory.
    """
    return [
        _understood(claim)
        async for claim in list_items(api, _LIST, _Claim)
        if any(each.driver == DRIVER for each in claim.status.allocation.devices.results or ())
    ]


def _understood(claim: _Claim) -> Claim:
    meta, status = claim.metadata, claim.status
    pods = [each for each in status.reserved_for or () if each.resource == "pods"]
    pod = PodRef(meta.namespace, pods[0].name, pods[0].uid) if pods else None
    ref = ClaimRef(meta.namespace, meta.name, meta.uid)
    told = meta.annotations.name_in_pod if meta.annotations else ""
    name_in_pod = told if len(told) <= _MOST_TEXT and told.isprintable() else ""
    devices = tuple(map(_allocated, (status.allocation.devices.results or ())[:_MOST_RESULTS]))
    owners = frozenset(o.uid[:_MOST_TEXT] for o in meta.owner_references or () if o.kind == "Pod")
    return Claim(ref, pod, devices, name_in_pod, owners, is_shared=len(pods) > 1)


def _allocated(result: _Result) -> AllocatedDevice:
    consumed = (result.consumed_capacity if result.driver == DRIVER else None) or _Consumed()
    return AllocatedDevice(
        driver=result.driver,
        pool=result.pool,
        device=result.device,
        request=result.request,
        share_id=result.share_id,
        memory_mib=MiB(
            _amount(consumed.memory or consumed.full_memory, _MOST_BYTES) // _BYTES_PER_MIB
        ),
        core_percent=_amount(consumed.cores or consumed.full_cores, _MOST_PERCENT),
    )


def _amount(told: str | float, most: int) -> int:
    """The amount; 0, with which nothing is prepared, where it is none of a card's.

    An error would hide all the other claims of a list.
    """
    try:
        amount = whole_number(str(told))
    except ClusterError:
        return 0
    return amount if 0 <= amount <= most else 0
