"""gpu-limit-hook sets the driver's limit of a container's cgroup, or the container does not start.

The driver is simulated, the cgroups are the machine's own: a process that waits in one stands for the
container that a runtime has created.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.conftest import MakeNode
from tests.simulator.programs import environment
from tools.harness.isolation.box import native_directory, preload

from gpu_device_plugin.simulation.driver_library import describe, set_fields
from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_MIB = 1 << 20
_SLICE = "2226"
_WAIT = ["sleep", "600"]


def cgroup_tree() -> Path:
    """Where cgroup v2 is mounted, alone or beside version 1; a skip where nobody may write there."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    tree = next((Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
    if tree is None or not os.access(tree, os.W_OK) or os.geteuid() != 0:
        pytest.skip("needs root and a tree of cgroup v2")
    return tree


def _probe(node: SimulatedNode, tree: Path, place: Path, driver: Path | None = None) -> str:
    """The report of a probe, which never fails."""
    report = place / "driver-limits"
    roots = ("--driver-root", driver or node.library.parent, "--cgroup-root", tree)
    program = native_directory() / "gpu-limit-hook"
    subprocess.run([program, "--probe", report, *roots], check=True)
    return report.read_text()


class Container:
    """A cgroup with a process in it, and a slice's directory."""

    def __init__(self, node: SimulatedNode, tree: Path, place: Path) -> None:
        self.node, self.tree = node, tree
        self.slice = place / _SLICE
        (self.slice / "config").mkdir(parents=True)
        self.leaf = self._enter(tree / f"hook-{os.getpid()}")
        self.grant(2154)

    def _enter(self, leaf: Path) -> Path:
        leaf.mkdir()
        self.process = self.inside(_WAIT, leaf)
        return leaf

    def inside(
        self, command: list[str], leaf: Path, out: int | None = None
    ) -> subprocess.Popen[str]:
        """A program in the cgroup, as a container's first process is."""
        into = f'echo $$ >{leaf}/cgroup.procs && exec "$@"'
        shell = ["sh", "-c", into, "sh", *command]
        started = subprocess.Popen(shell, env=environment(self.node), text=True, stdout=out)
        while out is None and (leaf / "cgroup.procs").read_text().split() == []:
            assert started.poll() is None
        return started

    def grant(self, mib: int | None, *, card: int = 0, revision: int = 0) -> None:
        """The slice's limits file; None: no cap."""
        uuid = self.node.view().cards[card].uuid
        size = "" if mib is None else f" memory_bytes={mib * _MIB}"
        resized = f"revision={revision}\n" if revision else ""
        text = f"version=1\nslice={_SLICE}\npolicy=fixed\n{resized}device={uuid}{size}\n"
        (self.slice / "config" / "limits").write_text(text)

    def hook(
        self,
        state: object = None,
        *options: str,
        tree: Path | None = None,
        driver: Path | None = None,
    ) -> tuple[int, str]:
        """Exit status and the reason."""
        told = {"ociVersion": "1.0.2", "id": "c", "pid": self.process.pid}
        done = subprocess.run(
            [
                native_directory() / "gpu-limit-hook",
                *("--slice", self.slice, "--driver-root", driver or self.node.library.parent),
                *(("--cgroup-root", tree or self.tree) if tree != Path("/sys/fs/cgroup") else ()),
                *options,
            ],
            input=json.dumps(state or told),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr.removesuffix("\n")

    def revision(self) -> str:
        """That of the resized limits which hold, as the hook has left it."""
        path = self.slice / "driver-revision"
        return path.read_text() if path.exists() else ""

    def repair(self) -> tuple[int, str, str]:
        """As the keeper does it; exit status, answer and reason."""
        done = subprocess.run(
            [
                native_directory() / "gpu-limit-hook",
                *("--slice", self.slice, "--driver-root", self.node.library.parent),
                *("--cgroup-root", self.tree, "--repair"),
                *("--process", f"/proc/{self.process.pid}"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.strip(), done.stderr

    @contextmanager
    def using(self, mib: int) -> Iterator[None]:
        """A program in the cgroup has so much, and keeps it."""
        program = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({mib} << 20)) == 0
print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 33)), flush=True)
import signal
signal.pause()
"""
        ran = self.inside([sys.executable, "-c", program], self.leaf, subprocess.PIPE)
        assert ran.stdout is not None
        try:
            with ran.stdout:
                assert ran.stdout.readline() == "2\n"
                yield
        finally:
            ran.kill()
            ran.wait()

    def taken(self, *sizes: int) -> object:
        """What a program in the cgroup is told, and whether it gets so many MiB at once; no preload."""
        program = f"""
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
opened = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
codes = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(n << 20)) for n in {sizes}]
print(json.dumps([opened, total.value >> 20, codes]))
"""
        command = [sys.executable, "-c", program]
        ran = self.inside(command, self.leaf, subprocess.PIPE)
        output, _ = ran.communicate(timeout=240)
        return json.loads(output)

    def restart(self) -> None:
        """The container's cgroup is gone with it; the next one has another name."""
        self.end()
        self.leaf = self._enter(self.tree / f"hook-{os.getpid()}-again")

    def end(self) -> None:
        """Neither process nor cgroup is left."""
        self.process.kill()
        self.process.wait()
        with suppress(FileNotFoundError):
            self.leaf.rmdir()


@pytest.fixture
def made(make_node: MakeNode, tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Makes a container on a node of two V100."""
    all_made = list[Container]()

    def make(driver: str = "615.71.09") -> Container:
        tree = cgroup_tree()
        node = make_node("v100", cards=2, driver_version=driver)
        all_made.append(Container(node, tree, tmp_path / "slices"))
        return all_made[-1]

    yield make
    for container in all_made:
        container.end()


@pytest.mark.parametrize("accounting", [0, 1])
def test_a_container_is_capped_by_the_driver_and_again_after_a_restart(
    made: Callable[..., Container], accounting: int
) -> None:
    """Without a preload; a restart gets what the grant says now, and a neighbour has no limit."""
    container = made()
    set_fields(container.node.state, [f"memory_accounting={accounting}"])
    assert container.hook() == (0, "")
    assert container.taken(2154, 1500) == [0, 2154, [2, 0]]
    assert (container.slice / "driver-limit").read_text() == f"cgroup={container.leaf}\n"
    container.restart()
    assert container.taken(2154) == [0, 16160, [0]]
    container.grant(1077)
    assert container.hook() == (0, "")
    assert container.taken(1077, 500) == [0, 1077, [2, 0]]


def test_a_process_below_its_containers_cgroup_is_repaired_there(
    made: Callable[..., Container],
) -> None:
    """It was taken for a second container of the slice, and the limit stayed lost."""
    container = made()
    assert container.hook() == (0, "")
    mark = (container.slice / "driver-limit").read_text()
    below = container.leaf / "init.scope"
    below.mkdir()
    (below / "cgroup.procs").write_text(str(container.process.pid))
    repaired = container.hook(None, "--repair")
    (container.leaf / "cgroup.procs").write_text(str(container.process.pid))
    below.rmdir()

    assert repaired == (0, "")
    assert (container.slice / "driver-limit").read_text() == mark


@pytest.mark.parametrize("accounting", [0, 1])
def test_a_resized_slice_that_uses_more_is_in_use_until_it_does_not(
    made: Callable[..., Container], accounting: int
) -> None:
    """With misc the limit stays as it was, with dmem nothing more is given; neither is in effect."""
    container = made()
    set_fields(container.node.state, [f"memory_accounting={accounting}"])
    container.grant(8618, revision=1)
    assert container.hook() == (0, "")
    assert container.revision() == ""
    assert container.repair() == (0, "held", "")
    assert container.revision() == "1\n"
    mark = (container.slice / "driver-limit").read_text()
    with container.using(4000):
        container.grant(2154, revision=2)
        assert container.repair() == (0, "in use", "")
        assert container.repair() == (0, "in use", "")
        assert container.revision() == "1\n"
        assert container.taken(1000) == ([2, 0, [201]] if accounting else [0, 8618, [0]])
    told = "set" if accounting == 0 else "held"
    assert container.repair() == (0, told, "")
    assert container.revision() == "2\n"
    assert (container.slice / "driver-limit").read_text() == mark
    assert container.taken(2154, 1500) == [0, 2154, [2, 0]]


def test_what_has_grown_to_a_whole_card_goes_on_being_counted(
    made: Callable[..., Container],
) -> None:
    """Without a limit misc counts nothing, and a slice that shrinks would keep what it has."""
    container = made()
    assert container.hook() == (0, "")
    container.grant(16160, revision=1)
    assert container.repair() == (0, "set", "")
    assert container.repair() == (0, "held", "")
    assert container.taken(16160, 9000) == [0, 16159, [2, 0]]


def test_each_card_has_its_own_size_and_one_without_a_cap_or_taken_whole_has_no_limit(
    made: Callable[..., Container],
) -> None:
    """A limit above the card's total would be an error of the driver."""
    container = made()
    first = (container.slice / "config" / "limits").read_text()
    container.grant(1077, card=1)
    second = (container.slice / "config" / "limits").read_text().splitlines()[-1]
    (container.slice / "config" / "limits").write_text(f"{first}{second}\n")
    assert container.hook() == (0, "")
    assert container.taken(2154, 1500) == [0, 2154, [2, 0]]
    for size in (16160, None):
        container.restart()
        container.grant(size)
        assert container.hook() == (0, "")
        assert container.taken(9000) == [0, 16160, [0]]


def test_the_pid_is_the_states_own_and_none_of_its_annotations(
    made: Callable[..., Container],
) -> None:
    """Annotations are what the pod's author writes."""
    container = made()
    told = r'"pid": 1, \"pid": 1 } "pid": 1'
    state = {"annotations": {"pid": 1, "a": told, '"pid"': ["pid", 1]}, "note": "pid"}
    assert container.hook({**state, "pid": container.process.pid}) == (0, "")
    assert container.hook(state) == (1, "gpu-limit-hook: the state on stdin names no pid")


@pytest.mark.parametrize(
    ("amiss", "reason"),
    [
        pytest.param(
            "old driver", "has no nvmlDeviceSetMemoryLimits_v1: it is older", id="old driver"
        ),
        pytest.param("off", "nvmlDeviceSetMemoryLimits_v1 answers 3 (Not Supported)", id="off"),
        pytest.param("lost", "nvmlDeviceGetHandleByUUID answers 15 (GPU is lost)", id="lost"),
        pytest.param("no driver", "libnvidia-ml.so.1: cannot open", id="no driver"),
        pytest.param("limits", "config/limits, line 1: unknown version", id="limits"),
        pytest.param("no limits", "config/limits: No such file or directory", id="no limits"),
        pytest.param("gone", "is not there", id="cgroup gone"),
        pytest.param("root", "which is no container's", id="the root"),
        pytest.param("no process", "/cgroup: No such file or directory", id="no process"),
    ],
)
def test_whatever_fails_keeps_the_container_from_starting_and_leaves_no_mark(
    made: Callable[..., Container], tmp_path: Path, amiss: str, reason: str
) -> None:
    """One line that names what was asked and what answered."""
    if amiss == "root" and "0::/\n" not in Path("/proc/self/cgroup").read_text():
        pytest.skip("this process is in a cgroup of its own")
    container = made("580.65.06" if amiss == "old driver" else "615.71.09")
    limits = container.slice / "config" / "limits"
    spoil: dict[str, Callable[[], object]] = {
        "off": lambda: set_fields(container.node.state, ["memory_accounting=2"]),
        "lost": lambda: container.node.lose(0),
        "limits": lambda: limits.write_text("version=9\n"),
        "no limits": limits.unlink,
        "no process": container.end,
    }
    spoil.get(amiss, lambda: None)()
    state = {"pid": os.getpid()} if amiss == "root" else None
    tree = tmp_path if amiss == "gone" else None
    driver = container.slice.parent / "driver" if amiss == "no driver" else None
    status, told = container.hook(state, tree=tree, driver=driver)
    assert status == 1
    assert reason in told
    assert not (container.slice / "driver-limit").exists()


@pytest.mark.parametrize("is_limited", [True, False])
def test_the_selftest_asks_the_driver_past_the_library(
    made: Callable[..., Container], *, is_limited: bool
) -> None:
    """The library alone would refuse in either case."""
    container = made()
    limits = container.slice / "config" / "limits"
    limits.write_text(limits.read_text().replace("fixed\n", "fixed\nmemory_enforcer=driver\n"))
    state = container.slice / "state"
    state.mkdir()
    (state / "region").write_bytes(bytes(_MIB))
    if is_limited:
        assert container.hook() == (0, "")
    library = preload(native_directory() / "libgpuslice.so")
    inside = [f"LD_PRELOAD={library}", f"GPUSLICE_ROOT={container.slice}"]
    command = ["env", *inside, str(native_directory() / "gpu-selftest")]
    ran = container.inside(command, container.leaf, subprocess.PIPE)
    told, _ = ran.communicate(timeout=240)
    assert "a byte too many: refused by the library" in told
    assert f"{'refused' if is_limited else 'given'} by the driver, past the library" in told
    assert ("FAILED  memory by driver is not proved" in told) is not is_limited
    assert ran.returncode == (0 if is_limited else 1), told


def test_a_second_container_of_a_slice_is_refused_while_the_first_runs(
    made: Callable[..., Container],
) -> None:
    """Each would have the whole slice."""
    container = made()
    assert container.hook() == (0, "")
    other = container.tree / f"hook-{os.getpid()}-other"
    other.mkdir()
    second = container.inside(_WAIT, other)
    try:
        status, told = container.hook({"pid": second.pid})
    finally:
        second.kill()
        second.wait()
        other.rmdir()
    assert status == 1
    assert f"in use by the container of {container.leaf}" in told
    assert container.hook() == (0, "")


def test_a_hybrid_tree_is_refused(made: Callable[..., Container]) -> None:
    """The driver knows the leaf of cgroup v2 at its usual place only."""
    container = made()
    told = container.hook(tree=Path("/sys/fs/cgroup"))
    if container.tree == Path("/sys/fs/cgroup"):
        assert told == (0, "")
    else:
        assert told[0] == 1
        assert "/sys/fs/cgroup is not cgroup v2" in told[1]


@pytest.mark.parametrize(("accounting", "backend"), [(0, "misc"), (1, "dmem")])
def test_a_probe_proves_the_backend_of_each_card_and_leaves_nothing(
    make_node: MakeNode, tmp_path: Path, accounting: int, backend: str
) -> None:
    """Any directory stands for the root of the tree; a card in MIG mode is named with the reason."""
    node = make_node("v100", cards=2, driver_version="615.71.09")
    set_fields(node.state, [f"memory_accounting={accounting}", "cards.1.mig_capable=1"])
    set_fields(node.state, ["cards.1.mig_enabled=1"])
    tree = tmp_path / "tree"
    tree.mkdir()
    fields = describe(node.state)
    address = [int(fields.get(f"cards.0.pci_{part}", 0)) for part in ("domain", "bus", "device")]
    if backend == "dmem":
        listed = "nvidia/{:08x}:{:02x}:{:02x}.0/vidmem 1\n".format(*address)
        (tree / "dmem.capacity").write_text(f"drm/card0/vram0 1\n{listed}")
    cards = node.view().cards
    assert _probe(node, tree, tmp_path).splitlines() == [
        "driver=615.71.09",
        f"device={cards[0].uuid} backend={backend}",
        f"device={cards[1].uuid} reason=it is in MIG mode",
    ]
    assert not (tree / "gpu-device-plugin-probe").exists()


def test_what_keeps_a_probe_from_proving_is_its_report(make_node: MakeNode, tmp_path: Path) -> None:
    """A driver that is too old, one that does not count, no tree, no driver."""
    node = make_node("v100", driver_version="580.65.06")
    told = [_probe(node, tmp_path, tmp_path)]
    node.upgrade_driver("615.71.09")
    set_fields(node.state, ["memory_accounting=2"])
    told.append(_probe(node, tmp_path, tmp_path))
    told.append(_probe(node, tmp_path / "none", tmp_path))
    (tmp_path / "none").mkdir()
    told.append(_probe(node, tmp_path, tmp_path, tmp_path / "none"))
    assert not (tmp_path / "gpu-device-plugin-probe").exists()
    reasons = [
        "the driver has no nvmlDeviceSetMemoryLimits_v1: it is older than 615",
        "nvmlDeviceSetMemoryLimits_v1 answers 3 (Not Supported)",
        "gpu-device-plugin-probe: No such file or directory",
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
    ]
    for text, reason in zip(told, reasons, strict=True):
        assert text.startswith("reason=")
        assert text.endswith(f"{reason}\n")
