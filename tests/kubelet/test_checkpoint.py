"""The kubelet's checkpoint is read for what only it knows; a bad one is an error, not a crash."""

import json
from pathlib import Path

import pytest
from tests.kubelet.rig import MEM, Rig, container, pod

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.container_edits import Mount
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError
from gpu_device_plugin.kubelet.checkpoint import FILE_NAME, parse_checkpoint, read_checkpoint

# Two NUMA nodes, an answer with one variable ("A" = "1"), and another plugin's entry.
SAMPLE = b"""{"Data":{"PodDeviceEntries":[
 {"PodUID":"u1","ContainerName":"main","ResourceName":"aliyun.com/gpu-mem",
  "DeviceIDs":{"0":["m00"],"1":["m01","m00"]},"AllocResp":"CgYKAUESATE="},
 {"PodUID":"u2","ContainerName":"main","ResourceName":"other.io/x",
  "DeviceIDs":{"-1":["x"]},"AllocResp":""}],
 "RegisteredDevices":{"aliyun.com/gpu-mem":["m00","m01","m02"]}},"Checksum":1234567890}"""


def test_an_entry_is_read_with_uid_ids_and_our_own_answer() -> None:
    """Ids of all NUMA nodes together; other plugins' entries are left out."""
    (entry,) = parse_checkpoint(SAMPLE)

    assert (entry.pod_uid, entry.container, entry.resource) == ("u1", "main", Resource.MEM)
    assert entry.ids == {"m00", "m01"}
    assert entry.edits.envs == {"A": "1"}


async def test_init_containers_and_mounts_stand_in_it(rig: Rig) -> None:
    """What PodResources lacks: the init container; the slice is known again by its mount."""
    await rig.serve()
    await rig.kubelet.admit(
        pod("p", container("init", mem=2, kind=ContainerKind.INIT), container(mem=2))
    )
    entries = read_checkpoint(rig.kubelet.plugin_dir / FILE_NAME) or ()

    assert {(entry.pod_uid, entry.container) for entry in entries} == {
        ("uid-p", "init"),
        ("uid-p", "main"),
    }
    assert all(
        entry.edits.mounts
        == (Mount("/in/the/container", f"/host/{entry.resource}", is_read_only=True),)
        for entry in entries
    )


def test_no_checkpoint_is_not_an_empty_one(tmp_path: Path) -> None:
    """The kubelet has never allocated anything, or somebody removed the file."""
    assert read_checkpoint(tmp_path / FILE_NAME) is None


def test_an_empty_book_is_no_entries() -> None:
    """Go writes null for an empty list."""
    assert parse_checkpoint(b'{"Data":{"PodDeviceEntries":null},"Checksum":1}') == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(SAMPLE[:200], id="truncated"),
        pytest.param(b'{"Data":[]}', id="another shape"),
        pytest.param(SAMPLE.replace(b"CgYKAUESATE=", b"CgYKA"), id="answer not base64"),
        pytest.param(SAMPLE.replace(b"CgYKAUESATE=", b"//////8="), id="answer not protobuf"),
        pytest.param(b"\xff\xfe" + SAMPLE, id="not text"),
    ],
)
def test_a_bad_checkpoint_is_a_kubelet_error(tmp_path: Path, content: bytes) -> None:
    """It names the file."""
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(KubeletError, match=FILE_NAME):
        read_checkpoint(path)


def test_a_container_without_ids_is_read(tmp_path: Path) -> None:
    """A null where a list was expected is an empty one."""
    text = json.loads(SAMPLE)
    text["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"-1": None}
    path = tmp_path / FILE_NAME
    path.write_text(json.dumps(text), "utf-8")

    (entry,) = read_checkpoint(path) or ()
    assert entry.ids == frozenset()
    assert entry.resource == MEM
