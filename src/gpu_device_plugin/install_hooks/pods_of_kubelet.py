"""What the kubelet says of its pods, for commands that run beside it once."""

from collections.abc import Callable, Container
from pathlib import Path

from gpu_device_plugin.domain.grants.claims import DRIVER
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME, read_checkpoint
from gpu_device_plugin.kubelet.podresources import PodResources
from gpu_device_plugin.kubernetes.objects.node_object import NVIDIA_DRIVER

_GPU_DRIVERS = frozenset({DRIVER, NVIDIA_DRIVER})


async def kubelet_snapshot(
    kubelet: Path, resources: Container[str] = OUR_RESOURCES
) -> KubeletSnapshot:
    """List and checkpoint of these resources; KubeletError if one of them does not answer."""
    pods = PodResources(kubelet / "pod-resources" / "kubelet.sock", resources)
    path = kubelet / "device-plugins" / FILE_NAME
    try:
        return KubeletSnapshot.of(await pods.list(), read_checkpoint(path, resources))
    finally:
        await pods.close()


def pod_directories(kubelet: Path) -> frozenset[str] | None:
    """Uids of the pods that the kubelet has a directory of; None where they cannot be seen.

    It keeps a pod's directory as long as it knows the pod, also while List is empty because a
    restarted kubelet cannot reach the API server.
    """
    try:
        return frozenset(entry.name for entry in (kubelet / "pods").iterdir())
    except OSError:
        return None


class GpuResources(Container[str]):
    """The names of everything that stands for a GPU, anyone who offers it."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(("nvidia.com/", "aliyun.com/gpu"))


async def pods_with_gpus(
    kubelet: Path, counts: Callable[[str], bool] = lambda _: True
) -> tuple[str, ...]:
    """The pods of this node with any GPU resource, or a claim's GPU: `namespace/name`, or a uid.

    A claim that only ordinary init containers name is not seen: List lacks them, and the
    checkpoint has no claims. `counts` judges the id of a unit; a claim counts whatever its card.

    KubeletError: The kubelet does not say; then any pod may.
    """
    snapshot = await kubelet_snapshot(kubelet, GpuResources())
    known = pod_directories(kubelet)
    found = {
        str(entry.pod)
        for entry in snapshot.listed
        if entry.drivers & _GPU_DRIVERS
        or any(counts(i) for held in entry.held.values() for ids in held.values() for i in ids)
    }
    listed = {
        (container, resource, ids)
        for entry in snapshot.listed
        for container, held in entry.held.items()
        for resource, ids in held.items()
    }
    found |= {
        f"pod with uid {entry.pod_uid}"
        for entry in snapshot.entries
        if any(map(counts, entry.ids))
        and (entry.container, entry.resource, entry.ids) not in listed
        and (known is None or entry.pod_uid in known)
    }
    return tuple(sorted(found))
