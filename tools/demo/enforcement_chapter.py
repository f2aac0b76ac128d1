"""A chapter of its own: processes in three slices of one card, and what holds them there.

Each is a container's process without a container runtime. What the mounts would bring to
/run/gpu-device-plugin is shown in a directory, which GPUSLICE_ROOT names; ld.so.preload and the
driver's place come by the environment.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from gpu_device_plugin.domain.grants.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    REGION_FILE,
)
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.simulation.driver_library import CUDA
from tools.demo.demo_node import DemoNode, die_with_parent
from tools.demo.demo_output import ComputeShare, GpuView, Promises, Teller, wait_for
from tools.demo.demo_pods import CARD_MIB, FIRST, LATECOMER, NEIGHBOUR, Role
from tools.harness.kubelet_pods import ContainerStart

AGENT_ROOT = Path(CONFIG_DIR).parent
_PROGRAM = Path(__file__).with_name("gpu_program.py")
_ANSWER_SECONDS = 60.0

CONTEXT_MIB = 239
"""What a context takes; odd, so that with pieces of 2 MiB, as cards give them, 337 MiB are held."""


def environment(started: ContainerStart, driver_dir: Path, root: Path) -> dict[str, str]:
    """What a container's processes are started with; `root`, its own directory, shows what is mounted there."""
    # A card's directory has the slice's own file in it anyway.
    cards = (path for path in started.mounts if str(Path(path).parent) == CARDS_DIR)
    for inside in (CONFIG_DIR, REGION_FILE, *cards):
        shown = root / Path(inside).relative_to(AGENT_ROOT)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.symlink_to(started.mounts[inside][0])
    return {
        **started.env,
        **node_environment(driver_dir),
        "LD_PRELOAD": started.mounts[LIBRARY_FILE][0],
        "GPUSLICE_ROOT": str(root),
    }


def node_environment(driver_dir: Path) -> dict[str, str]:
    """A process on the node itself: every card, and no slice."""
    return {
        "PATH": os.defpath,
        "LD_LIBRARY_PATH": str(driver_dir),
        "GPU_SIMULATOR_CONTEXT_MIB": str(CONTEXT_MIB),
        # Shares are told by completed kernels, so these take what they are asked to also under load.
        "GPU_SIMULATOR_CLOCK_PERMILLE": "0",
    }


class GpuProcess:
    """The GPU program, running; each call of `ask` is one line to it."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_PROGRAM)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            preexec_fn=die_with_parent,
            start_new_session=True,
        )

    async def ask(self, *words: object) -> dict[str, int]:
        """Its answer to a line."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EdgeError(f"{self.name}: its process was not started")
        line = " ".join(map(str, words))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                process.stdin.write(f"{line}\n".encode())
                answer = await process.stdout.readline()
        except (OSError, TimeoutError) as error:
            raise EdgeError(f"{self.name}: no answer to `{line}`: {error}") from error
        if not answer:
            errors = await process.stderr.read() if process.stderr else b""
            said = errors.decode(errors="replace").strip()
            raise EdgeError(f"{self.name}: its process ended at `{line}`:\n{said}")
        return dict(json.loads(answer))

    async def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        # To the end of its pipes, which would be left open otherwise.
        await self._process.communicate()


TENANTS = (FIRST, NEIGHBOUR, LATECOMER)
CARD = FIRST.lands_on[0]
TOLERANCE = 5
"""Points of a share: what a short window and a busy machine may cost; the library's is 2."""
_TAKEN_MIB = 98
_SHOWN_MIB = _TAKEN_MIB + CONTEXT_MIB  # 337, the source's figure
_TOO_MUCH_MIB = 2048
_GROWN = replace(FIRST, mem_units=FIRST.mem_units + 1)
"""The only unit of its card that nobody has."""
_OFFERED, _OFFERED_LESS = (60, 400, 4), (59, 400, 4)
_LIST_SECONDS = 30.0
_PIECE_US = 20000  # long enough for several turns of a card (docs/simulator.md)
_WARM_MS = 300
_WINDOW_MS = 1500
_ATTEMPTS = 20  # each takes seconds; on a machine with other work few of them are undisturbed
_PAUSE_SECONDS = 0.1
_SAMPLE_SECONDS = 1 / 6  # of which NVML tells the use: two or three kernels, so the mean counts
_RESULTS = {0: "CUDA_SUCCESS (0)", 2: "CUDA_ERROR_OUT_OF_MEMORY (2)"}
Running = Mapping[str, GpuProcess]


async def run_in_slices(node: DemoNode, root: Path, teller: Teller, promises: Promises) -> None:
    """Run a process in each slice of a card, and one on the node beside them."""
    teller.chapter(
        "The limits at work",
        f"Three slices of card {CARD} of {node.name}, a process in each. Real: the processes, "
        f"libgpuslice.so, the files that the agent made. Simulated: the driver which they call "
        f"(a simulated libcuda.so.1) and the mounts (GPUSLICE_ROOT names a directory instead).",
    )
    missing = _missing(node)
    if missing:
        teller.text(f"Left out: {missing}.")
        return
    admission = await node.admit(LATECOMER)
    promises.check(
        f"{LATECOMER.name} ({LATECOMER.asks}) gets the rest of the card's compute",
        {CARD: (LATECOMER.mem_units, LATECOMER.core_percent)},
        node.holding(LATECOMER) or admission.message,
    )
    if not admission.is_admitted:
        return
    async with AsyncExitStack() as stage:
        running = await _start(node, root, stage)
        await _refuse(running, teller, promises)
        await _look(running, node.name, teller, promises)
        await _divide(running, teller, promises)
        await _resize(node, running[FIRST.name], teller, promises)


def _missing(node: DemoNode) -> str:
    """Why the chapter cannot be shown here; empty where it can."""
    if not node.is_isolated:
        return "libgpuslice.so is not built here; `make native` builds it"
    if not (node.cards.library.parent / CUDA).is_file():
        return f"the simulated {CUDA} is not built here; `make native` builds it"
    if Path(CONFIG_DIR).exists():
        return f"{CONFIG_DIR} is here: this is a slice's container already, and its limits hold"
    return ""


async def _start(node: DemoNode, root: Path, stage: AsyncExitStack) -> dict[str, GpuProcess]:
    """A process in each slice, with CUDA started, and one on the node, by name."""
    environments = {node.name: node_environment(node.cards.library.parent)}
    for role in TENANTS:
        started = await node.start_container(role)
        shown = root / f"{role.name}-shown"
        environments[role.name] = environment(started, node.cards.library.parent, shown)
    running = {name: GpuProcess(name, env) for name, env in environments.items()}
    for process in running.values():
        stage.push_async_callback(process.stop)
        await process.start()
    for role in TENANTS:
        await running[role.name].ask("start")
    return running


async def _refuse(running: Running, teller: Teller, promises: Promises) -> None:
    """One asks beyond its slice while its neighbour works, and then asks the same."""
    first, neighbour = running[FIRST.name], running[NEIGHBOUR.name]
    taken = await first.ask("allocate", _TAKEN_MIB)
    working = asyncio.ensure_future(neighbour.ask("work", _PIECE_US, 0, _WINDOW_MS))
    refused = []
    try:
        # From before its first kernel until after its last.
        while not working.done():
            refused.append((await first.ask("allocate", _TOO_MUCH_MIB))["result"])
            await asyncio.wait({working}, timeout=_PAUSE_SECONDS)
        completed = (await working)["pieces"]
    finally:
        working.cancel()
    granted = await neighbour.ask("allocate", _TOO_MUCH_MIB)
    teller.text(
        f"A slice of {FIRST.slice_mib} MiB, of which a context and {_TAKEN_MIB} MiB are taken, "
        f"has no room for {_TOO_MUCH_MIB} MiB, though the card has. {FIRST.name} asks for them "
        f"{len(refused)} times, while {NEIGHBOUR.name} completes {completed} kernels on that card:"
    )
    _check_results(promises, f"{FIRST.name} asks {_TAKEN_MIB} MiB", 0, [taken["result"]])
    _check_results(promises, f"{FIRST.name} asks {_TOO_MUCH_MIB} MiB", 2, refused)
    seen = "goes on" if completed else "stands still"
    promises.check(f"{NEIGHBOUR.name} meanwhile", "goes on", seen)
    _check_results(promises, f"{NEIGHBOUR.name} asks {_TOO_MUCH_MIB} MiB", 0, [granted["result"]])


def _check_results(promises: Promises, what: str, wanted: int, seen: list[int]) -> None:
    told = [_RESULTS.get(result, f"CUDA error {result}") for result in sorted(set(seen))]
    promises.check(what, _RESULTS[wanted], told)


async def _look(running: Running, node_name: str, teller: Teller, promises: Promises) -> None:
    """The same NVML calls in each slice and on the node, after the first has worked alone."""
    views, whole, busy = await _undisturbed_views(running, node_name, teller)
    teller.text(
        "What NVML, and so nvidia-smi, then shows: the slice's memory, the whole card's GPU-Util, and "
        "only the container's own processes. The node sees the card as it is:"
    )
    rows = (
        (each.who, each.memory, f"{each.gpu_percent}%", str(each.processes))
        for each in (*views.values(), whole)
    )
    teller.table(("seen from",), rows, right=("Memory-Usage", "GPU-Util", "processes"))
    wanted = f"{_SHOWN_MIB}MiB / {FIRST.slice_mib}MiB"
    promises.check(f"{FIRST.name} sees", wanted, views[FIRST.name].memory)
    promises.check(
        "every slice sees its size in MiB, the node the card's",
        {**{role.name: role.slice_mib for role in TENANTS}, whole.who: CARD_MIB},
        {view.who: view.total_mib for view in (*views.values(), whole)},
    )
    promises.check(
        *_share_promise(f"the card, {FIRST.name} alone at work, is busy at (mean)", FIRST, busy)
    )


async def _undisturbed_views(
    running: Running, node_name: str, teller: Teller
) -> tuple[dict[str, GpuView], GpuView, float]:
    """What each slice and the node see at the end, and the card's mean use before it.

    Again where the machine was too busy for the work.
    """
    attempt = 0
    while True:
        attempt += 1
        with teller.waiting(f"{FIRST.name} works alone, as hard as it may"):
            busy = await _mean_use(running[FIRST.name], running[node_name])
        # The node first: the card's use is that of a moment ago.
        whole = await _view(running[node_name], f"node {node_name}", CARD)
        views = {role.name: await _view(running[role.name], role.name, 0) for role in TENANTS}
        if _is_kept(FIRST, busy) or attempt == _ATTEMPTS:
            return views, whole, busy
        teller.note(f"off: {busy:.0f} %; this machine may be too busy, measured again")


async def _mean_use(worker: GpuProcess, watcher: GpuProcess) -> float:
    """Mean of what NVML tells of the card's use while `worker` works, in percent."""
    working = asyncio.ensure_future(worker.ask("work", _PIECE_US, _WARM_MS, _WINDOW_MS))
    samples: list[int] = []
    try:
        await asyncio.sleep(_WARM_MS / 1000)
        while not (await asyncio.wait({working}, timeout=_SAMPLE_SECONDS))[0]:
            samples.append((await watcher.ask("look", CARD))["gpu_percent"])
        await working
    finally:
        working.cancel()
    return sum(samples) / max(1, len(samples))


async def _view(process: GpuProcess, who: str, card: int) -> GpuView:
    seen = await process.ask("look", card)
    used, total = seen["used_bytes"] >> 20, seen["total_bytes"] >> 20
    return GpuView(who, used, total, seen["gpu_percent"], seen["processes"])


async def _divide(running: Running, teller: Teller, promises: Promises) -> None:
    """All three work as hard as they may; each counts what it completed."""
    measured: dict[str, float] = {}
    for attempt in range(_ATTEMPTS):
        with teller.waiting("all three work as hard as they may"):
            measured = await _measure(running)
        if all(_is_kept(role, measured[role.name]) for role in TENANTS):
            break
        if attempt + 1 < _ATTEMPTS:
            told = ", ".join(f"{name} {percent:.0f} %" for name, percent in measured.items())
            teller.note(f"off: {told}; this machine may be too busy, measured again")
    teller.text(
        f"Then all three launch kernels of {_PIECE_US // 1000} ms without a pause. What each "
        f"completed in {_WINDOW_MS / 1000:g} s, as percent of the card's time:"
    )
    teller.compute_shares(
        [ComputeShare(role.name, role.core_percent, measured[role.name]) for role in TENANTS]
    )
    for role in TENANTS:
        promises.check(*_share_promise(f"{role.name} gets", role, measured[role.name]))


async def _measure(running: Running) -> dict[str, float]:
    """Percent of the card's time, by pod."""
    work = ("work", _PIECE_US, _WARM_MS, _WINDOW_MS)
    answers = await asyncio.gather(*(running[role.name].ask(*work) for role in TENANTS))
    return {
        role.name: 100_000 * _PIECE_US * answer["pieces"] / answer["took_ns"]
        for role, answer in zip(TENANTS, answers, strict=True)
    }


def _is_kept(role: Role, percent: float) -> bool:
    return abs(percent - role.core_percent) <= TOLERANCE


def _share_promise(what: str, role: Role, percent: float) -> tuple[str, str, str]:
    wanted = f"{role.core_percent} % +- {TOLERANCE}"
    return what, wanted, wanted if _is_kept(role, percent) else f"{percent:.1f} %"


async def _resize(node: DemoNode, first: GpuProcess, teller: Teller, promises: Promises) -> None:
    """What was refused is granted once the slice has grown; it shrinks when that is given back."""
    teller.text(
        f"Last, {FIRST.name} gets the unit of card {CARD} that is left, while it runs. The operator "
        f"allows its namespace one unit beyond the requests; the user asks for it:"
    )
    node.allow_growth("mem:1")
    await _ask(node, _GROWN.mem_units, teller, "--wait")
    granted = await first.ask("allocate", _TOO_MUCH_MIB)
    _check_results(promises, f"{FIRST.name} asks {_TOO_MUCH_MIB} MiB again", 0, [granted["result"]])
    seen = (await _view(first, FIRST.name, 0)).memory
    wanted = f"{_SHOWN_MIB + _TOO_MUCH_MIB}MiB / {_GROWN.slice_mib}MiB"
    promises.check(f"{FIRST.name} sees, without a restart", wanted, seen)
    await _check_offer(node, _OFFERED_LESS, "without the unit", promises)
    teller.text("Asked to shrink, it keeps the unit for as long as that is in use:")
    told = await _ask(node, FIRST.mem_units, teller)
    kept = "kept while in use" if "are kept for it" in told else told
    promises.check("the unit is", "kept while in use", kept)
    refused = await first.ask("allocate", 2)
    _check_results(promises, f"{FIRST.name} asks 2 MiB more", 2, [refused["result"]])
    await first.ask("free")
    await _ask(node, FIRST.mem_units, teller, "--wait")
    seen = (await _view(first, FIRST.name, 0)).memory
    promises.check(f"{FIRST.name} sees", f"{_SHOWN_MIB}MiB / {FIRST.slice_mib}MiB", seen)
    await _check_offer(node, _OFFERED, "with the unit", promises)


async def _ask(node: DemoNode, units: int, teller: Teller, *words: str) -> str:
    """What `kubectl gpu resize` answers, which is shown."""
    asked = ("resize", FIRST.name, "--mem", str(units), *words)
    with teller.waiting("waiting for the agent's answer"):
        told = await node.kubectl_gpu(*asked)
    teller.quote(f"kubectl gpu {' '.join(asked)}", told)
    return told


async def _check_offer(
    node: DemoNode, expected: tuple[int, ...], what: str, promises: Promises
) -> None:
    seen = await wait_for(node.allocatable, expected, _LIST_SECONDS)
    promises.check(f"allocatable of {node.name} {what}", expected, seen)
