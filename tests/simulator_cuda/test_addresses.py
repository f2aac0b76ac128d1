"""cuGetProcAddress gives each program the ABI that the driver of that version would."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import NATIVE, ROOT, Node

ENTRY = re.compile(r"^ENTRY\((\w+), (\d+), (\w+), (\w+)\)$", re.MULTILINE)
SYMBOLS = ENTRY.findall((ROOT / "src/simulator/cuda/symbols.def").read_text(encoding="utf-8"))
SUCCESS, INVALID_VALUE = 0, 1
FOUND, NOT_FOUND, TOO_OLD = 0, 1, 2
DEFAULT, LEGACY, PER_THREAD = "0", "1", "2"


@pytest.fixture
def ask(node: Node, compiled: Callable[[str], Path]) -> Callable[..., tuple[int, int, str]]:
    """Asks a driver of a version for a name: result, status, name behind the address."""
    program = compiled("addresses")

    def ask_driver(driver: int, name: str, version: int, flags: str) -> tuple[int, int, str]:
        told = node.run(
            program, name, str(version), flags, GPU_SIMULATOR_CUDA_VERSION=str(driver)
        ).stdout.split()
        return int(told[0]), int(told[1]), told[2]

    return ask_driver


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param((12090, "cuMemAlloc", 2000, DEFAULT), "cuMemAlloc", id="first ABI"),
        pytest.param((12090, "cuMemAlloc", 3010, DEFAULT), "cuMemAlloc", id="before the second"),
        pytest.param((12090, "cuMemAlloc", 12000, DEFAULT), "cuMemAlloc_v2", id="second ABI"),
        pytest.param((12090, "cuCtxCreate", 3020, DEFAULT), "cuCtxCreate_v2", id="context 2"),
        pytest.param((12090, "cuCtxCreate", 11040, DEFAULT), "cuCtxCreate_v3", id="context 3"),
        pytest.param((12090, "cuCtxCreate", 12050, DEFAULT), "cuCtxCreate_v4", id="context 4"),
        pytest.param(
            (12090, "cuLaunchKernel", 12000, PER_THREAD), "cuLaunchKernel_ptsz", id="per thread"
        ),
        pytest.param((12090, "cuLaunchKernel", 12000, LEGACY), "cuLaunchKernel", id="legacy"),
        pytest.param(
            (12090, "cuLaunchKernel", 6000, PER_THREAD), "cuLaunchKernel", id="per thread too early"
        ),
        pytest.param((12090, "cuInit", 12000, PER_THREAD), "cuInit", id="no per-thread version"),
        pytest.param(
            (13050, "cuCtxGetDevice", 13000, DEFAULT), "cuCtxGetDevice_v2", id="CUDA 13 re-mapping"
        ),
        pytest.param(
            (13050, "cuCtxGetDevice", 12090, DEFAULT),
            "cuCtxGetDevice",
            id="old program, new driver",
        ),
        pytest.param(
            (11040, "cuGetProcAddress", 11040, DEFAULT),
            "cuGetProcAddress",
            id="itself, 4 arguments",
        ),
        pytest.param(
            (12090, "cuGetProcAddress", 12000, DEFAULT), "cuGetProcAddress_v2", id="5 arguments"
        ),
    ],
)
def test_a_name_and_a_version_give_one_abi(
    ask: Callable[..., tuple[int, int, str]], question: tuple[int, str, int, str], expected: str
) -> None:
    """The newest that is not newer than the program."""
    assert ask(*question) == (SUCCESS, FOUND, expected)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param(
            (12090, "cuNoSuchThing", 12000, DEFAULT), (SUCCESS, NOT_FOUND, "-"), id="unknown"
        ),
        pytest.param(
            (12090, "cuMemAlloc_v2", 12000, DEFAULT), (SUCCESS, NOT_FOUND, "-"), id="with a suffix"
        ),
        pytest.param(
            (12090, "cuMemAllocAsync", 11010, DEFAULT),
            (SUCCESS, TOO_OLD, "-"),
            id="program too old",
        ),
        pytest.param(
            (11040, "cuLibraryLoadData", 11040, DEFAULT),
            (SUCCESS, NOT_FOUND, "-"),
            id="driver too old",
        ),
        pytest.param(
            (11040, "cuMemAlloc", 12000, DEFAULT),
            (SUCCESS, FOUND, "cuMemAlloc_v2"),
            id="program newer than driver",
        ),
        pytest.param(
            (11040, "cuCtxCreate", 13000, DEFAULT),
            (SUCCESS, FOUND, "cuCtxCreate_v3"),
            id="the driver's newest",
        ),
    ],
)
def test_what_is_not_there_is_said_exactly(
    ask: Callable[..., tuple[int, int, str]],
    question: tuple[int, str, int, str],
    expected: tuple[int, int, str],
) -> None:
    """The status tells a name nobody knows from one that came later."""
    assert ask(*question) == expected


def test_the_eldest_lookup_has_no_status_and_fails_instead(
    node: Node, compiled: Callable[[str], Path]
) -> None:
    """That of CUDA 11.3 has four arguments."""
    program = compiled("addresses")

    assert node.run(program, "v1", "cuMemAlloc", "11030").stdout == "0 cuMemAlloc_v2\n"
    assert node.run(program, "v1", "cuNoSuchThing", "11030").stdout == "500 -\n"


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        pytest.param("", "12090 1 1 1 1", id="the node's"),
        pytest.param("drivers/12.9", "12090 1 1 1 0", id="12.9"),
        pytest.param("drivers/11.4", "11040 1 0 0 0", id="11.4"),
    ],
)
def test_an_old_driver_lacks_what_came_later(
    node: Node, compiled: Callable[[str], Path], driver: str, expected: str
) -> None:
    """Also for dlsym, which no list of versions stands behind."""
    names = ("cuMemAllocAsync", "cuGetProcAddress_v2", "cuLibraryLoadData", "cuCtxGetDevice_v2")

    told = node.run(*(compiled("old_driver"), "has", *names), LD_LIBRARY_PATH=str(NATIVE / driver))

    assert told.stdout.strip() == expected, told.stderr


def test_every_listed_function_is_exported_and_nothing_else_is() -> None:
    """The list is the interface: what it names can be linked, what it does not cannot."""
    exported = {
        line.split()[-1]
        for line in subprocess.run(
            ["nm", "-D", "--defined-only", str(NATIVE / "libcuda.so.1")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    }
    listed = {symbol for _, _, _, symbol in SYMBOLS}

    clock = {
        f"gpusim_{each}"
        for each in ("now_ns", "sleep_ns", "spin_ns", "step_together", "step_apart")
    }
    assert exported == listed | clock | {"gpusim_unknown_context"}


def test_the_list_is_sorted_as_the_search_expects() -> None:
    """Names are found by halving."""
    keys = [(name, int(version)) for name, version, _, _ in SYMBOLS]

    assert keys == sorted(keys)


def test_the_list_agrees_with_nvidias_own() -> None:
    """Every typedef of cudaTypedefs.h, in the version that is installed, has its line."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "src/find_header.py"), "cudaTypedefs.h"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("cudaTypedefs.h is missing: install the build dependencies of pyproject.toml")
    text = (Path(found.stdout.strip()) / "cudaTypedefs.h").read_text(encoding="utf-8")
    theirs = {
        (name, version, "PER_THREAD" if suffix else "LEGACY")
        for name, version, suffix in re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", text)
    }
    ours = {(name, version, stream) for name, version, stream, _ in SYMBOLS}

    assert theirs - ours == set()
