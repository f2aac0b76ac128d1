"""The controller's address for kube-scheduler and the API server: bodies in, bodies out."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.web.http_server import HttpListener
from gpu_device_plugin.web.request_bodies import Bodies, BodyLimits
from gpu_device_plugin.web.tls import ServingTls, caller_name

PREFIX = "/gpushare-scheduler"
MUTATE = "/mutate"
NAME_SCHEDULER = "/name-scheduler"
_JSON = "application/json"
_Handler = Callable[[bytes], bytes | Awaitable[bytes]]
_MIB = 1 << 20
# The API server takes objects of 3 MiB and sends each once. Anybody may send one, where it shows no
# certificate; decoding can take twenty times its size.
_REVIEWS = BodyLimits(8 * _MIB, 12 * _MIB, number=64, seconds=5)
# Many at a time: each waits for the API server.
_BINDINGS = BodyLimits(64 * 1024, 4 * _MIB, number=1024, seconds=5)
_QUESTION_SECONDS = 30.0
# TLS keeps room for the longest answer of a connection until that is closed.
_MOST_KEPT_OPEN = 64 * 1024
_MOST_QUESTIONS = 64


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who answers.

    Attributes:
        filter: Body of a filter call -> body of the answer.
        inspect: A node's name, or None for all -> status and body.
        mutate, name_scheduler: Body of an AdmissionReview -> body of the answer; None where none is served.
        trouble: Why kube-scheduler cannot be answered now, or "".
        mutate_trouble: Why no pod can be judged by its labels now, or "".
        standby: Why this replica does not serve kube-scheduler, or "".
        took: Verb and seconds of each call that was answered.
        answered: Verb and HTTP status of every call.
    """

    filter: _Handler
    prioritize: _Handler
    preempt: _Handler
    bind: _Handler
    inspect: Callable[[str | None], Awaitable[tuple[int, bytes]]]
    trouble: Callable[[], str]
    standby: Callable[[], str] = lambda: ""
    mutate: _Handler | None = None
    name_scheduler: _Handler | None = None
    mutate_trouble: Callable[[], str] = lambda: ""
    took: Callable[[str, float], None] = lambda _verb, _seconds: None
    answered: Callable[[str, str], None] = lambda _verb, _status: None


@dataclass(frozen=True, slots=True)
class Callers:
    """Common names of the certificates that callers have to show; "" wants none."""

    scheduler: str = ""
    api_server: str = ""


class ExtenderServer(HttpListener):
    """Serves `handlers` between `start` and `stop`.

    A replica that does not lead closes kube-scheduler's connection with its answer: the Service's next endpoint
    gets new connections only, and clients of Go keep one for as long as it is used.

    With TLS only kube-scheduler, by its certificate, may call what is its own. The API server shows
    one only where the operator has it do so; what it asks changes nothing.
    """

    def __init__(
        self,
        address: str,
        handlers: Handlers,
        max_body_bytes: int,
        tls: ServingTls | None = None,
        callers: Callers | None = None,
    ) -> None:
        """A question of kube-scheduler, and all at a time, have at most `max_body_bytes`."""
        super().__init__("address", address, tls.context if tls else None)
        self._callers = (callers if tls else None) or Callers()
        self._handlers = handlers
        self._questions = Bodies(
            BodyLimits(max_body_bytes, max_body_bytes, _MOST_QUESTIONS, _QUESTION_SECONDS)
        )
        self._bindings, self._reviews = Bodies(_BINDINGS), Bodies(_REVIEWS)

    @property
    def kept_bytes(self) -> int:
        return sum(each.kept_bytes for each in (self._questions, self._bindings, self._reviews))

    async def start(self) -> None:
        app = web.Application()
        handlers, questions = self._handlers, self._questions
        for verb, handler, bodies in (
            ("filter", handlers.filter, questions),
            ("prioritize", handlers.prioritize, questions),
            ("preempt", handlers.preempt, questions),
            ("bind", handlers.bind, self._bindings),
        ):
            app.router.add_post(f"{PREFIX}/{verb}", self._called(verb, handler, bodies))
        app.router.add_get(f"{PREFIX}/inspect", self._inspect)
        app.router.add_get(f"{PREFIX}/inspect/{{node}}", self._inspect)
        for path, review in ((MUTATE, handlers.mutate), (NAME_SCHEDULER, handlers.name_scheduler)):
            if review is not None:
                app.router.add_post(
                    path, self._called("mutate", review, self._reviews, is_open=True)
                )
        await self.listen(app)

    def _called(
        self, verb: str, handler: _Handler, bodies: Bodies, *, is_open: bool = False
    ) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            if is_open:
                _admit(request, self._callers.api_server)
                trouble = self._handlers.mutate_trouble() if request.path == MUTATE else ""
            else:
                _admit(request, self._callers.scheduler)
                trouble = self._handlers.standby() or self._handlers.trouble()
            if trouble:
                return _unavailable(trouble)
            async with bodies.read(request) as body:
                response = await self._respond(body, verb, handler)
            if is_open and (response.content_length or 0) > _MOST_KEPT_OPEN:
                response.force_close()
            return response

        async def counted(request: web.Request) -> web.Response:
            response = web.Response(status=500)
            try:
                response = await answer(request)
            except web.HTTPException as refused:
                response = refused
                raise
            finally:
                self._handlers.answered(verb, str(response.status))
                if not is_open and self._handlers.standby():
                    response.force_close()
            return response

        return counted

    def end_scheduler_connections(self) -> None:
        """The lead has ended: kube-scheduler has to connect to the next leader."""
        self.end_connections(PREFIX)

    async def _inspect(self, request: web.Request) -> web.Response:
        _admit(request, self._callers.scheduler)
        if trouble := self._handlers.trouble():
            return _unavailable(trouble)
        status, body = await self._handlers.inspect(request.match_info.get("node"))
        return web.Response(body=body, status=status, content_type=_JSON)

    async def _respond(self, body: bytes, verb: str, handler: _Handler) -> web.Response:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answer = handler(body)
            answer = answer if isinstance(answer, bytes) else await answer
        except GpuPluginError as error:
            return web.Response(text=f"{error}\n", status=400)
        self._handlers.took(verb, loop.time() - began)
        return web.Response(body=answer, content_type=_JSON)


def _admit(request: web.Request, name: str) -> None:
    """Only the caller of that name, where one is given: who may bind decides where pods run."""
    shown = caller_name(request.get_extra_info("peercert"))
    if name and shown != name:
        raise web.HTTPForbidden(
            text=f"{request.path} needs a client certificate of {name}; the caller showed {shown or 'none'}\n"
        )


def _unavailable(trouble: str) -> web.Response:
    return web.Response(text=f"{trouble}\n", status=503)
