"""The one thread that waits for disks, so that the event loop never does (docs/adr/0015)."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import structlog

_Value = TypeVar("_Value")
_Parameters = ParamSpec("_Parameters")
_log = structlog.get_logger("writer")


class Writer(Executor):
    """Runs jobs one after the other; a job that nobody waits for any more is not started.

    The thread starts with the first job. It never delays the end of the process, even if a disk
    does not answer.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(  # type: ignore[override]
        self,
        fn: Callable[_Parameters, _Value],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> asyncio.Future[_Value]:
        """Put a job at the end of the queue.

        The future is asyncio's own, which `run_in_executor` passes on as it is; a second one of
        the thread's side makes the way there and back longer (docs/adr/0015).
        """
        future: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        return future

    async def run(self, job: Callable[[], _Value]) -> _Value:
        """Run `job`. One that has started finishes even if its caller gives up."""
        return await asyncio.get_running_loop().run_in_executor(self, job)

    def _run(self) -> None:
        while True:
            future, job = self._jobs.get()
            if future.cancelled():
                continue
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:  # noqa: BLE001 - raised where it is waited for
                error = raised
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                future.get_loop().call_soon_threadsafe(_finish, future, result, error)


def _finish(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def report(done: "asyncio.Future[Any]") -> None:
    """Log the failure of a job that nobody waits for."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log.warning("cannot be written", error=str(error))
