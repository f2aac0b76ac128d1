"""gRPC over unix sockets in memory: the part of `grpc.aio` that agent and stand-in kubelet use.

Messages are serialised as on a real socket; a socket is a node in the file system, found by
path and told from others by its inode. A server belongs to the process that started it and
dies with it: its peers see what they would see of a kernel that closes its connections.
"""

import asyncio
import contextlib
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from tests.histories.loop import PROCESS, Process, in_process

_CODE = grpc.StatusCode
_LIMIT_BYTES = 4 * 1024 * 1024


class Network:
    """Every socket of the machine.

    Attributes:
        chance: Chooses how long a message takes, 50 to 500 µs.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._servers: dict[str, tuple[int, Server]] = {}

    def server(self, **_: Any) -> "Server":
        """As `grpc.aio.server`."""
        return Server(self)

    def channel(self, target: str, **_: Any) -> "Channel":
        """As `grpc.aio.insecure_channel`."""
        return Channel(self, target.removeprefix("unix:"))

    def listen(self, path: str, server: "Server") -> None:
        """Make the socket's node; what was there is replaced, as gRPC does."""
        Path(path).unlink(missing_ok=True)
        try:
            os.mknod(path, stat.S_IFSOCK | 0o600)
        except OSError as error:
            raise RuntimeError(f"Failed to bind to address unix:{path}: {error}") from error
        self._servers[path] = (Path(path).stat().st_ino, server)

    def found(self, path: str) -> "Server | None":
        """Who listens on the socket that lies at `path` now."""
        inode, server = self._servers.get(path, (0, None))
        try:
            return (
                server if server and server.is_open and Path(path).stat().st_ino == inode else None
            )
        except OSError:
            return None

    async def carry(self) -> None:
        """A message on its way."""
        await asyncio.sleep(self.chance.uniform(0.00005, 0.0005))


class Server:
    """As `grpc.aio.Server`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.process: Process | None = PROCESS.get()
        self.is_open = False
        self._paths: list[str] = []
        self._handlers: list[Any] = []
        self._calls: dict[asyncio.Task[None], Call] = {}

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        self._handlers += handlers

    def add_insecure_port(self, target: str) -> int:
        self._paths.append(target.removeprefix("unix:"))
        return 1

    async def start(self) -> None:
        for path in self._paths:
            self.network.listen(path, self)
        self.is_open = True
        if self.process is not None:
            self.process.on_death.append(self.died)

    async def stop(self, grace: float | None) -> None:
        if not self.is_open:
            return
        for path in self._paths:
            if self.network.found(path) is self:
                Path(path).unlink(missing_ok=True)
        self.is_open = False
        if self._calls and grace:
            await asyncio.wait(set(self._calls), timeout=grace)
        for task in tuple(self._calls):
            task.cancel()
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=1.0)
        self.died()

    def died(self) -> None:
        """Its process is gone: nobody unlinks the sockets, every peer's connection breaks."""
        self.is_open = False
        for call in tuple(self._calls.values()):
            call.broke("Socket closed")
        self._calls.clear()

    def begin(self, method: str, data: bytes, call: "Call") -> None:
        """Run a handler as code of the server's process."""
        details = _Details(method)
        handlers = (handler.service(details) for handler in self._handlers)
        found = next((handler for handler in handlers if handler is not None), None)
        task = in_process(self.process, lambda: self._serve(found, data, call))
        self._calls[task] = call
        call.cancel = task.cancel
        task.add_done_callback(lambda done: self._calls.pop(done, None) and None)

    async def _serve(self, handler: Any, data: bytes, call: "Call") -> None:
        if handler is None:
            call.failed(_CODE.UNIMPLEMENTED, "Method not found!")
            return
        try:
            request = handler.request_deserializer(data)
            if handler.response_streaming:
                await handler.unary_stream(request, call)
                call.ended()
            else:
                response = await handler.unary_unary(request, call)
                call.answered(handler.response_serializer(response))
        except _AbortedError as error:
            call.failed(error.code, error.details)
        except asyncio.CancelledError:
            call.failed(_CODE.CANCELLED, "CANCELLED")
            raise
        except Exception as error:
            call.failed(_CODE.UNKNOWN, f"Unexpected {type(error)}: {error}")
            raise


class Call:
    """One call, and the servicer's context of it."""

    def __init__(self, peer: Process | None) -> None:
        self.cancel: Callable[[], object] = lambda: None
        self.peer = peer
        self._messages: asyncio.Queue[bytes | grpc.aio.AioRpcError | None] = asyncio.Queue()

    async def abort(self, code: Any, details: str) -> None:
        raise _AbortedError(code, details)

    async def write(self, message: bytes) -> None:
        self._messages.put_nowait(message)

    async def next(self) -> bytes | None:
        """The next message, None at the end.

        Raises:
            AioRpcError: How the call failed.
        """
        found = await self._messages.get()
        if isinstance(found, grpc.aio.AioRpcError):
            raise found
        if found is not None and len(found) > _LIMIT_BYTES:
            self.cancel()
            raise _error(_CODE.RESOURCE_EXHAUSTED, "received message larger than max")
        return found

    def answered(self, data: bytes) -> None:
        self._messages.put_nowait(data)

    def ended(self) -> None:
        self._messages.put_nowait(None)

    def failed(self, code: Any, details: str) -> None:
        self._messages.put_nowait(_error(code, details))

    def broke(self, details: str) -> None:
        self.failed(_CODE.UNAVAILABLE, details)


class Channel:
    """As `grpc.aio.Channel`."""

    def __init__(self, network: Network, path: str) -> None:
        self._network = network
        self._path = path
        self._server: Server | None = None
        self._calls: dict[Call, None] = {}

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        if grace and self._calls:
            await asyncio.sleep(0)
        for call in tuple(self._calls):
            call.cancel()
            call.failed(_CODE.CANCELLED, "Channel closed!")

    async def channel_ready(self) -> None:
        while not self._connect():
            await asyncio.sleep(0.1)

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any
    ) -> Callable[..., Awaitable[Any]]:
        async def ask(request: Any, timeout: float | None = None) -> Any:
            async with self._call(method, request_serializer(request)) as call:
                try:
                    async with asyncio.timeout(timeout):
                        data = await call.next()
                except TimeoutError:
                    raise _error(_CODE.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
                return response_deserializer(data)

        return ask

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any
    ) -> Callable[[Any], AsyncIterator[Any]]:
        async def listen(request: Any) -> AsyncIterator[Any]:
            async with self._call(method, request_serializer(request)) as call:
                while (data := await call.next()) is not None:
                    yield response_deserializer(data)

        return listen

    @contextlib.asynccontextmanager
    async def _call(self, method: str, data: bytes) -> AsyncIterator[Call]:
        await self._network.carry()
        server = self._connect()
        if server is None:
            raise _error(_CODE.UNAVAILABLE, f"failed to connect to unix:{self._path}")
        process = PROCESS.get()
        call = Call(process)
        self._calls[call] = None
        server.begin(method, data, call)
        if process is not None:
            process.on_death.append(call.cancel)
        try:
            yield call
            await self._network.carry()
        finally:
            call.cancel()
            self._calls.pop(call)
            if process is not None and process.is_alive:
                process.on_death.remove(call.cancel)

    def _connect(self) -> Server | None:
        if self._server is None or not self._server.is_open:
            self._server = self._network.found(self._path)
        return self._server


class _Details:
    """As `grpc.HandlerCallDetails`."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class _AbortedError(Exception):
    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def _error(code: Any, details: str) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, metadata, metadata, details=details)
