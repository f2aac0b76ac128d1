"""Whom nobody knows may send what he likes to our addresses: what we keep of it and do for it is bounded."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from tests.web.test_tls import a_set
from tools.harness.waiting import until

from gpu_device_plugin.web import http_server
from gpu_device_plugin.web.certificate_authority import AUTHORITY, SERVING, SERVING_KEY
from gpu_device_plugin.web.connections import MOST_UNSENT_BYTES
from gpu_device_plugin.web.extender_server import MUTATE, PREFIX, ExtenderServer, Handlers
from gpu_device_plugin.web.http_server import HttpListener, ReadyState, WebServer
from gpu_device_plugin.web.request_bodies import Bodies, BodyLimits
from gpu_device_plugin.web.tls import ServingTls

_MIB = 1 << 20
_FILTER, _BIND = f"{PREFIX}/filter", f"{PREFIX}/bind"


async def bound(_: bytes) -> bytes:
    """The answer to a bind call."""
    return b"{}"


async def inspected(_: str | None) -> tuple[int, bytes]:
    """The answer to a question about nodes."""
    return 200, b""


def length(body: bytes) -> bytes:
    """An answer that says what came."""
    return str(len(body)).encode()


@asynccontextmanager
async def an_extender() -> AsyncIterator[ExtenderServer]:
    """The controller's address, with answers that cost nothing."""
    handlers = Handlers(length, length, length, bound, inspected, lambda: "", mutate=length)
    server = ExtenderServer("127.0.0.1:0", handlers, 96 * _MIB)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@dataclass
class Sent:
    """A request whose body may never end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: int = 0

    async def body(self, size: int) -> None:
        """So much more of the body, in pieces; less where the server has closed."""
        try:
            for _ in range(size // 65536):
                self.writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                await self.writer.drain()
                self.sent += 65536
        except ConnectionError:
            pass

    async def status(self) -> int:
        """The status of the answer; 0 where the connection was closed without one."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0


@asynccontextmanager
async def connected(port: int, limit: int = 65536) -> AsyncIterator[Sent]:
    """A connection on which nothing has been said; a writer that nobody keeps would close it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield Sent(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def unfinished(port: int, path: str) -> AsyncIterator[Sent]:
    """A request of which only the headers have come."""
    async with connected(port) as sent:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        sent.writer.write(head.encode())
        yield sent


async def posted(port: int, path: str, body: bytes) -> tuple[int, str]:
    """Status and text of the answer to an ordinary request."""
    url = f"http://127.0.0.1:{port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=io.BytesIO(body)) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize("callers", [8, 32])
async def test_reviews_that_never_end_are_kept_up_to_a_bound_and_others_are_answered(
    callers: int,
) -> None:
    """Four times the callers make us keep no more, and they keep nobody's pod from being judged."""
    async with an_extender() as server, AsyncExitStack() as stack:
        sent = [
            await stack.enter_async_context(unfinished(server.port, MUTATE)) for _ in range(callers)
        ]
        kept = []

        async def send(one: Sent) -> None:
            for _ in range(7):
                await one.body(_MIB)
                kept.append(server.kept_bytes)

        await asyncio.gather(*map(send, sent))
        assert 0 < max(kept) <= 13 * _MIB
        assert await posted(server.port, MUTATE, b"x" * 4 * _MIB) == (200, str(4 * _MIB))


@pytest.mark.parametrize(
    ("path", "fits", "is_too_long"),
    [(MUTATE, 8 * _MIB, 8 * _MIB + 1), (_BIND, 65536, 65537), (_FILTER, 16 * _MIB, 96 * _MIB + 1)],
)
async def test_each_route_takes_bodies_of_its_own_size_and_says_so(
    path: str, fits: int, is_too_long: int
) -> None:
    """By its Content-Length, before any of it is read, and where it has none as it comes."""
    async with an_extender() as server:
        assert (await posted(server.port, path, b" " * fits))[0] == 200
        async with connected(server.port) as sent:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {is_too_long}\r\n\r\n"
            sent.writer.write(head.encode())
            assert await sent.status() == 413
        if path != _FILTER:
            async with unfinished(server.port, path) as sent:
                sending = asyncio.ensure_future(sent.body(fits + 65536))
                assert await sent.status() == 413
                await sending


@pytest.mark.parametrize(("path", "is_kept"), [(MUTATE, False), (_FILTER, True)])
async def test_the_connection_of_a_long_answer_to_anybody_is_closed(
    path: str, *, is_kept: bool
) -> None:
    """TLS keeps room for the longest answer as long as a connection is open."""

    def repeat(body: bytes) -> bytes:
        return body

    handlers = Handlers(repeat, repeat, repeat, bound, inspected, lambda: "", mutate=repeat)
    server = ExtenderServer("127.0.0.1:0", handlers, 96 * _MIB)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url, closed = f"http://127.0.0.1:{server.port}{path}", []
        for size in (64 * 1024, 64 * 1024 + 1):
            async with session.post(url, data=io.BytesIO(b" " * size)) as response:
                assert len(await response.read()) == size
                closed.append(response.headers.get("Connection") == "close")
    assert closed == [False, not is_kept]


async def test_five_thousand_names_are_asked_for_at_once() -> None:
    """What kube-scheduler sends of a large cluster."""
    names = [f"gpu-node-of-a-large-cluster-{number:05}.example.com" for number in range(5000)]
    body = json.dumps({"Pod": {"metadata": {}}, "NodeNames": names}).encode()
    async with an_extender() as server:
        asked = (posted(server.port, _FILTER, body) for _ in range(16))
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}


@asynccontextmanager
async def with_limits(limits: BodyLimits) -> AsyncIterator[int]:
    """The port of a server that reads bodies by these limits."""
    bodies = Bodies(limits)

    async def answer(request: web.Request) -> web.Response:
        async with bodies.read(request) as body:
            return web.Response(text=str(len(body)))

    app = web.Application()
    app.router.add_post("/", answer)
    listener = HttpListener("address", "127.0.0.1:0")
    await listener.listen(app)
    try:
        yield listener.port
    finally:
        await listener.stop()


async def test_a_body_that_does_not_come_is_answered_408() -> None:
    """A few bytes a minute keep no request open."""
    async with (
        with_limits(BodyLimits(_MIB, _MIB, 8, seconds=0.05)) as port,
        unfinished(port, "/") as sent,
    ):
        assert await sent.status() == 408


async def test_of_too_many_unfinished_bodies_the_oldest_gives_way() -> None:
    """So a newcomer is read, however many wait."""
    limits = BodyLimits(_MIB, _MIB, 2, seconds=60)
    async with with_limits(limits) as port, AsyncExitStack() as stack:
        sent = [await stack.enter_async_context(unfinished(port, "/")) for _ in range(5)]
        assert [await one.status() for one in sent[:3]] == [503, 503, 503]
        assert await posted(port, "/", b"x") == (200, "1")
        assert await sent[3].status() == 503


@asynccontextmanager
async def listening(tls: ServingTls | None, most: int) -> AsyncIterator[HttpListener]:
    """A listener that answers every GET."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", answer)
    listener = HttpListener("address", "127.0.0.1:0", tls.context if tls else None, most)
    await listener.listen(app)
    try:
        yield listener
    finally:
        await listener.stop()


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\nX-Never"], ids=["silent", "half a header"]
)
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("callers", [20, 80])
async def test_connections_that_ask_nothing_are_closed_for_those_that_do(
    callers: int, says: bytes, *, is_encrypted: bool
) -> None:
    """Also before the handshake: there a connection costs most."""
    tls = None
    if is_encrypted:
        made, tls = a_set(), ServingTls()
        tls.use(made[SERVING], made[SERVING_KEY], made[AUTHORITY])
    async with listening(tls, 8) as listener, AsyncExitStack() as stack:
        for _ in range(callers):
            sent = await stack.enter_async_context(connected(listener.port))
            sent.writer.write(says)
            await until(lambda: listener.connections > 0)
            assert listener.connections <= 8
        scheme = "https" if is_encrypted else "http"
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{scheme}://127.0.0.1:{listener.port}/", ssl=False) as response,
        ):
            assert await response.text() == "here"
        assert listener.connections <= 8


@pytest.mark.parametrize("callers", [10, 40])
async def test_answers_that_nobody_reads_are_kept_up_to_a_bound(callers: int) -> None:
    """Who leaves most unread is cut off, and the others are answered."""
    answered = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal answered
        answered += 1
        return web.Response(body=bytes(8 * _MIB))

    app = web.Application()
    app.router.add_get("/", answer)
    listener, kept = HttpListener("address", "127.0.0.1:0"), []
    await listener.listen(app)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(listener.stop)
        for number in range(callers):
            sent = await stack.enter_async_context(connected(listener.port, limit=1))
            sent.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda asked=number + 1: answered == asked)
            for _ in range(5):
                await asyncio.sleep(0)
                kept.append(listener.unsent_bytes)
        url = f"http://127.0.0.1:{listener.port}/"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert len(await response.read()) == 8 * _MIB
    assert max(kept) <= MOST_UNSENT_BYTES + 8 * _MIB


@dataclass
class Costly:
    """A metrics page that costs much; how often it was made, and how many at a time."""

    size: int = 1
    made: int = 0
    at_once: list[int] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    _now: int = 0

    async def page(self, _: str) -> tuple[bytes, str]:
        self.made += 1
        self._now += 1
        self.at_once.append(self._now)
        await self.go_on.wait()
        self._now -= 1
        return b"#" * self.size, "text/plain; version=0.0.4"


@asynccontextmanager
async def metrics_of(costly: Costly) -> AsyncIterator[WebServer]:
    """A server of that page."""
    server = WebServer("127.0.0.1:0", costly.page, lambda: ReadyState(is_ready=True, text="ready"))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def scraped(port: int, accept: str = "") -> int:
    """The length of the metrics page."""
    url, headers = f"http://127.0.0.1:{port}/metrics", {"Accept": accept}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return len(await response.read())


@pytest.mark.parametrize("callers", [10, 80])
async def test_one_metrics_page_is_made_for_all_who_ask_at_a_time(
    callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of the two forms, whatever else an Accept header says."""
    costly = Costly()
    monkeypatch.setattr(
        http_server, "_KEPT_SECONDS", 600.0
    )  # however long they take to connect here
    forms = ["application/openmetrics-text; version={}; q=0.{}", "text/plain; version={}; q=0.{}"]
    async with metrics_of(costly) as server:
        asked = [
            asyncio.ensure_future(scraped(server.port, forms[n % 2].format(n, n)))
            for n in range(callers)
        ]
        await until(lambda: costly.made)
        costly.go_on.set()
        await asyncio.gather(*asked)
        await scraped(server.port)
    assert (costly.made, max(costly.at_once)) == (2, 1)


@pytest.mark.parametrize("callers", [4, 16])
async def test_callers_that_do_not_read_a_long_page_make_us_keep_it_once(callers: int) -> None:
    """A transport copies what it is given, so each gets only a piece until it has read that."""
    costly = Costly(size=32 * _MIB)
    costly.go_on.set()
    async with metrics_of(costly) as server, AsyncExitStack() as stack:
        for _ in range(callers):
            sent = await stack.enter_async_context(connected(server.port, limit=1))
            sent.writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server.unsent_bytes > 0)
        for _ in range(20):
            await asyncio.sleep(0)
            assert server.unsent_bytes <= callers * 192 * 1024
        assert await scraped(server.port) == costly.size
