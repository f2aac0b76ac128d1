"""The promise: a container receives its devices by every strategy alone and by several at once (R-720)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.domain.nvidia.nodes import sevenths, whole

from gpu_device_plugin.domain.grants.container_edits import (
    CDI_ANNOTATION_PREFIX,
    ContainerEdits,
    DeviceAccess,
    DeviceNode,
    ListStrategy,
    MigPart,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    IdStrategy,
    MigStrategy,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.nvidia_scheme import answer
from gpu_device_plugin.domain.nvidia.offers import Offered, offers

ENVVAR, MOUNTS = ListStrategy.ENVVAR, ListStrategy.VOLUME_MOUNTS
ANNOTATIONS, CRI = ListStrategy.CDI_ANNOTATIONS, ListStrategy.CDI_CRI
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
HOST = Paths(control_devices=("/dev/nvidiactl", "/dev/nvidia-uvm"))
DIRECTORY = "/var/run/nvidia-container-devices"


def cards() -> tuple[Offered, ...]:
    return offers(whole(2), Configuration()).resources[GPU]


def given(*strategies: ListStrategy, **more: Any) -> ContainerEdits:
    return answer(cards(), configured(*strategies, **more), HOST, "a1")


def configured(
    *strategies: ListStrategy,
    passes_nodes: bool = False,
    annotation_prefix: str = CDI_ANNOTATION_PREFIX,
    **more: Any,
) -> Configuration:
    access = DeviceAccess(strategies, passes_nodes, annotation_prefix)
    return Configuration(access=access, **more)


NULLS = tuple(Mount(f"{DIRECTORY}/GPU-{i}", "/dev/null", is_read_only=False) for i in (0, 1))
NAMES = ("nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1")


@pytest.mark.parametrize(
    ("strategies", "wanted"),
    [
        ((ENVVAR,), ContainerEdits(envs={VISIBLE: "GPU-0,GPU-1"})),
        ((MOUNTS,), ContainerEdits(envs={VISIBLE: DIRECTORY}, mounts=NULLS)),
        ((CRI,), ContainerEdits(envs={VISIBLE: "void"}, cdi_names=NAMES)),
        (
            (ANNOTATIONS,),
            ContainerEdits(
                envs={VISIBLE: "void"},
                annotations={"cdi.k8s.io/nvidia-device-plugin_a1": ",".join(NAMES)},
            ),
        ),
        ((ENVVAR, CRI), ContainerEdits(envs={VISIBLE: "GPU-0,GPU-1"}, cdi_names=NAMES)),
        (
            (ENVVAR, MOUNTS, ANNOTATIONS, CRI),
            ContainerEdits(
                envs={VISIBLE: DIRECTORY},
                mounts=NULLS,
                cdi_names=NAMES,
                annotations={"cdi.k8s.io/nvidia-device-plugin_a1": ",".join(NAMES)},
            ),
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_strategy_gives(strategies: tuple[ListStrategy, ...], wanted: ContainerEdits) -> None:
    """R-720, the whole answer; with CDI alone the runtime's own way is shut."""
    assert given(*strategies) == wanted


def test_replicas_of_one_card_are_one_device() -> None:
    """R-720: unique physical ids."""
    sliced = Configuration(sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(GPU, 3),)))
    replicas = offers(whole(2), sliced).resources[GPU]

    assert answer(replicas[4:] + replicas[:1], sliced, HOST, "a1").envs == {VISIBLE: "GPU-0,GPU-1"}


def test_devices_may_be_named_by_index() -> None:
    """An instance has its card's index before its own."""
    by_index = Configuration(mig_strategy=MigStrategy.MIXED, id_strategy=IdStrategy.INDEX)
    instances = offers(sevenths(2), by_index).resources["nvidia.com/mig-1g.5gb"]

    assert answer(instances[7:9], by_index, HOST, "a1").envs == {VISIBLE: "1:0,1:1"}
    assert given(ENVVAR, id_strategy=IdStrategy.INDEX).envs == {VISIBLE: "0,1"}


def test_device_nodes_are_those_of_the_cards_and_of_the_driver() -> None:
    """R-721: below the host's driver root, at their own place in the container."""
    found = given(ENVVAR, passes_nodes=True, dev_root="/run/nvidia/driver").devices

    assert found == tuple(
        DeviceNode(path, f"/run/nvidia/driver{path}", "rw")
        for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1")
    )


def test_an_instance_has_the_nodes_of_its_minors() -> None:
    """Its card's, its GPU instance's and its compute instance's."""
    mixed = configured(ENVVAR, passes_nodes=True, mig_strategy=MigStrategy.MIXED)
    instances = offers(sevenths(2), mixed).resources["nvidia.com/mig-1g.5gb"]
    minors = {MigPart(1, 7, None): 201, MigPart(1, 7, 0): 202, MigPart(0, 7, None): 66}
    host = replace(HOST, control_devices=(), mig_minors=minors)

    assert [node.host_path for node in answer(instances[7:8], mixed, host, "a1").devices] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap201",
        "/dev/nvidia-caps/nvidia-cap202",
    ]


def test_with_cdi_alone_there_are_no_device_nodes() -> None:
    """The CDI specification has them."""
    assert given(CRI, passes_nodes=True).devices == ()


def test_a_channel_and_other_devices_come_with_each_strategy() -> None:
    """IMEX, GDRCopy, GPUDirect Storage and OFED, as NVIDIA's plugin names them."""
    more = {"imex_channels": (0,), "is_gds_on": True, "is_mofed_on": True, "is_gdrcopy_on": True}
    found = given(ENVVAR, MOUNTS, CRI, passes_nodes=True, **more)

    assert found.envs == {
        VISIBLE: DIRECTORY,
        "NVIDIA_IMEX_CHANNELS": "0",
        "NVIDIA_GDRCOPY": "enabled",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
    }
    assert found.mounts[-1].container_path == f"{DIRECTORY}/imex/0"
    assert found.devices[-1].host_path == "/dev/nvidia-caps-imex-channels/channel0"
    assert found.cdi_names[2:] == (
        "nvidia.com/imex-channel=0",
        "nvidia.com/gdrcopy=all",
        "nvidia.com/gds=all",
        "nvidia.com/mofed=all",
    )


def test_the_annotations_prefix_can_be_another() -> None:
    """For engines that know CDI under their own."""
    found = given(ANNOTATIONS, annotation_prefix="example.com/")

    assert list(found.annotations) == ["example.com/nvidia-device-plugin_a1"]
