"""A TCP forwarder: a Service whose endpoint moves, or a proxy that passes nothing on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 1 << 16


class Forwarder:
    """Connects every new connection to `target`; connections that are there stay where they are.

    Attributes:
        target: Port on loopback.
        is_passing: Whether bytes go on; meanwhile connections stay open, and are taken.
        accepted: How many connections there have been.
    """

    def __init__(self, target: int) -> None:
        self.target, self.accepted = target, 0
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_passing(self) -> bool:
        """Whether bytes go on, but for connections of before `hang`."""
        return self._passes.is_set()

    @is_passing.setter
    def is_passing(self, passes: bool) -> None:
        (self._passes.set if passes else self._passes.clear)()

    def hang(self) -> None:
        """Let the connections that are there pass nothing on any more; new ones do."""
        self._passes.clear()
        self._passes = asyncio.Event()
        self._passes.set()

    async def start(self) -> None:
        """Listen on a port of loopback."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)

    async def stop(self) -> None:
        """End, with every connection."""
        if self._server is not None:
            self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        passes = self._passes
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pipe(reader, back, passes))
                group.create_task(self._pipe(there, writer, passes))
        except OSError:
            writer.close()
        finally:
            self._pipes.discard(task)

    async def _pipe(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        """Pass on until the sender closes; then close too."""
        try:
            with suppress(OSError):
                while chunk := await reader.read(_CHUNK):
                    await passes.wait()
                    writer.write(chunk)
                    await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def forwarding(target: int) -> AsyncIterator[Forwarder]:
    """A forwarder that runs meanwhile."""
    forwarder = Forwarder(target)
    await forwarder.start()
    try:
        yield forwarder
    finally:
        await forwarder.stop()
