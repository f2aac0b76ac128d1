"""The promise: code of a killed process is judged no more, and an error of a living one is noticed."""

import asyncio
import gc
from collections.abc import Callable

from tests.histories.loop import Process, VirtualLoop, in_process


def test_an_error_is_no_failure_whose_process_was_killed_before_it_could_catch_it() -> None:
    """A write fails, and the kill comes before the callback that would have logged it."""
    process = Process("agent")

    def write_while_killed() -> None:
        job = asyncio.get_running_loop().run_in_executor(None, _fail)
        job.add_done_callback(lambda _: process.kill())
        job.add_done_callback(asyncio.Future.exception)

    loop = _played(process, write_while_killed)

    assert not process.is_alive
    assert loop.failures == []


def test_an_error_is_a_failure_that_a_living_process_does_not_catch() -> None:
    """The other side: nobody looks at what the job says."""

    def write() -> None:
        asyncio.get_running_loop().run_in_executor(None, _fail)

    loop = _played(Process("agent"), write)

    assert [failure.partition(":")[0] for failure in loop.failures] == [
        "Future exception was never retrieved"
    ]


def _played(process: Process, start: Callable[[], None]) -> VirtualLoop:
    """The loop, one second after that process was started."""

    async def begin() -> None:
        start()

    async def play() -> None:
        in_process(process, begin)
        await asyncio.sleep(1.0)

    loop = VirtualLoop(0.0)
    loop.run_until_complete(play())
    gc.collect()
    loop.discard()
    return loop


def _fail() -> None:
    raise OSError("no space left on device")
