"""A card in MIG mode behaves as the driver's do."""

from tests.simulator.conftest import MakeNode
from tests.simulator.programs import run

from gpu_device_plugin.simulation.simulated_node import SimulatedNode


def test_slices_are_found_by_index_and_by_uuid(make_node: MakeNode) -> None:
    """Seven of them, each with its parent, its name and its own attributes."""
    node = make_node("a100-mig", cards=2)
    uuids = [instance.uuid for instance in node.view().cards[1].instances]

    seen = run(
        node,
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(1)
        slices = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, i)
                  for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card))]
        third = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(slices[2]))
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(third)
        attributes = nvml.nvmlDeviceGetAttributes_v2(third)
        say([
            nvml.nvmlDeviceGetMigMode(card),
            [nvml.nvmlDeviceGetUUID(one) for one in slices],
            nvml.nvmlDeviceGetName(third),
            nvml.nvmlDeviceGetIndex(parent),
            nvml.nvmlDeviceGetGpuInstanceId(third),
            nvml.nvmlDeviceGetComputeInstanceId(third),
            [attributes.memorySizeMB, attributes.multiprocessorCount],
            [nvml.nvmlDeviceIsMigDeviceHandle(one).value for one in (card, third)],
            nvml.nvmlDeviceGetMemoryInfo(third).total // MIB,
        ])
        """,
    )

    assert seen == [
        [1, 1],
        uuids,
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        1,
        9,
        0,
        [4864, 14],
        [0, 1],
        4864,
    ]


def test_a_cut_card_has_no_utilisation_and_a_slice_no_sensors(make_node: MakeNode) -> None:
    """Both are not supported, by the driver and here."""
    seen = run(
        make_node("a100-mig", cards=1),
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        one = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        say([
            error_of(nvml.nvmlDeviceGetUtilizationRates, card),
            error_of(nvml.nvmlDeviceGetPowerUsage, card),
            error_of(nvml.nvmlDeviceGetPowerUsage, one),
            error_of(nvml.nvmlDeviceGetAttributes_v2, card),
        ])
        """,
    )

    assert seen == [3, 0, 3, 3]


def test_a_whole_card_has_no_slices(node: SimulatedNode) -> None:
    """A V100 cannot be cut; asking for a slice finds none."""
    seen = run(
        node,
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        say([
            error_of(nvml.nvmlDeviceGetMigMode, card),
            nvml.nvmlDeviceGetMaxMigDeviceCount(card),
            error_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, card, 0),
        ])
        """,
    )

    assert seen == [3, 0, 6]


def test_gpu_instances_lead_to_compute_instances(make_node: MakeNode) -> None:
    """The way that tools go through profiles, GPU instances and compute instances."""
    seen = run(
        make_node("a100-mig", cards=1),
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(
            card, nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
        instance = nvml.nvmlDeviceGetGpuInstanceById(card, 13)
        info = nvml.nvmlGpuInstanceGetInfo(instance)
        compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        say([
            [profile.id, profile.instanceCount, profile.memorySizeMB],
            [info.id, info.profileId, info.placement.start, info.placement.size],
            nvml.nvmlComputeInstanceGetInfo(compute).id,
        ])
        """,
    )

    assert seen == [[19, 7, 4864], [13, 19, 6, 1], 0]
