"""What cannot be read or kept exactly closes the container; where no agent has been nothing changes."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.harness.isolation.box import (
    MIB,
    NO_PERMISSION,
    NOT_READY,
    PATIENCE_SECONDS,
    SLICE,
    Box,
    Node,
)

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"
HEAD = "version=1\nslice=a\n"


def init(box: Box, limits: str | bytes) -> tuple[list[int], str]:
    """CuInit's answer under these limits, and what stderr said."""
    box.write(limits)
    program = box.start(ready=False)
    return program("init"), program.end()


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(HEAD, id="no card"),
        pytest.param(f"# made by the agent\n\n{HEAD}", id="comment and blank line"),
        pytest.param(f"{HEAD}policy=fixed", id="no newline at the end"),
        pytest.param(f"{HEAD}policy=work-conserving\n", id="the other policy"),
        pytest.param(f"{HEAD}memory_enforcer=driver\n", id="the driver"),
        pytest.param(f"{HEAD}memory_enforcer=library\n", id="the library"),
        pytest.param(f"{HEAD}device={UUID.format(1)}\n", id="no cap of either kind"),
        pytest.param(f"{HEAD}device={UUID.format(1)} core_percent=1\n", id="compute only"),
        pytest.param(f"{HEAD}device={UUID.format(1)} memory_bytes=0\n", id="zero bytes"),
        pytest.param(f"{HEAD}device=MIG{UUID.format(1)[3:]} memory_bytes=7\n", id="MIG"),
    ],
)
def test_limits_are_understood(box: Box, limits: str) -> None:
    """The whole format."""
    assert init(box, limits) == ([0], "")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param("", "no version", id="empty"),
        pytest.param("version=1\n", "no slice", id="no slice"),
        pytest.param("slice=a\n", "no version", id="no version"),
        pytest.param("version=2\nslice=a\n", "unknown version", id="another version"),
        pytest.param("version=1\nversion=1\nslice=a\n", "version twice", id="version twice"),
        pytest.param("version=1\nslice=a\nslice=b\n", "slice twice", id="slice twice"),
        pytest.param("version=1\nslice=../b\n", "bad slice", id="a slice that is a path"),
        pytest.param("version=1\nslice=\n", "bad slice", id="empty slice"),
        pytest.param(f"{HEAD}revision=\n", "bad revision", id="no revision"),
        pytest.param(f"{HEAD}revision={2**32}\n", "bad revision", id="a revision too large"),
        pytest.param(f"{HEAD}revision=1\nrevision=2\n", "revision twice", id="revision twice"),
        pytest.param(f"{HEAD}policy=generous\n", "unknown policy", id="unknown policy"),
        *(
            pytest.param(
                f"{HEAD}policy={number}\n", "fixed (ACK's number 3)", id=f"policy {number}"
            )
            for number in range(6)
        ),
        pytest.param(f"{HEAD}memory_enforcer=me\n", "unknown enforcer", id="unknown enforcer"),
        pytest.param(f"{HEAD}color=red\n", "unknown key", id="unknown key"),
        pytest.param(f"{HEAD}nonsense\n", "no key=value", id="no pair"),
        pytest.param(f"{HEAD} policy=fixed\n", "unknown key", id="leading space"),
        pytest.param(f"{HEAD}policy=fixed\r\n", "unknown policy", id="carriage return"),
        pytest.param(f"{HEAD}device=0\n", "no GPU or MIG UUID", id="an index"),
        pytest.param(f"{HEAD}device={UUID.format(1)}0\n", "no GPU or MIG", id="too long"),
        pytest.param(
            f"{HEAD}device={UUID.format(1)}\ndevice={UUID.format(1)}\n", "twice", id="card twice"
        ),
        pytest.param(
            f"{HEAD}device={UUID.format('a')}\ndevice={UUID.format('A')}\n",
            "twice",
            id="card twice, in other letters",
        ),
        pytest.param(f"{HEAD}device={UUID.format(1)} cores=1\n", "unknown key", id="unknown pair"),
        pytest.param(
            f"{HEAD}device={UUID.format(1)} core_percent=1 core_percent=1\n",
            "twice",
            id="pair twice",
        ),
        *(
            pytest.param(
                f"{HEAD}device={UUID.format(1)} memory_bytes={text}\n",
                "decimal",
                id=f"bytes {text}",
            )
            for text in ("", "1M", "0x10", "-1", "+1", "1.0", "99999999999999999999", "\uff11")
        ),
        pytest.param(f"{HEAD}device={UUID.format(1)} core_percent=0\n", "1 to 100", id="0 %"),
        pytest.param(f"{HEAD}device={UUID.format(1)} core_percent=101\n", "1 to 100", id="101 %"),
        pytest.param(HEAD + "#" * 70000, "longer than", id="too long a file"),
        pytest.param(b"\x00\xff\x00", "no key=value", id="not text"),
    ],
)
def test_anything_else_closes(box: Box, limits: str | bytes, reason: str) -> None:
    """An error, never a default; one line says which line."""
    answer, errors = init(box, limits)

    assert answer == [NOT_READY]
    assert reason in errors
    assert len(errors.splitlines()) == 1


def test_closed_is_closed_everywhere(box: Box) -> None:
    """CUDA is not ready, and NVML's memory and process calls need a permission."""
    box.write("")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert program("alloc 1 1") == [NOT_READY]
    assert program("nvml")[0] == NO_PERMISSION
    assert program("nvml2")[0] == NO_PERMISSION
    assert program("processes 3") == [NO_PERMISSION]
    assert len(program.end().splitlines()) == 1


def test_a_root_without_limits_is_closed(box: Box) -> None:
    """GPUSLICE_ROOT names a directory, and that has no limits."""
    shutil.rmtree(box.root / "config")
    program = box.start(ready=False)

    assert program("init") == [NOT_READY]
    assert "limits" in program.end()


def test_no_agent_no_change(box: Box) -> None:
    """Neither the directory nor the variable: the driver as it is."""
    program = box.start(GPUSLICE_ROOT="")

    assert program("total") == [0, 16160 * MIB]
    assert program("nvml")[1] == 16160 * MIB
    assert program.end() == ""


def test_environment_of_the_old_ways_gains_nothing(box: Box) -> None:
    """Seen elsewhere: CUDA_DISABLE_CONTROL in a pod's own env turned isolation off (R-552)."""
    program = box.start(
        CUDA_DISABLE_CONTROL="true",
        CGPU_DISABLE="true",
        AMP_VGPU_ENABLE="1",
        GPU_MEM_PER_DEVICE=str(1 << 34),
        ALIYUN_COM_GPU_MEM_DEV="15",
        ALIYUN_COM_GPU_MEM_CONTAINER="15",
        CUDA_DEVICE_MEMORY_LIMIT="0",
    )

    assert program("total") == [0, SLICE]


def in_container(box: Box, prepare: str, lines: str) -> subprocess.CompletedProcess[str]:
    """Runs the told program with a /run of its own, prepared by a shell line."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare for a /run of its own")
    script = f"mount -t tmpfs none /run && {prepare} && exec {box.programs / 'client'}"
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        env={"PATH": os.environ["PATH"], "PROGRAM": str(box.programs)},
        input=lines,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def with_driver(box: Box) -> str:
    """The rest of the environment, set only after the mounts."""
    pairs = box.environment | {"GPUSLICE_ROOT": str(box.root)}
    return "export " + " ".join(f"{name}={value}" for name, value in pairs.items())


def test_where_an_agent_was_the_variable_is_ignored(box: Box, tmp_path: Path) -> None:
    """A pod that sets GPUSLICE_ROOT in its own env gains nothing."""
    text = f"{HEAD}device={box.node.uuids[0]} memory_bytes={1000 * MIB}\n"
    (tmp_path / "limits").write_text(text)
    prepare = (
        "mkdir -p /run/gpu-device-plugin/config /run/gpu-device-plugin/state && "
        "truncate -s 1M /run/gpu-device-plugin/state/region && "
        f"cp {tmp_path / 'limits'} /run/gpu-device-plugin/config/ && {with_driver(box)}"
    )
    ran = in_container(box, prepare, "init\ntotal\n")

    assert ran.stdout.split() == ["0", "0", str(1000 * MIB)], ran.stderr


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param("mkdir -p /run/gpu-device-plugin/config", id="after a reboot: an empty one"),
        pytest.param(
            "mkdir -p /run/gpu-device-plugin && touch /run/gpu-device-plugin/config", id="a file"
        ),
        pytest.param(
            "mkdir -p /run/gpu-device-plugin/config/limits", id="a directory in the file's place"
        ),
        pytest.param(
            "mkdir -p /run/gpu-device-plugin && ln -s nowhere /run/gpu-device-plugin/config",
            id="a dangling link",
        ),
    ],
)
def test_a_config_that_is_there_decides(box: Box, prepare: str) -> None:
    """A missing limits file there means closed, whatever the variable says."""
    ran = in_container(box, f"{prepare} && {with_driver(box)}", "init\n")

    assert ran.stdout.split() == [str(NOT_READY)], ran.stderr


def test_a_missing_region_of_an_agent_is_not_made(box: Box, tmp_path: Path) -> None:
    """Only for development the library creates what is missing."""
    (tmp_path / "limits").write_text(HEAD)
    prepare = (
        "mkdir -p /run/gpu-device-plugin/config /run/gpu-device-plugin/state && "
        f"cp {tmp_path / 'limits'} /run/gpu-device-plugin/config/ && {with_driver(box)}"
    )
    ran = in_container(box, prepare, "init\n")

    assert ran.stdout.split() == [str(NOT_READY)]
    assert "region" in ran.stderr


def as_mounted(box: Box, limits: Path) -> str:
    """Everything where the agent and NVIDIA's runtime put it: nothing is told by a variable."""
    return " && ".join(
        [
            "mkdir -p /run/gpu-device-plugin/config /run/gpu-device-plugin/state",
            "truncate -s 1M /run/gpu-device-plugin/state/region",
            f"cp {limits} /run/gpu-device-plugin/config/limits",
            f"mkdir /run/gpu-simulator && ln -s {box.node.state} /run/gpu-simulator/state",
            "mount -t tmpfs none /etc",
            f"echo {box.node.drivers} > /etc/ld.so.conf && /sbin/ldconfig",
            f"echo {box.node.drivers}/libgpuslice.so > /etc/ld.so.preload",
        ]
    )


@pytest.mark.skipif("GPUSLICE_SANITIZER" in os.environ, reason="its library is not preloaded here")
def test_a_process_that_inherits_no_variable_is_capped(box: Box, tmp_path: Path) -> None:
    """Seen in HAMi 2125: children with a clean environment, or of sshd, lost the limits."""
    text = f"{HEAD}device={box.node.uuids[0]} memory_bytes={1000 * MIB}\n"
    (tmp_path / "limits").write_text(text)
    prepare = f"{as_mounted(box, tmp_path / 'limits')} && exec env -i {box.programs / 'client'}"
    ran = in_container(box, prepare, f"init\nretain\ntotal\nalloc 1 {1000 * MIB}\n")

    assert ran.stdout.split() == ["0", "0", "0", str(1000 * MIB), "2"], ran.stderr


MUSL = Path(f"/lib/ld-musl-{platform.machine()}.so.1")


def test_a_program_of_musl_is_left_alone(box: Box, tmp_path: Path) -> None:
    """Seen in HAMi 2265: images without glibc; their loader does not know the file."""
    if not MUSL.exists():
        pytest.skip(f"no {MUSL} (apt install musl)")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang package, to compile for musl")
    source, program = tmp_path / "shell.c", tmp_path / "shell"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("prompt") < 0; }\n')
    target = f"{platform.machine()}-linux-musl"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-dynamic"]
    subprocess.run([*compiler, str(source), "-o", str(program)], check=True)
    (tmp_path / "limits").write_text(HEAD)
    prepare = as_mounted(box, tmp_path / "limits")
    ran = in_container(box, f"{prepare} && exec {program}", "")

    assert (ran.stdout, ran.stderr, ran.returncode) == ("prompt\n", "", 0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users reach, unlike pytest's own, and what is made in it too."""
    umask = os.umask(0o022)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
    os.umask(umask)


def test_any_user_may_use_the_slice(open_directory: Path, programs: Path) -> None:
    """The region is open to all users of the container; non-root processes share it."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become another user")
    node = Node.create(open_directory)
    # The checkout may be nobody else's to read.
    libraries = ("libgpuslice.so", "libcuda.so.1", "libnvidia-ml.so.1")
    for file in (programs / "client", *(node.drivers / name for name in libraries)):
        (open_directory / file.name).write_bytes(file.read_bytes())
        (open_directory / file.name).chmod(0o755)
    node.drivers = open_directory
    box = Box(open_directory / "a", node, open_directory)
    box.allow(SLICE)
    first = box.start()
    assert first(f"alloc 1 {1000 * MIB}") == [0]
    other = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", open_directory / "client"],
        env=box.environment,
        input="init\nretain\nalloc 1 1000000000\nalloc 1 100000000\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    box.close()

    assert other.stdout.split() == ["0", "0", "2", "0"], other.stderr
