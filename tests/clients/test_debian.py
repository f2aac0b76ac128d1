"""Programs of Debian that show or use cards do in a slice what they do on a card.

They are downloaded for the run and never stored; where that is impossible the tests are skipped
and say why.
"""

import os
import pty
import re
import select
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.clients.conftest import SLICE_MIB, Client, native_variables, output
from tests.nvidia_smi import NvidiaSmi, download, unpack, unpacking
from tools.harness.isolation.box import Box

pytestmark = pytest.mark.long

SECONDS = 60
_CONTROLS = re.compile(r"\x1b[\[(][0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nvtop and hashcat, with the library that hashcat needs; removed after the module."""
    with unpacking(tmp_path_factory) as place:
        unpack(place, "nvtop", "hashcat", "libminizip1", "hashcat-data")
        yield place


@pytest.fixture(scope="module")
def nvidia_smi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaSmi]:
    """NVIDIA's program, removed after the module."""
    with unpacking(tmp_path_factory) as place:
        yield download(place)


def _screen(program: Path, environment: Mapping[str, str], wanted: str) -> str:
    """What a program for a terminal has drawn once `wanted` is there, without the controls."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(program, [str(program)], {**environment, "TERM": "xterm"})  # noqa: S606
    drawn, until = "", time.monotonic() + SECONDS
    try:
        while wanted not in drawn and time.monotonic() < until:
            if select.select([terminal], [], [], 1)[0]:
                drawn += _CONTROLS.sub("", os.read(terminal, 65536).decode(errors="replace"))
    except OSError:
        pass  # it has ended
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
    return drawn


def test_nvtop_shows_the_slice(box: Box, unpacked: Path) -> None:
    """The card's name, and the slice's memory for the card's."""
    nvtop = unpacked / "usr/bin/nvtop"
    box.variables["HOME"] = str(box.root)
    alone = _screen(nvtop, native_variables(box.environment), "/140.401Gi]")
    sliced = _screen(nvtop, box.environment, f"/{SLICE_MIB / 1024:.3f}Gi]")

    assert "[NVIDIA H200]" in alone
    assert "/140.401Gi]" in alone
    assert "[NVIDIA H200]" in sliced
    assert f"/{SLICE_MIB / 1024:.3f}Gi]" in sliced


@pytest.mark.parametrize("view", ["dmon", "pmon"])
def test_nvidia_smi_watches_in_a_slice_too(
    make_box: Callable[[str], Box], nvidia_smi: NvidiaSmi, view: str
) -> None:
    """One round of the card's figures, and of the slice's processes: of a slice without any, a dash."""
    box = make_box(nvidia_smi.driver_version)
    words = (nvidia_smi.path, view, "-c", "1")
    alone = output(words, native_variables(box.environment))
    card = {"dmon": r"^ +0 +\d+ +\d+", "pmon": r"^ +0 +- +- "}[view]

    assert re.search(card, alone, re.MULTILINE), alone
    assert output(words, box.environment) == alone


def test_hashcat_measures_in_a_slice(client: Client, unpacked: Path, tmp_path: Path) -> None:
    """It compiles with NVRTC, links and loads with the driver, and launches until it has a speed.

    No kernel computes here, so its self-test is left out.
    """
    home = unpacked / "usr/share/hashcat"  # where it looks for its kernels' sources
    program = shutil.copy(unpacked / "usr/bin/hashcat", home)
    (compiler,) = client.python.parent.parent.glob("lib/*/site-packages/nvidia/*/lib/libnvrtc.so.*")
    (tmp_path / "libnvrtc.so").symlink_to(compiler)
    libraries = [
        client.box.node.drivers,
        tmp_path,
        compiler.parent,
        unpacked / "usr/lib/x86_64-linux-gnu",
    ]
    words = (program, "-b", "-m", "0", "--self-test-disable")
    variables = {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}

    for said, memory_mib in (
        (client.native(*words, **variables), 143771),
        (client.sliced(*words, **variables), SLICE_MIB),
    ):
        assert f"/{memory_mib} MB" in said
        assert re.search(r"Speed\.#1\.+: +\d", said), said
