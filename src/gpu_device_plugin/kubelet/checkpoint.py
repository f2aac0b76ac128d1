"""The kubelet's checkpoint file: the units, devices and answers that it keeps across restarts.

Unlike PodResources the checkpoint has pod UIDs, ordinary init containers and what Allocate answered.
Its checksum is computed over a Go rendering of the data and is not checked here; the kubelet replaces
the file atomically, so a file that can be parsed is whole.
"""

import base64
from collections.abc import Container, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, DeviceNode, Mount
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.scheme_registry import OUR_RESOURCES
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2

FILE_NAME = "kubelet_internal_checkpoint"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: str | None = None


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


_DECODER = msgspec.json.Decoder(_File)


def read_checkpoint(
    path: Path, resources: Container[str] = OUR_RESOURCES
) -> tuple[CheckpointEntry, ...] | None:
    """The entries of these resources; None without a file, as before the first allocation.

    What has not changed is not parsed again, so `resources` must not change either.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeletError(f"cannot read {path}: {error.strerror}") from error
    return parse_checkpoint(content, resources, str(path))  # type: ignore[arg-type]  # it has a hash


@lru_cache(maxsize=1)  # nearly always the kubelet has written nothing since the last pass
def parse_checkpoint(
    content: bytes, resources: Container[str] = OUR_RESOURCES, name: str = FILE_NAME
) -> tuple[CheckpointEntry, ...]:
    """The entries of our resources in a checkpoint's text; KubeletError if it has not that form."""
    try:
        entries = _DECODER.decode(content).data.pod_device_entries or ()
        return tuple(
            CheckpointEntry(
                pod_uid=entry.pod_uid,
                container=entry.container_name,
                resource=entry.resource_name,
                ids=frozenset(i for ids in (entry.device_ids or {}).values() for i in ids or ()),
                edits=_edits(entry.alloc_resp),
            )
            for entry in entries
            if entry.resource_name in resources
        )
    except (ValueError, RecursionError, DecodeError) as error:
        raise KubeletError(f"{name} is no checkpoint of a kubelet: {error}") from error


# Every reconcile pass reads the answers of all containers, and few of them are new.
@lru_cache(maxsize=1024)
def _edits(answer: str | None) -> ContainerEdits:
    encoded = base64.b64decode(answer or "", validate=True)
    message = deviceplugin_pb2.ContainerAllocateResponse.FromString(encoded)
    envs: Mapping[str, str] = dict(message.envs)
    return ContainerEdits(
        envs=envs,
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in message.mounts),
        devices=tuple(
            DeviceNode(d.container_path, d.host_path, d.permissions) for d in message.devices
        ),
        cdi_names=tuple(d.name for d in message.cdi_devices),
    )
