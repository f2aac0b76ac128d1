"""pynvml reads every simulated node as its profile describes it."""

from pathlib import Path

import pytest
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import run

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_READ = """
nvml.nvmlInit()
cards = []
for index in range(nvml.nvmlDeviceGetCount()):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    cards.append([nvml.nvmlDeviceGetName(handle), memory.total // MIB, memory.used // MIB])
cuda = nvml.nvmlSystemGetCudaDriverVersion()
say([nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetNVMLVersion(), cuda, cards])
"""

_V100 = ["Tesla V100-SXM2-16GB", 16160, 0]
_A100 = ["NVIDIA A100-SXM4-40GB", 40960, 0]
_T4 = ["Tesla T4", 15079, 0]


@pytest.mark.parametrize(
    ("profile", "driver", "cuda", "cards"),
    [
        pytest.param("v100", "450.102.04", 11000, [_V100] * 4, id="v100"),
        pytest.param("a100", "535.309.01", 12020, [_A100] * 8, id="a100"),
        pytest.param("a100-mig", "535.309.01", 12020, [_A100] * 8, id="a100-mig"),
        pytest.param("t4", "470.82.01", 11040, [_T4], id="t4"),
        pytest.param("a10", "470.82.01", 11040, [["NVIDIA A10", 23028, 0]], id="a10"),
        pytest.param("h200", "550.90.07", 12040, [["NVIDIA H200", 143771, 0]] * 8, id="h200"),
        pytest.param("mixed", "470.82.01", 11040, [_T4, _V100], id="mixed"),
    ],
)
def test_a_program_sees_the_profile(
    make_node: MakeNode, profile: str, driver: str, cuda: int, cards: list[object]
) -> None:
    """Versions, cards in order, and memory."""
    seen = run(make_node(profile), _READ)

    assert seen == [driver, f"{cuda // 1000}.{driver}", cuda, cards]


def test_a_card_is_found_by_index_uuid_serial_and_pci_address(node: SimulatedNode) -> None:
    """Four ways lead to one card, and back to its index."""
    seen = run(
        node,
        """
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        found = [
            nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(handle)),
            nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(handle)),
            nvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
            nvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy.lower()),
        ]
        say([nvml.nvmlDeviceGetIndex(one) for one in found])
        """,
    )

    assert seen == [1, 1, 1, 1]


def test_sensors_answer_what_was_set(node: SimulatedNode) -> None:
    """Temperature, use and memory of `simulate` arrive in a running program's next call."""
    node.use(1, memory_mib=337, gpu_percent=30)
    node.temperature(1, 71)

    seen = run(
        node,
        """
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(1)
        rates = nvml.nvmlDeviceGetUtilizationRates(card)
        say([
            nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
            rates.gpu,
            nvml.nvmlDeviceGetMemoryInfo(card).used // MIB,
            nvml.nvmlDeviceGetPowerManagementLimit(card),
            nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetEccMode(card),
            nvml.nvmlDeviceGetCudaComputeCapability(card),
            error_of(nvml.nvmlDeviceGetFanSpeed, card),
            error_of(nvml.nvmlDeviceGetMigMode, card),
        ])
        """,
    )

    assert seen == [71, 30, 337, 300_000, 1530, [1, 1], [7, 0], 3, 3]


def test_a_container_sees_only_the_cards_it_was_given(node: SimulatedNode) -> None:
    """NVIDIA_VISIBLE_DEVICES does in a simulated container what the NVIDIA runtime does."""
    second = node.view().cards[1].uuid

    seen = run(
        node,
        """
        nvml.nvmlInit()
        say([nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
             for index in range(nvml.nvmlDeviceGetCount())])
        """,
        NVIDIA_VISIBLE_DEVICES=second,
    )

    assert seen == [second]


def test_cards_that_mounts_name_are_all_seen(node: SimulatedNode, tmp_path: Path) -> None:
    """As in the NVIDIA runtime's volume-mounts: the variable is a directory of UUIDs."""
    first, second, *_ = (card.uuid for card in node.view().cards)
    for name in (first, second):
        (tmp_path / name).touch()

    seen = run(
        node,
        """
        nvml.nvmlInit()
        say([nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
             for index in range(nvml.nvmlDeviceGetCount())])
        """,
        NVIDIA_VISIBLE_DEVICES=str(tmp_path),
    )

    assert seen == [first, second]


def test_a_container_of_one_instance_sees_it_alone_below_its_card(make_node: MakeNode) -> None:
    """R-210: NVML counts the container's instances from 0, and knows no other by its UUID."""
    node = make_node("a100-mig")
    cards = node.view().cards
    given, other = (instance.uuid for instance in cards[1].instances[2:4])

    seen = run(
        node,
        f"""
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        first = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
        say([nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetUUID(card), nvml.nvmlDeviceGetUUID(first),
             error_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, card, 1),
             error_of(nvml.nvmlDeviceGetHandleByUUID, {other!r})])
        """,
        NVIDIA_VISIBLE_DEVICES=given,
    )

    assert seen == [1, cards[1].uuid, given, 6, 6]
