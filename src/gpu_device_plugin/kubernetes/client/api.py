"""Requests to the Kubernetes API: bytes out, bytes in."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from gpu_device_plugin.errors import (
    AccessError,
    ClusterError,
    GaveUpError,
    ThrottledError,
    TooLongError,
)
from gpu_device_plugin.kubernetes.client.api_availability import ApiAvailability, RetryPace
from gpu_device_plugin.kubernetes.client.api_connections import (
    connection_error,
    content,
    lines,
    open_session,
)
from gpu_device_plugin.kubernetes.client.credentials import Credentials, load_credentials
from gpu_device_plugin.kubernetes.client.foreign_text import without_controls
from gpu_device_plugin.kubernetes.client.throttle import Throttle
from gpu_device_plugin.kubernetes.client.wire import Status

_JSON, _MERGE_PATCH = "application/json", "application/merge-patch+json"

_CONNECT_SECONDS = 3.0
_CALL_SECONDS = 10.0
_SILENCE_SECONDS = 30.0  # for a list: a large one takes long, and bytes keep coming
# Answers that only mean that the server cannot serve now.
_AWAY = frozenset({401, 502, 503, 504})
_UNAUTHORIZED, _NOT_FOUND, _TOO_MANY, _TIMEOUT = 401, 404, 429, 504


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        most_bytes: A longer answer is not read; 0 for any length.
        check: Called directly before it is sent; what it raises keeps it from being sent.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    most_bytes: int = 0
    check: Callable[[], object] | None = None

    @property
    def kind(self) -> str:
        """Verb and resource, for instance `PATCH pods/` or `GET pods watch`: what is throttled."""
        parts = self.path.removeprefix("/apis").strip("/").split("/")[2:]
        if len(parts) > 2 and parts[0] == "namespaces":
            parts = parts[2:]
        resource = parts[0] + "/" if len(parts) > 1 else "".join(parts)
        return f"{self.method} {resource}{' watch' if 'watch' in self.query else ''}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: an HTTP status, the body and Retry-After, or one line of a watch."""

    status: int
    body: bytes
    retry_after: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_not_found(self) -> bool:
        """Whether the API server has no such object; a 404 of another server says nothing."""
        return self.status == _NOT_FOUND and self._status().code == _NOT_FOUND

    @property
    def is_throttling(self) -> bool:
        """Whether the server is there and throttles this kind of call.

        That is a 429, an error with Retry-After, or a call that the API server itself gave up
        because its storage is slow. A 504 of a proxy is not from the API server.
        """
        if self.status == _TIMEOUT and self._status().code == _TIMEOUT:
            return True
        return self.status == _TOO_MANY or (self.status >= 500 and bool(self.retry_after))

    @property
    def text(self) -> str:
        """The API server's message, in one line, for logs and errors."""
        message = self._status().message or self.body[:200].decode("utf-8", "replace")
        return " ".join(f"{self.status} {message.removeprefix(str(self.status))}".split())

    def _status(self) -> Status:
        """The answer as a Status object; an empty one if it is none."""
        try:
            return msgspec.json.decode(self.body, type=Status)
        except msgspec.MsgspecError:
            return Status()


class ApiServer:
    """A connection pool to the API server.

    What waits for a connection loses its time there: what must not wait for others has a pool of its own.

    `call` goes out at once and fails at once. Everything that runs in the background uses
    `call_in_turn` and `watch`, which wait while the server is away (see `ApiAvailability`) or has asked
    this kind of call to wait (see `Throttle`).
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Credentials]],
        *,
        pace: RetryPace | None = None,
        request_seconds: float = 0,
        connections: int = 16,
    ) -> None:
        """`request_seconds` is the deadline of every `call`; 0 leaves it to the caller."""
        self._request_seconds, self._connections = request_seconds, connections
        self.availability = ApiAvailability(pace or RetryPace())
        self._throttle = Throttle(self.availability.pace)
        self._load = load
        self._lock = asyncio.Lock()
        self._credentials: Credentials | None = None
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def at(cls, kubeconfig: Path | None, **settings: Any) -> Self:
        """The server that a kubeconfig names, or the one of the cluster we run in (None)."""
        return cls.reached_by((kubeconfig,) if kubeconfig else (), **settings)

    @classmethod
    def reached_by(
        cls, files: Sequence[Path], context: str = "", acting_as: str = "", **settings: Any
    ) -> Self:
        """The server of a context of a person's kubeconfig (see `usual_files`, `load_credentials`)."""
        return cls(lambda: load_credentials(files, context, acting_as), **settings)

    async def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self, request: Request, *, deadline_seconds: float | None = _CALL_SECONDS
    ) -> Answer:
        """Send `request` now; without a deadline only silence ends the wait.

        Raises:
            ThrottledError: The server throttles this kind of call, or did a moment ago.
            TooLongError: The answer is longer than the request allows.
            ClusterError: No answer within the deadline, or one that says that the server
                cannot serve now. A refusal is an answer.
        """
        seconds = self._throttle.wait_seconds(request.kind)
        if seconds > 0:
            raise ThrottledError(f"{_name(request)}: throttled for another {seconds:.1f} s")
        timeout = aiohttp.ClientTimeout(
            self._request_seconds or deadline_seconds,
            sock_connect=_CONNECT_SECONDS,
            sock_read=_SILENCE_SECONDS,
        )
        async with self._send(request, timeout) as response:
            answer = await _answer(response, request.most_bytes)
        self._note(request, answer)
        return answer

    async def call_in_turn(
        self, request: Request, *, deadline_seconds: float | None = _CALL_SECONDS
    ) -> Answer:
        """Send `request` when the server is not away and does not throttle it."""
        await self._turn(request)
        try:
            return await self.call(request, deadline_seconds=deadline_seconds)
        except (ThrottledError, TooLongError):
            raise
        except ClusterError as error:
            self.availability.failed(str(error))
            raise

    async def let(self, request: Request) -> None:
        """Wait until the server lets this kind of call through that it throttles."""
        await self._throttle.turn(request.kind)

    async def watch(self, request: Request, *, seconds: int) -> AsyncGenerator[Answer, None]:
        """Yield an empty line when the watch is open, then its lines; or one refusal.

        The server ends the watch after `seconds`; how long it may be silent is the caller's to say.
        """
        query = {**request.query, "watch": "1", "timeoutSeconds": str(seconds)}
        request = Request("GET", request.path, query)
        await self._turn(request)
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS)
        try:
            async with self._send(request, timeout) as response:
                opened = Answer(200, b"") if response.status == 200 else await _answer(response)
                self._note(request, opened)
                yield opened
                if response.status != 200:
                    return
                async for line in lines(response.content):
                    yield Answer(200, without_controls(line))
        except ThrottledError:
            raise
        except ClusterError as error:
            self.availability.failed(str(error))
            raise

    async def _turn(self, request: Request) -> None:
        await self._throttle.turn(request.kind)
        await self.availability.turn()

    def _note(self, request: Request, answer: Answer) -> None:
        """Pass an answer to `reach`; raise for one that only means: not now."""
        if answer.is_throttling:
            self.availability.answered()
            seconds = self._throttle.refused(request.kind, answer.retry_after)
            throttled = ThrottledError if answer.status == _TOO_MANY else GaveUpError
            raise throttled(f"{_name(request)}: {answer.text}; again in {seconds:.1f} s")
        if answer.status in _AWAY:
            if answer.status == _UNAUTHORIZED:
                why = "the credentials are not accepted; have they expired?"
                raise AccessError(f"{_name(request)}: {answer.text}: {why}")
            raise ClusterError(f"{_name(request)}: {answer.text}")
        self._throttle.answered(request.kind)
        self.availability.answered()

    @asynccontextmanager
    async def _send(
        self, request: Request, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            session, credentials = await self._open()
            options = _options(request, credentials)
            url = credentials.server + request.path
            if request.check is not None:
                request.check()
            async with session.request(request.method, url, timeout=timeout, **options) as response:
                if response.status == _UNAUTHORIZED:
                    self._credentials = None  # tokens and certificates rotate: read them again
                yield response
        # ValueError: a header that HTTP does not allow, as of a user or a token with a line break.
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            server = self._credentials.server if self._credentials else "the API server"
            if isinstance(error, aiohttp.ClientSSLError):
                self._credentials = None
            raise connection_error(server, _name(request), error) from error

    async def _open(self) -> tuple[aiohttp.ClientSession, Credentials]:
        async with self._lock:
            if self._credentials is None:
                self._credentials = await self._load()
                await self.close()
            if self._session is None:
                self._session = open_session(self._credentials.tls, self._connections)
            return self._session, self._credentials


def _options(request: Request, credentials: Credentials) -> dict[str, Any]:
    headers = list(credentials.impersonation)
    options: dict[str, Any] = {"params": request.query, "headers": headers}
    if authorization := credentials.authorization():
        headers.append(("Authorization", authorization))
    if request.body is not None:
        kind = _MERGE_PATCH if request.method == "PATCH" else _JSON
        headers.append(("Content-Type", kind))
        options["data"] = msgspec.json.encode(request.body)
    if credentials.tls_server_name:
        options["server_hostname"] = credentials.tls_server_name
    if credentials.proxy:
        options["proxy"] = credentials.proxy
    return options


async def _answer(response: aiohttp.ClientResponse, most_bytes: int = 0) -> Answer:
    body = await content(response, most_bytes)
    return Answer(response.status, without_controls(body), response.headers.get("Retry-After", ""))


def _name(request: Request) -> str:
    return f"{request.method} {request.path}"
