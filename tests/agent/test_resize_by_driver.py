"""The promise: a slice whose memory the driver limits is resized only as far as the driver's limit is set.

The programs here have no library preloaded, as static ones: what they get, the driver gives.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.agent.test_driver_limits import cdi_files, node
from tests.agent.test_resize import allow, ask, told
from tests.cards_tools.test_limit_keeper import Container
from tests.isolation.test_limit_hook import cgroup_tree
from tests.simulator.programs import environment
from tools.harness.rig import CORE, FOUR_CARDS, MEM, Rig, slice_of, until

from gpu_device_plugin.cards_tools.limit_keeper import LimitKeeper
from gpu_device_plugin.simulation.driver_library import set_fields

_SECONDS = 40
_OUT_OF_MEMORY = 2
_PROGRAM = """
import ctypes, sys
cuda, context, taken = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), []
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, int(sys.argv[1]))
for line in sys.stdin:
    pointer, mib, code = ctypes.c_uint64(), int(line), 0
    if mib:
        code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
        taken += [pointer] if code == 0 else []
    else:
        code = sum(cuda.cuMemFree_v2(taken.pop()) for _ in taken[:])
    print(code, flush=True)
"""


class Started:
    """A container of a pod, made as a runtime makes it by the slice's CDI file."""

    def __init__(self, rig: Rig, pod: str, name: str, ends: ExitStack) -> None:
        self.rig, tree, self.ends = rig, cgroup_tree(), ends
        directory = rig.run / "slices" / rig.grant(pod).slice_id
        leaf = tree / f"resize-{os.getpid()}-{name}"
        self.container = Container(leaf, directory / "config", rig.root / f"in-{name}")
        self.end = ends.enter_context(ExitStack())
        self.end.callback(self.container.end)
        [edits] = [
            json.loads(path.read_text())["devices"][0]["containerEdits"]
            for path in cdi_files(rig)
            if directory.name in path.name
        ]
        self.variables, [hook] = edits["env"], edits["hooks"]
        roots = (f"--driver-root={rig.cards.library.parent}", f"--cgroup-root={tree}")
        subprocess.run(
            [hook["path"], *hook["args"][1:], *roots],
            input=json.dumps({"pid": self.container.process.pid}).encode(),
            check=True,
        )
        self.card = [c.uuid for c in rig.cards.view().cards].index(rig.grant(pod).devices[0])

    def program(self) -> Callable[[int], int]:
        """One in it that takes so many MiB, or with 0 gives back all; CUDA's answer."""
        into = f'echo $$ >{self.container.leaf}/cgroup.procs && exec "$@"'
        command = ["sh", "-c", into, "sh", sys.executable, "-c", _PROGRAM, str(self.card)]
        pipe = subprocess.PIPE
        ran = subprocess.Popen(
            command, env=environment(self.rig.cards), text=True, stdin=pipe, stdout=pipe
        )
        self.end.enter_context(ran)
        self.end.callback(ran.kill)

        def take(mib: int) -> int:
            assert ran.stdin is not None
            assert ran.stdout is not None
            print(mib, file=ran.stdin, flush=True)
            return int(ran.stdout.readline())

        return take


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """Ends what was started."""
    with ExitStack() as stack:
        yield stack


@asynccontextmanager
async def keeper(rig: Rig) -> AsyncIterator[None]:
    """The node's."""
    root, tree = str(rig.cards.library.parent), str(cgroup_tree())
    running = asyncio.ensure_future(LimitKeeper(rig.run, root, tree, young_seconds=0).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until_answer(rig: Rig, words: str, **expected: object) -> None:
    """Wait for an answer to the pod `a` with these values, and these words in its text."""

    def is_told() -> bool:
        answer = told(rig, "a")
        return expected.items() <= answer.items() and words in answer.get("text", "")

    await until(is_told, _SECONDS, lambda: told(rig, "a"))


@pytest.mark.parametrize("accounting", [0, 1], ids=["misc", "dmem"])
async def test_the_drivers_limit_follows_and_nothing_is_given_back_that_it_still_allows(
    accounting: int, ends: ExitStack
) -> None:
    """With misc a limit below the use is refused, with dmem nothing more is given; an agent that restarts goes on."""
    async with node() as rig:
        set_fields(rig.cards.state, [f"memory_accounting={accounting}"])
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        take = Started(rig, "a", "first", ends).program()
        assert take(4000) == _OUT_OF_MEMORY
        await ask(rig, "a", "main-0=mem:8")
        waits = f"waits for NVIDIA's driver: no limit keeper answers on {rig.run}/limits.sock"
        await until_answer(rig, waits, state="waits", mem=8)
        assert take(4000) == _OUT_OF_MEMORY

        async with keeper(rig):
            await until_answer(rig, "", state="done", mem=8)
            assert take(4000) == 0
            await ask(rig, "a", "main-0=mem:2")
            await until_answer(rig, "it uses more; the driver's limit", state="waits", mem=2)
            await rig.restart_agent(cdi_dir=rig.root / "cdi")
            await rig.until_offered({**FOUR_CARDS, MEM: 60 - 6})
            assert not rig.events("DriverLimitLost") + rig.events("DriverLimitSet")
            assert take(0) == 0
            await until_answer(rig, "", state="done", mem=2)
            await rig.until_offered(FOUR_CARDS)
            assert [take(4000), take(1000)] == [_OUT_OF_MEMORY, 0]


async def test_a_container_that_starts_again_has_its_new_size_from_its_start(
    ends: ExitStack,
) -> None:
    """Its hook sets it; the answer says that none runs, and waits for the keeper's word."""
    async with node() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        Started(rig, "a", "first", ends).end.close()
        async with keeper(rig):
            await ask(rig, "a", "main-0=mem:8,core:60")
            await until_answer(rig, "finds no process of its container", state="waits", mem=8)
        again = Started(rig, "a", "again", ends)

        assert again.variables[1] == "NVIDIA_GPU_MEMORY_LIMIT=8618"
        assert again.program()(4000) == 0
        await until_answer(rig, "no limit keeper answers", state="waits", mem=8)
        async with keeper(rig):
            await until_answer(rig, "", state="done", mem=8)
        assert rig.allocatable()[CORE] == 400 - 30


async def test_what_the_hook_says_is_what_a_resize_waits_for(ends: ExitStack) -> None:
    """As long as the driver takes no limits."""
    async with node() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        Started(rig, "a", "first", ends)
        set_fields(rig.cards.state, ["memory_accounting=2"])
        async with keeper(rig):
            await ask(rig, "a", "main-0=mem:8")
            await until_answer(rig, "answers 3 (Not Supported)", state="waits")
            set_fields(rig.cards.state, ["memory_accounting=0"])
            await until_answer(rig, "", state="done")
