"""CUDA, NVML and nvidia-smi show one picture of the slice, and never a negative number."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tests.nvidia_smi import NvidiaSmi
from tests.simulator.test_nvidia_smi import downloaded as downloaded
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, SLICE, Box


def test_all_views_agree(box: Box) -> None:
    """Within 2 MiB; here exactly (R-116)."""
    program = box.start()
    assert program(f"alloc 1 {97 * MIB}") == [0]
    _, free, total = program("info")
    used = total - free

    assert total == SLICE
    assert program("total") == [0, SLICE]
    assert program("nvml") == [0, SLICE, used, free]
    assert program("nvml2") == [0, SLICE, used, free, 0]
    for version in (1, 2, 3):
        assert program_list(box, f"processes {version}") == {program.pid: used}


@pytest.mark.parametrize("core_percent", [None, 30])
def test_what_is_shown_free_while_graphs_are_recorded_can_be_had(
    make_box: MakeBox, core_percent: int | None
) -> None:
    """Seen in HAMi-core 181: vLLM's profiling of graphs ran out of memory it was shown."""
    box = make_box()
    box.allow(SLICE, core_percent)
    ran = box.run("profiling")
    before, by_cuda, by_nvml, *results = map(int, ran.stdout.split())

    assert 1500 < before < SLICE // MIB
    assert by_cuda == by_nvml == 4 * 64
    assert results == [0, 0, 0, OUT_OF_MEMORY, 0]


def program_list(box: Box, line: str) -> dict[int, int]:
    """NVML's processes as another process of the container sees them."""
    words = box.start(ready=False)
    words.tell(line)
    result, *pairs = words.words()
    assert result == "0"
    return {int(pid): int(used) for pid, used in (pair.split(":") for pair in pairs)}


def test_looking_takes_no_place(box: Box) -> None:
    """nvidia-smi never starts CUDA and holds no slot."""
    box.start()
    assert program_list(box, "processes 3")
    region = Region(box.root / "state" / "region")

    assert region.slot(1).state == 0
    region.close()


def test_another_container_is_not_listed(make_box: MakeBox) -> None:
    """Neither its processes nor its memory (R-116)."""
    one, other = make_box("one"), make_box("other")
    one.allow(SLICE)
    other.allow(SLICE)
    busy = one.start()
    assert busy(f"alloc 1 {1000 * MIB}") == [0]

    assert program_list(other, "processes 3") == {}
    assert other.start(ready=False)("nvml") == [0, SLICE, 0, SLICE]


def test_free_is_the_smaller_of_slice_and_card(make_box: MakeBox) -> None:
    """Where the card itself is fuller than the slice."""
    greedy, modest = make_box("greedy"), make_box("modest")
    greedy.allow(None)
    modest.allow(SLICE)
    program = greedy.start()
    looker = modest.start()
    _, free, _ = program("info")
    assert program(f"alloc 1 {free - 100 * MIB}") == [0]
    _, shown, _ = looker("info")

    assert shown == 100 * MIB
    assert looker("nvml")[3] == 100 * MIB


def test_more_than_the_slice_never_wraps(make_box: MakeBox) -> None:
    """Seen elsewhere: free = limit - used was unsigned, and showed 17592186044134 MiB."""
    box = make_box()
    box.allow(100 * MIB)
    program = box.start()

    assert program("nvml") == [0, 100 * MIB, 100 * MIB, 0]
    assert program("info") == [0, 0, 100 * MIB]


def test_a_null_pointer_is_no_crash(box: Box) -> None:
    """Seen elsewhere: OptiX asks for the total alone, with NULL for free."""
    program = box.start()

    assert program("info_null") == [0, SLICE]


def test_the_dead_are_not_shown(box: Box) -> None:
    """What a killed process held is free at the next look."""
    victim = box.start()
    assert victim("alloc 1 1000000") == [0]
    victim.kill()

    assert box.start(ready=False)("nvml") == [0, SLICE, 0, SLICE]


def smi(nvidia_smi: Path, box: Box, *words: str) -> str:
    """What the real nvidia-smi prints in the container."""
    ran = subprocess.run(
        [nvidia_smi, *words], env=box.environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.long
def test_nvidia_smi_shows_the_proof(downloaded: NvidiaSmi, make_box: MakeBox) -> None:
    """A process that holds 337 MiB in a 2-unit slice: 337MiB / 2154MiB, by every way it asks."""
    box = make_box(driver=downloaded.driver_version)
    box.allow(SLICE)
    program = box.start()
    assert program(f"alloc 1 {97 * MIB}") == [0]  # 240 MiB are the context's
    table = smi(downloaded.path, box)
    total = smi(downloaded.path, box, "--query-gpu=memory.total", "--format=csv,noheader")
    apps = smi(
        downloaded.path, box, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"
    )

    assert "337MiB /  2154MiB" in table
    assert re.search(rf"\|\s+0\s+N/A\s+N/A\s+{program.pid}\s+C\s.*client\s+337MiB \|", table)
    assert total.splitlines()[0] == "2154 MiB"
    assert apps.strip() == f"{program.pid}, 337 MiB"


def test_nvidia_smi_shows_no_neighbour(downloaded: NvidiaSmi, make_box: MakeBox) -> None:
    """Its private table is answered from the container's own books."""
    driver = downloaded.driver_version
    one, other = make_box("one", driver=driver), make_box("other", driver=driver)
    one.allow(SLICE)
    other.allow(SLICE)
    busy = one.start()
    table = smi(downloaded.path, other)

    assert str(busy.pid) not in table
    assert "No running processes found" in table


def selftest(box: Box, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs gpu-selftest in the container."""
    return subprocess.run(
        [box.node.drivers / "gpu-selftest"],
        env=box.environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_selftest_is_content_where_the_cap_holds(box: Box) -> None:
    """Exit code 0, and every line is ok."""
    ran = selftest(box)

    assert ran.returncode == 0, ran.stdout
    assert all(line.startswith("ok") for line in ran.stdout.splitlines())


def test_the_selftest_says_that_memory_of_malloc_is_not_capped(box: Box) -> None:
    """With HMM and ATS it can migrate to the card, where neither the cap nor NVML counts it."""
    box.node.change("cards.0.pageable_memory=1")
    ran = selftest(box)

    assert ran.returncode == 0, ran.stdout
    assert "not capped" in ran.stdout
    assert "HMM or ATS" in ran.stdout


def test_the_selftest_names_the_view_that_disagrees(box: Box) -> None:
    """Without the library: the exit code says no, the lines say where."""
    ran = selftest(box, LD_PRELOAD="")

    assert ran.returncode == 1
    assert "FAILED" in ran.stdout
    assert "cuDeviceTotalMem: 16160 MiB of 2154 MiB" in ran.stdout


def test_the_selftest_is_content_with_a_card_smaller_than_the_limit(box: Box) -> None:
    """Nothing is amiss: the card itself is the bound."""
    box.allow(20000 * MIB)
    ran = selftest(box)

    assert ran.returncode == 0, ran.stdout
    assert "cuDeviceTotalMem: 16160 MiB of 20000 MiB" in ran.stdout


@pytest.mark.parametrize(("memory_bytes", "code"), [(SLICE, 0), (None, 3)])
def test_the_selftest_says_that_it_does_not_check_compute(
    box: Box, memory_bytes: int | None, code: int
) -> None:
    """Where that is the only cap it cannot tell whether it holds."""
    box.allow(memory_bytes, core_percent=30)
    ran = selftest(box)

    assert ran.returncode == code, ran.stdout
    assert "not checked" in ran.stdout
    assert "compute: 30 %, policy fixed" in ran.stdout


def test_the_selftest_names_the_compute_policy(box: Box) -> None:
    """From inside a container nothing else says whether an idle card may be had whole."""
    uuid = box.node.uuids[0]
    box.write(f"version=1\nslice=a\npolicy=work-conserving\ndevice={uuid} core_percent=30\n")

    assert "compute: 30 %, policy work-conserving" in selftest(box).stdout


def test_the_selftest_says_when_there_is_no_slice(box: Box) -> None:
    """No limits: nothing to test, and not 0."""
    (box.root / "config" / "limits").unlink()

    assert selftest(box).returncode == 2
