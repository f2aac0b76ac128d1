"""The promise: what a container receives, file by file, in every mode and by every way to a card.

The golden files are the contract; `make golden` writes them again, and the diff is what a reviewer reads.
"""

import json
from dataclasses import asdict, replace

import pytest
from tests.domain.words import V100_MIB, cards, grant
from tests.golden_files import same_as_golden_file
from tests.held import changed

from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.grants.container_edits import (
    ContainerEdits,
    DeviceAccess,
    ListStrategy,
    Paths,
    slice_of_mounts,
)
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import NodeState

ACCESS = {
    "nvidia": DeviceAccess(),
    "device-specs": DeviceAccess(passes_nodes=True),
    "volume-mounts": DeviceAccess((ListStrategy.VOLUME_MOUNTS,)),
    "cdi": DeviceAccess((ListStrategy.CDI_CRI,)),
}
"""Part of a golden file's name -> how cards reach containers."""
MODES = (NodeMode.CORE_MEM, NodeMode.CGPU, NodeMode.SHARE)
PATHS = Paths(
    run_dir="/run/gpu-device-plugin",
    library_dir="/usr/local/lib/gpu-device-plugin",
    library_version="0.1.0",
    control_devices=("/dev/nvidiactl", "/dev/nvidia-uvm"),
)
NODE = cards(V100_MIB, V100_MIB, 32510)


def node(mode: NodeMode) -> NodeState:
    """Node `node-a`."""
    return NodeState("node-a", mode=mode, cards=NODE)


def source_grant(mode: NodeMode) -> Grant:
    """The source's 2 units and 30 % on card 0 of two; the pod's app containers ask 5 units."""
    return changed(
        grant("a", "m20 m21"),
        slice_id="5f3c9a10",
        cards=("GPU-0",),
        mode=str(mode),
        is_isolated=mode is not NodeMode.SHARE,
        core_percent=30 if mode is NodeMode.CORE_MEM else 0,
        pod_units=5,
        library_version="0.1.0",
    )


def edits(held: Grant, access: str = "nvidia") -> ContainerEdits:
    """The answer on this node."""
    by_uuid = {card.uuid: card for card in NODE}
    return AliyunScheme().edits(
        held,
        [by_uuid[uuid] for uuid in held.devices],
        node(fraction_of(held).mode),
        ACCESS[access],
        PATHS,
    )


def check_golden(name: str, found: ContainerEdits) -> None:
    """The answer equals the file, and has no annotation."""
    fields = asdict(found)
    assert fields.pop("annotations") == {}
    same_as_golden_file(f"edits/{name}.json", json.dumps(fields, indent=2) + "\n")


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_the_golden_one(mode: NodeMode, access: str) -> None:
    """Environment of R-550, mounts of docs/architecture.md, ways of R-720 and R-721 (R-505)."""
    check_golden(f"{mode}-{access}", edits(source_grant(mode), access))


@pytest.mark.parametrize("access", ACCESS)
def test_several_cards_are_lists(access: str) -> None:
    """8 units on 2 cards: comma lists, units a card, one activity file on each (R-550)."""
    held = changed(
        grant("a"),
        slice_id="5f3c9a10",
        cards=("GPU-0", "GPU-1"),
        mode="cgpu",
        mem_units=8,
        pod_units=8,
        library_version="0.1.0",
    )

    check_golden(f"cgpu-two-cards-{access}", edits(held, access))


def test_gpu_selftest_is_mounted_where_the_version_has_it() -> None:
    """Beside the library; a mount of what is not there would become a directory."""
    held = source_grant(NodeMode.CORE_MEM)
    found = AliyunScheme().edits(
        held, NODE[:1], node(NodeMode.CORE_MEM), DeviceAccess(), replace(PATHS, has_selftest=True)
    )

    check_golden("core_mem-selftest", found)
    assert set(edits(held).mounts) < set(found.mounts)


def test_going_without_a_cap_is_said_and_mounts_nothing() -> None:
    """R-507, where the operator allows it."""
    check_golden("cgpu-disabled", edits(replace(source_grant(NodeMode.CGPU), is_isolated=False)))


def test_a_node_without_isolation_says_nothing_of_it() -> None:
    """`--isolation off` is the operator's, not the container's wish."""
    bare = replace(source_grant(NodeMode.CGPU), is_isolated=False)
    off = replace(node(NodeMode.CGPU), wants_isolation=False)

    found = AliyunScheme().edits(bare, NODE[:1], off, DeviceAccess(), PATHS)

    assert "CGPU_DISABLE" not in found.envs
    assert found.mounts == ()


def test_of_unlike_cards_the_larger_counts() -> None:
    """Applications divide CONTAINER by DEV: with the larger they take too little, never too much (R-551)."""
    held = changed(source_grant(NodeMode.SHARE), cards=("GPU-1", "GPU-2"))

    assert edits(held).envs["ALIYUN_COM_GPU_MEM_DEV"] == "31"
    assert edits(held).envs["ALIYUN_COM_GPU_MEM_IDX"] == "1,2"


def test_small_units_are_counted_as_such() -> None:
    """R-407: 126 units of 128 MiB on a V100."""
    held = changed(source_grant(NodeMode.SHARE), unit_mib=128)

    assert edits(held).envs["ALIYUN_COM_GPU_MEM_DEV"] == "126"


@pytest.mark.parametrize("mode", MODES)
def test_a_kept_answer_names_its_slice(mode: NodeMode) -> None:
    """From the kubelet's checkpoint, after our own file was lost."""
    mounts = {m.container_path: m.host_path for m in edits(source_grant(mode)).mounts}

    expected = ("", "") if mode is NodeMode.SHARE else ("5f3c9a10", "0.1.0")
    assert slice_of_mounts(mounts) == expected


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("mode", MODES)
def test_tenants_share_no_writable_bytes(mode: NodeMode, access: str) -> None:
    """What can be written is named after the slice, whatever else is mounted."""
    writable = [m.host_path for m in edits(source_grant(mode), access).mounts if not m.is_read_only]

    assert all("5f3c9a10" in path or path == "/dev/null" for path in writable)


def test_strategies_combine() -> None:
    """Every way that is asked for; the environment names the mounts where both do (R-720)."""
    held = source_grant(NodeMode.SHARE)
    access = DeviceAccess(
        (ListStrategy.VOLUME_MOUNTS, ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI)
    )
    found = AliyunScheme().edits(held, NODE[:1], node(NodeMode.SHARE), access, PATHS)

    assert found.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert [mount.host_path for mount in found.mounts] == ["/dev/null"]
    assert found.cdi_names == ("nvidia.com/gpu=GPU-0",)
    assert found.annotations == {
        f"cdi.k8s.io/nvidia-device-plugin_{held.slice_id}": "nvidia.com/gpu=GPU-0"
    }
