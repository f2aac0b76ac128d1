"""A card is cut so when it has the profile in full number and nothing else."""

from dataclasses import replace

import pytest

from gpu_device_plugin.domain.cards.card import CardIndex, Hardware, Instance
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.nvidia.mig_devices import Profile, is_cut, plan
from gpu_device_plugin.errors import ConfigError

HALF = Profile("3g.20gb", 3, 4, 2)
PART = Instance("MIG-1", 0, 7, 0, "3g.20gb", MiB(19968), 3, 3, 42)
A100 = CardReport("GPU-1", CardIndex(0), 0, "NVIDIA-A100-SXM4-40GB", MiB(40960), is_mig=False)


@pytest.mark.parametrize(
    ("instances", "is_mig", "expected"),
    [
        ((PART, PART), True, True),
        ((PART,), True, False),
        ((PART, replace(PART, profile="4g.20gb")), True, False),
        ((PART, replace(PART, profile="1c.3g.20gb", compute_slices=1)), True, False),
        ((), False, False),
    ],
)
def test_full_number_and_nothing_else(
    instances: tuple[Instance, ...], *, is_mig: bool, expected: bool
) -> None:
    hardware = Hardware(is_mig_capable=True, is_mig=is_mig, instances=instances)

    assert is_cut(hardware, HALF) is expected


def test_cards_that_cannot_be_cut_are_left_out_unless_there_is_no_other() -> None:
    """A T4 beside an A100 stays whole."""
    capable = replace(A100, hardware=Hardware(is_mig_capable=True))
    t4 = replace(A100, uuid="GPU-2", index=CardIndex(1), model="Tesla-T4", memory_mib=MiB(15079))

    assert [cut.card.uuid for cut in plan([t4, capable], "MIG7g")] == ["GPU-1"]
    with pytest.raises(ConfigError, match="no card of this node can be in MIG mode; it has Tesla"):
        plan([t4], "MIG7g")
