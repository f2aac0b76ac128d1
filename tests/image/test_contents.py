"""The image holds the agent for its machine, and nothing that builds, installs or belongs to others."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.image.conftest import Unpacked

pytestmark = pytest.mark.long

MOST_BYTES = 90 * 10**6
USER = "65532:65532"
# e_machine of an ELF file's head.
MACHINES = {"amd64": 62, "arm64": 183}
TOOLS = frozenset(
    {"apt", "apt-get", "dpkg", "rpm", "conda", "pip", "pip3", "uv", "curl", "wget"}
    | {"ar", "as", "cc", "clang", "cmake", "g++", "gcc", "go", "ld", "make", "ninja", "zig"}
    | {"sh", "bash", "dash", "busybox", "perl"}
)
BUILDERS = {"pip", "setuptools", "wheel", "uv", "ziglang", "cmake", "ninja", "scikit_build_core"}
NATIVE = "usr/local/lib/python3.11/dist-packages/gpu_device_plugin/native"
NATIVE_FILES = {
    "libgpuslice.so",
    "libnvidia-ml.so.1",
    "libcuda.so.1",
    "gpu-selftest",
    "gpu-limit-hook",
}
GLIBC_FLOOR = (2, 17)


def elf_files(image: Unpacked) -> dict[str, bytes]:
    """Head of every ELF file, by path."""
    heads = {}
    for name, member in image.members.items():
        if member.isfile():
            with (image.root / name).open("rb") as file:
                head = file.read(20)
            if head.startswith(b"\x7fELF"):
                heads[name] = head
    return heads


def test_it_is_small(image: Unpacked) -> None:
    assert sum(image.layer_bytes) <= MOST_BYTES


def test_it_says_what_it_is_and_starts_as_nobody(image: Unpacked) -> None:
    assert image.configuration["architecture"] == image.architecture
    assert image.configuration["os"] == "linux"
    assert image.configuration["config"]["User"] == USER
    assert image.configuration["config"]["Entrypoint"] == ["gpu-device-plugin"]


def test_every_program_and_library_is_for_its_machine(image: Unpacked) -> None:
    heads = elf_files(image)
    machines = {name: int.from_bytes(head[18:20], "little") for name, head in heads.items()}
    assert len(machines) > 100
    wrong = {name: m for name, m in machines.items() if m != MACHINES[image.architecture]}
    assert wrong == {}


def test_every_library_that_one_needs_is_there(image: Unpacked) -> None:
    """No dlopen fails for a library that was left out of the root file system."""
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf (apt install binutils)")
    files = [str(image.root / name) for name in elf_files(image)]
    told = subprocess.run([readelf, "-d", *files], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", told.stdout))
    present = {Path(name).name for name in image.members}
    assert "libc.so.6" in needed
    assert needed - present == set()


def test_nothing_in_it_builds_installs_or_is_a_shell(image: Unpacked) -> None:
    programs = {
        name
        for name, member in image.members.items()
        if Path(name).name in TOOLS and not member.isdir()
    }
    installed = {Path(name).name.partition("-")[0] for name in distributions(image)}
    assert programs == set()
    assert installed & BUILDERS == set()
    assert not [name for name in image.members if "ensurepip" in name]


def test_our_libraries_are_there_and_load_with_an_old_c_library(image: Unpacked) -> None:
    names = {Path(name).name for name in image.members if Path(name).parent == Path(NATIVE)}
    assert names == NATIVE_FILES
    for name in NATIVE_FILES:
        content = (image.root / NATIVE / name).read_bytes()
        asked = {(int(a), int(b)) for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
        assert asked
        assert max(asked) <= GLIBC_FLOOR, name


def test_nothing_in_it_is_of_the_driver_or_of_a_data_set(image: Unpacked) -> None:
    """What is called like the driver is our simulated one."""
    called = re.compile(r"^(lib(cuda|nvidia-ml|nvidia).*\.so|nvidia-smi|nvidia-(ctk|container).*)")
    found = [name for name in image.members if called.match(Path(name).name)]
    assert {str(Path(name).parent) for name in found} == {NATIVE}
    for name in found:
        assert b"GPU_SIMULATOR_STATE" in (image.root / name).read_bytes(), name
    assert not [name for name in image.members if re.search(r"openb(?!las)", name)]


def test_all_of_it_is_roots_and_gives_nobody_more_rights(image: Unpacked) -> None:
    assert {(member.uid, member.gid) for member in image.members.values()} == {(0, 0)}
    open_to_others = {
        name
        for name, member in image.members.items()
        if not member.issym() and member.mode & 0o6022
    }
    assert open_to_others == {"tmp", "var/tmp"}


def test_modules_are_compiled_for_a_read_only_root(image: Unpacked) -> None:
    """Else every start of the agent would compile them again."""
    package = "usr/local/lib/python3.11/dist-packages/gpu_device_plugin"
    assert f"{package}/cli/__pycache__/main.cpython-311.pyc" in image.members
    assert "usr/lib/python3.11/asyncio/__pycache__/events.cpython-311.pyc" in image.members


def distributions(image: Unpacked) -> list[str]:
    """The directories that describe installed Python distributions."""
    return [
        name
        for name, member in image.members.items()
        if name.endswith(".dist-info") and member.isdir()
    ]
