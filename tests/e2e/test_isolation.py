"""The half that the user feels: caps and an honest nvidia-smi in containers of a real cluster.

NVIDIA's own nvidia-smi is downloaded for the run; where that is impossible these tests are
skipped and say why.
"""

import re

from tests.e2e.conftest import Start
from tests.e2e.tenants import (
    INSIDE,
    MIB,
    OUT_OF_MEMORY,
    SLICE_MIB,
    check_capped,
    is_about,
    row,
    same_card,
)
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.waiting import wait_for

METRIC = "gpu_device_plugin_slice"


def test_nvidia_smi_shows_what_the_source_shows(start: Start) -> None:
    """2 units and 30 % of a V100, 337 MiB held: `337MiB / 2154MiB` and `30%` (R-115)."""
    tenant = start("shown")
    tenant.open()
    tenant.hold(337)
    table = tenant.nvidia_smi()
    query = "--query-gpu=memory.total,memory.used"
    figures = tenant.nvidia_smi(query, "--format=csv,noheader")
    tenant.work()

    assert row(table)["memory"] == f"337MiB / {SLICE_MIB}MiB", table
    assert re.search(r"\|\s+0\s+N/A\s+N/A\s+\d+\s+C\s+\S*client\s+337MiB \|", table), table
    assert figures.strip() == f"{SLICE_MIB} MiB, 337 MiB"
    wait_for("the card is at 30 %", lambda: is_about(int(row(tenant.nvidia_smi())["percent"]), 30))


def test_who_asks_for_more_is_refused_while_the_neighbour_goes_on(
    isolating: Agent, start: Start
) -> None:
    """CUDA's own out of memory, in one container; each sees its own figures on the one card (R-506)."""
    greedy, neighbour = start("greedy"), start("neighbour")
    same_card(isolating, greedy, neighbour)
    for tenant in (greedy, neighbour):
        tenant.open()
    neighbour.hold(337)
    greedy.hold(SLICE_MIB)

    assert greedy.told("info") == [0, 0, SLICE_MIB * MIB]
    assert greedy.told("alloc 1 1048576") == [OUT_OF_MEMORY]
    assert neighbour.told("alloc 1 1048576") == [0]
    assert row(greedy.nvidia_smi())["memory"] == f"{SLICE_MIB}MiB / {SLICE_MIB}MiB"
    assert row(neighbour.nvidia_smi())["memory"] == f"338MiB / {SLICE_MIB}MiB"
    assert neighbour.told("launch 1000000") == [0]
    assert neighbour.told("sync") == [0]
    assert greedy.told("free 0") == [0]
    assert greedy.told("alloc 1 1048576") == [0]


def test_three_jobs_of_thirty_percent_show_ninety(isolating: Agent, start: Start) -> None:
    """Utilisation is the card's; the agent's metrics say who had how much of it (R-118)."""
    jobs = [start(f"job-{number}") for number in range(3)]
    same_card(isolating, *jobs)
    for job in jobs:
        job.open()
        job.work()

    def shown() -> bool:
        return is_about(int(row(jobs[0].nvidia_smi())["percent"]), 90)

    def told() -> bool:
        shares = isolating.samples(f"{METRIC}_core_used_ratio")
        return len(shares) == 3 and all(is_about(share, 0.3) for share in shares.values())

    wait_for("the card is at 90 %", shown, 60, 0.5)
    wait_for("each has 30 %", told, 60, 0.5)


def test_a_process_started_by_exec_is_capped_as_well(isolating: Agent, start: Start) -> None:
    """It counts with those that were there, and ends with its memory."""
    tenant = start("entered")
    tenant.open()
    tenant.hold(337)

    check_capped(tenant)
    _, free, _ = tenant.once("init", "retain", "info")[2]
    assert free < (SLICE_MIB - 337) * MIB
    assert row(tenant.nvidia_smi())["memory"] == f"337MiB / {SLICE_MIB}MiB"

    def told() -> bool:
        return isolating.samples(f"{METRIC}_refused_total") == {"entered": 1.0}

    wait_for("the refusal is counted", told, 30, 0.5)


def test_gpu_selftest_says_whether_the_cap_is_effective(start: Start) -> None:
    """It exits 0 in a slice, and says so where a pod's list puts libc before the library."""
    tenant = start("tested")
    told = tenant.run(f"{INSIDE}/gpu-selftest")

    assert "ok " in told
    assert "FAILED" not in told
    around = tenant.run("sh", "-c", f"LD_PRELOAD=libc.so.6 {INSIDE}/gpu-selftest 2>&1 || true")
    assert "no GPU for this container: LD_PRELOAD names the driver or the C library" in around
    assert "FAILED" in around
