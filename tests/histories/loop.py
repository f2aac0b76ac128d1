"""An event loop without waiting: when nothing is ready, its clock jumps to the next timer.

It has no sockets and no threads. What a program asks of the operating system through its loop
(child processes, listening sockets, signals, work for a thread) goes to the `Machine`.

Every callback belongs to the process whose context scheduled it. Callbacks of a process that
was killed are dropped, not cancelled: none of its code runs any more, `finally` included.
"""

import asyncio
import contextlib
import heapq
import os
import stat
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet


class Process:
    """A program that runs on the machine and can be killed between two steps of its code.

    Attributes:
        name: For the story of a history.
        is_alive: Whether its code still runs.
        steps_left: Steps until it is killed; None is for ever.
        on_death: Called once when it has died: what the kernel does for its peers.
        signals: Handlers it has asked for, by number.
        serve: Makes the protocol of a connection to its unix socket.
        serve_web: The same of its TCP port.
        futures: What it does or waits for, its tasks among them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.steps_left: int | None = None
        self.on_death: list[Callable[[], object]] = []
        self.signals: dict[int, Callable[[], None]] = {}
        self.serve: Callable[[], Any] | None = None
        self.serve_web: Callable[[], Any] | None = None
        self.futures: WeakSet[asyncio.Future[Any]] = WeakSet()
        self._dead: list[asyncio.Future[Any]] = []

    async def ask(self, line: bytes) -> bytes:
        """What it answers on its unix socket; nothing where it does not listen."""
        if self.serve is None or not self.is_alive:
            return b""
        peer, protocol = _Peer(self), self.serve()
        in_process(self, lambda: peer.send(protocol, line))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await peer.closed.wait()
        return bytes(peer.said)

    async def page(self, path: str) -> str:
        """What it answers to a GET on its TCP port; nothing where it does not listen."""
        if self.serve_web is None or not self.is_alive:
            return ""
        peer, protocol = _Peer(self), self.serve_web()
        asked = f"GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode()
        in_process(self, lambda: peer.send(protocol, asked))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await peer.closed.wait()
        return peer.said.partition(b"\r\n\r\n")[2].decode()

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive:
            self.is_alive = False
            # Kept for as long as the process is: a task that is collected would be closed, and
            # run the `finally` of code that is dead; a future would complain that its error was
            # never retrieved, which the dead code would have done.
            self._dead = list(self.futures)
            hooks, self.on_death = self.on_death, []
            for hook in hooks:
                hook()


_Future = TypeVar("_Future", bound="asyncio.Future[Any]")
_Line = deque[tuple["asyncio.Future[Any]", Callable[[], Any]]]
PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class StuckError(Exception):
    """Nothing is ready and no timer runs: nothing will ever happen again."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready, then jumps.

    Attributes:
        steps: Callbacks run so far.
        failures: Exceptions that nobody caught.
        spawn: Starts a child process; as `subprocess_exec`.
        peers: What answers a line on the unix socket at a path.
        is_in_thread: Whether what runs now would run in a thread.
        thread_seconds: How long work takes that is handed to a thread.
        threads_until: When the last of it is done that has begun.
    """

    def __init__(self, start_seconds: float) -> None:
        super().__init__()
        self.now = start_seconds
        self.steps = 0
        self.failures: list[str] = []
        self.spawn: Callable[..., Coroutine[Any, Any, tuple[Any, Any]]] | None = None
        self.peers: dict[str, Callable[[bytes], bytes]] = {}
        self.thread_seconds: Callable[[], float] = lambda: 0.001
        self.threads_until = 0.0
        self.is_in_thread = False
        self._is_discarded = False
        self._threads: dict[object, _Line] = {}
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._note_failure)
        self.set_task_factory(_task_of_process)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def create_future(self) -> "asyncio.Future[Any]":
        """A future, which is its process's."""
        return _owned(super().create_future(), PROCESS.get())

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0]._cancelled:
                heapq.heappop(timers)._scheduled = False
            if not timers:
                raise StuckError
            self.now = max(self.now, timers[0]._when)
        while timers and timers[0]._when <= self.now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and self._may_run(handle._context):
                handle._run()

    def _may_run(self, context: Context) -> bool:
        self.steps += 1
        process = context.get(PROCESS)
        if process is None:
            return True
        if process.is_alive and process.steps_left is not None:
            process.steps_left -= 1
            if process.steps_left < 0:
                process.kill()
        return process.is_alive

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and type(error).__name__ == "KilledError":
            return
        self.failures.append(f"{context['message']}: {error!r}")

    # -- what a program asks of the operating system

    async def subprocess_exec(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        """A child process."""
        assert self.spawn is not None
        return await self.spawn(*arguments, **options)

    async def create_server(self, factory: Any, *_: Any, **__: Any) -> "Listener":  # type: ignore[override]
        """A TCP port; see `Process.page`."""
        process = PROCESS.get()
        assert process is not None
        process.serve_web = factory
        return Listener(None)

    async def create_unix_server(self, factory: Any, path: Any, **_: Any) -> "Listener":  # type: ignore[override]
        """A unix socket; see `Process.ask`."""
        os.mknod(path, stat.S_IFSOCK | 0o600)
        process = PROCESS.get()
        assert process is not None
        process.serve = factory
        return Listener(Path(path))

    async def create_unix_connection(self, factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        """The sockets of other programs; see `peers`."""
        if str(path) not in self.peers:
            raise ConnectionRefusedError
        protocol = factory()
        transport = _Answering(PROCESS.get(), protocol, self.peers[str(path)])
        protocol.connection_made(transport)
        return transport, protocol

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Kept with the process; see `Process.signals`."""
        process = PROCESS.get()
        assert process is not None
        process.signals[sig] = lambda: callback(*args)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Work of one thread an executor; each piece takes `thread_seconds`, and is done at their end."""
        future: asyncio.Future[Any] = self.create_future()
        line = self._threads.setdefault((executor, PROCESS.get()), deque())
        line.append((future, lambda: func(*args)))
        if len(line) == 1:
            self.call_soon(self._begin, line)
        return future

    def _begin(self, line: "_Line") -> None:
        """What nobody waits for any more is not begun; what is begun is finished."""
        while line and line[0][0].cancelled():
            line.popleft()
        if line:
            seconds = self.thread_seconds()
            self.threads_until = max(self.threads_until, self.now + seconds)
            self.call_later(seconds, self._finish, line)

    def _finish(self, line: "_Line") -> None:
        future, work = line[0]
        self.is_in_thread = True
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the caller's to judge
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)
        finally:
            self.is_in_thread = False
            line.popleft()
            self._begin(line)

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any]) -> None:
        """What nobody will wait for is not closed: Python 3.13 warns of each `aclose` that never ran."""
        if not self._is_discarded:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def discard(self) -> None:
        """End every task where it stands; for the end of a history, when nothing counts any more."""
        self._is_discarded = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()


class _Connection(asyncio.Transport):
    """A process's end of a connection, until the process closes it or dies."""

    def __init__(self, process: Process | None) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self._process = process
        if process is not None:
            process.on_death.append(self.close)

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        if self.closed.is_set():
            return
        self.closed.set()
        if self._process is not None and self._process.is_alive:
            self._process.on_death.remove(self.close)


class _Peer(_Connection):
    """A program's end of a connection to its unix socket."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._protocol: Any = None
        self.said = bytearray()

    async def send(self, protocol: Any, line: bytes) -> None:
        """Connect, and say one line."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._protocol.data_received(line)

    def set_protocol(self, protocol: Any) -> None:
        """Who takes what is said from now on."""
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        """Everything is read at once."""
        return 0

    def write(self, data: Any) -> None:
        self.said += data


class _Answering(_Connection):
    """A connection to a program that answers one line at once."""

    def __init__(
        self, process: Process | None, protocol: Any, answer: Callable[[bytes], bytes]
    ) -> None:
        super().__init__(process)
        self._protocol, self._answer = protocol, answer

    def write(self, data: Any) -> None:
        told = self._answer(bytes(data)) + b"\n"
        asyncio.get_running_loop().call_soon(self._protocol.data_received, told)


class Listener:
    """As `asyncio.Server`."""

    def __init__(self, path: Path | None) -> None:
        self.sockets: tuple[Any, ...] = ()
        self._path = path

    def close(self) -> None:
        """Listen no more; Python 3.11 leaves the socket's node behind."""

    async def wait_closed(self) -> None:
        """Nobody is connected."""


def _task_of_process(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: Context | None = None,
) -> "asyncio.Task[Any]":
    task = asyncio.Task(coroutine, loop=loop, context=context)
    return _owned(task, context.get(PROCESS) if context else PROCESS.get())


def _owned(future: _Future, process: Process | None) -> _Future:
    if process is not None:
        process.futures.add(future)
    return future


def in_process(
    process: Process | None, make: Callable[[], Coroutine[Any, Any, Any]]
) -> "asyncio.Task[Any]":
    """Start a coroutine as code of that process (None: the world around it)."""
    context = Context()
    context.run(PROCESS.set, process)
    return context.run(lambda: asyncio.get_running_loop().create_task(make()))
