"""The real nvidia-smi, which knows nothing of us, prints a simulated node.

The binary is NVIDIA's: it is downloaded from Debian's non-free component for the run and
never stored. Where that is impossible the tests are skipped and say why.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.nvidia_smi import NvidiaSmi, download, unpacking
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import environment, hear, started

from gpu_device_plugin.domain.nvidia.mig_devices import Profile, cut_command
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaSmi]:
    """The package, removed after the module."""
    with unpacking(tmp_path_factory) as place:
        yield download(place)


@pytest.fixture(scope="module")
def nvidia_smi(downloaded: NvidiaSmi) -> Path:
    """The program."""
    return downloaded.path


_OCCUPY = """
control("gpusim_occupy", {card}, ctypes.c_uint32(0xFFFFFFFF), ctypes.c_uint64(337 * MIB))
say(os.getpid())
time.sleep(600)
"""


def _run(nvidia_smi: Path, node: SimulatedNode, *arguments: str) -> str:
    told = subprocess.run(
        [nvidia_smi, *arguments], env=environment(node), capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.fixture
def v100(make_node: MakeNode, downloaded: NvidiaSmi) -> SimulatedNode:
    """Four V100 under the driver of this nvidia-smi."""
    return make_node("v100", driver_version=downloaded.driver_version)


def test_its_table_shows_the_cards(
    nvidia_smi: Path, downloaded: NvidiaSmi, v100: SimulatedNode
) -> None:
    """Memory, use and temperature of each; nothing it cannot read (ERR!)."""
    v100.use(0, memory_mib=1, gpu_percent=30)
    v100.temperature(0, 41)

    table = _run(nvidia_smi, v100)

    assert f"Driver Version: {downloaded.driver_version}" in table
    assert f"CUDA Version: {v100.view().cuda_version}" in table
    assert table.count("Tesla V100-SXM2-16GB") == 4
    first = next(line for line in table.splitlines() if "MiB / 16160MiB" in line)
    assert re.search(r"\b41C\b.*\b1MiB / 16160MiB\b.*\b30%\s+Default", first)
    assert "ERR!" not in table
    assert "No running processes found" in table


def test_its_table_shows_who_uses_a_card(nvidia_smi: Path, v100: SimulatedNode) -> None:
    """A process, by pid and memory, in the default table and in the query."""
    with started(v100, _OCCUPY.format(card=2)) as program:
        pid = hear(program)

        table = _run(nvidia_smi, v100)
        query = "--query-compute-apps=pid,used_memory"
        apps = _run(nvidia_smi, v100, query, "--format=csv,noheader")

    assert re.search(rf"\|\s+2\s+N/A\s+N/A\s+{pid}\s+C\s.*\s337MiB \|", table)
    assert apps.strip() == f"{pid}, 337 MiB"


def test_its_list_and_its_queries_agree(nvidia_smi: Path, v100: SimulatedNode) -> None:
    """`-L` names every card; memory.total is what the profile says."""
    cards = v100.view().cards

    listed = _run(nvidia_smi, v100, "-L")
    total = _run(nvidia_smi, v100, "--query-gpu=memory.total", "--format=csv,noheader")

    assert listed.splitlines() == [
        f"GPU {card.slot}: {card.name} (UUID: {card.uuid})" for card in cards
    ]
    assert total.splitlines() == ["16160 MiB"] * 4


def test_its_long_report_ends_well(nvidia_smi: Path, v100: SimulatedNode) -> None:
    """`-q` asks for nearly everything, and reaches the last section of the last card."""
    report = _run(nvidia_smi, v100, "-q")

    assert report.count("Product Name                          : Tesla V100-SXM2-16GB") == 4
    assert report.count("    Processes ") == 4


def test_it_lists_mig_slices(nvidia_smi: Path, downloaded: NvidiaSmi, make_node: MakeNode) -> None:
    """`-L` shows seven slices below each card, the table their memory."""
    node = make_node("a100-pcie-mig", cards=2, driver_version=downloaded.driver_version)

    listed = _run(nvidia_smi, node, "-L")
    table = _run(nvidia_smi, node)

    for card in node.view().cards:
        assert f": NVIDIA A100 40GB PCIe (UUID: {card.uuid})" in listed
        for number, instance in enumerate(card.instances):
            assert re.search(rf"MIG 1g\.5gb\s+Device\s+{number}: \(UUID: {instance.uuid}\)", listed)
    assert len(re.findall(r"0MiB /\s+4864MiB", table)) == 14


@pytest.mark.parametrize("profile", ["a100", "a100-mig"])
def test_it_cuts_a_card_by_the_commands_that_the_agent_tells(
    profile: str, nvidia_smi: Path, downloaded: NvidiaSmi, make_node: MakeNode
) -> None:
    """Also one that is cut already."""
    node = make_node(profile, driver_version=downloaded.driver_version)
    told = cut_command(0, Profile("3g.20gb", 3, 4, 2), is_mig=profile == "a100-mig")
    path = {"PATH": f"{nvidia_smi.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", told], env={**environment(node), **path}, check=True)

    assert [each.profile for each in node.view().cards[0].instances] == ["3g.20gb"] * 2


def test_it_names_the_lost_card(nvidia_smi: Path, v100: SimulatedNode) -> None:
    """The others are shown; it says itself which one cannot be reached."""
    v100.lose(1)
    told = subprocess.run(
        [nvidia_smi, "-L"],
        env=environment(v100) | {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
    )

    assert "lost" in told.stdout.lower() + told.stderr.lower()
    assert v100.view().cards[0].uuid in told.stdout


def test_its_monitors_show_cards_and_processes(nvidia_smi: Path, v100: SimulatedNode) -> None:
    """Of dmon and pmon one round: figures of each card, the process with its memory."""
    with started(v100, _OCCUPY.format(card=1)) as program:
        pid = hear(program)
        cards = _run(nvidia_smi, v100, "dmon", "-c", "1")
        processes = _run(nvidia_smi, v100, "pmon", "-c", "1", "-s", "m")

    assert re.findall(r"^ +(\d) +\d+ +\d+", cards, re.MULTILINE) == ["0", "1", "2", "3"]
    assert re.search(rf"^ +1 +{pid} +C +337 ", processes, re.MULTILINE), processes
    assert re.search(r"^ +0 +- +- ", processes, re.MULTILINE), processes
