"""The controller's address for kube-scheduler and the API server: bodies in, bodies out."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from gpu_device_plugin.errors import GpuPluginError
from gpu_device_plugin.web.server import Listener
from gpu_device_plugin.web.tls import ServingTls, caller_name

PREFIX = "/gpushare-scheduler"
MUTATE = "/mutate"
_JSON = "application/json"
_Handler = Callable[[bytes], bytes | Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who answers.

    Attributes:
        filter: Body of a filter call -> body of the answer.
        prioritize: The same for prioritize.
        preempt: The same for preempt.
        bind: The same for bind.
        inspect: A node's name, or None for all -> status and body.
        mutate: Body of an AdmissionReview -> body of the answer; None where none is served.
        trouble: Why kube-scheduler cannot be answered now, or "".
        webhook_trouble: Why the API server cannot be, or "".
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
    webhook_trouble: Callable[[], str] = lambda: ""
    took: Callable[[str, float], None] = lambda _verb, _seconds: None
    answered: Callable[[str, int], None] = lambda _verb, _status: None


@dataclass(frozen=True, slots=True)
class Callers:
    """Common names of the certificates that callers have to show; "" wants none.

    Attributes:
        scheduler: Of kube-scheduler.
        api_server: Of who asks the webhook.
    """

    scheduler: str = ""
    api_server: str = ""


class ExtenderServer:
    """Serves `handlers` between `start` and `stop`.

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
        """Remember what to serve.

        Args:
            address: Where.
            handlers: Who answers.
            max_body_bytes: A longer body is answered 413.
            tls: Certificate and key; None is plain HTTP, on which anybody may call.
            callers: Who may call, where there is TLS.
        """
        self._listener = Listener("address", address, tls.context if tls else None)
        self._callers = (callers if tls else None) or Callers()
        self._handlers = handlers
        self._max_body_bytes = max_body_bytes

    @property
    def port(self) -> int:
        """The port listened on; of use where the address says 0."""
        return self._listener.port

    async def start(self) -> None:
        """Listen.

        Raises:
            EdgeError: The address cannot be listened on; the text names it.
        """
        app = web.Application(client_max_size=self._max_body_bytes)
        handlers = self._handlers
        for verb, handler in (
            ("filter", handlers.filter),
            ("prioritize", handlers.prioritize),
            ("preempt", handlers.preempt),
            ("bind", handlers.bind),
        ):
            app.router.add_post(f"{PREFIX}/{verb}", self._called(verb, handler))
        app.router.add_get(f"{PREFIX}/inspect", self._inspect)
        app.router.add_get(f"{PREFIX}/inspect/{{node}}", self._inspect)
        if handlers.mutate is not None:
            app.router.add_post(MUTATE, self._called("mutate", handlers.mutate, is_open=True))
        await self._listener.start(app)

    async def stop(self) -> None:
        """Stop listening and close what is open."""
        await self._listener.stop()

    def _called(self, verb: str, handler: _Handler, *, is_open: bool = False) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            if is_open:
                _admit(request, self._callers.api_server)
                trouble = self._handlers.webhook_trouble()
            else:
                _admit(request, self._callers.scheduler)
                trouble = self._handlers.standby() or self._handlers.trouble()
            if trouble:
                return _unavailable(trouble)
            return await self._answered(request, verb, handler)

        async def counted(request: web.Request) -> web.Response:
            status = 500
            try:
                response = await answer(request)
                status = response.status
            except web.HTTPException as refused:
                status = refused.status
                raise
            finally:
                self._handlers.answered(verb, status)
            return response

        return counted

    async def _inspect(self, request: web.Request) -> web.Response:
        _admit(request, self._callers.scheduler)
        if trouble := self._handlers.trouble():
            return _unavailable(trouble)
        status, body = await self._handlers.inspect(request.match_info.get("node"))
        return web.Response(body=body, status=status, content_type=_JSON)

    async def _answered(self, request: web.Request, verb: str, handler: _Handler) -> web.Response:
        if (request.content_length or 0) > self._max_body_bytes:
            # Unread: a body that is too long must not be paid for.
            raise web.HTTPRequestEntityTooLarge(
                max_size=self._max_body_bytes, actual_size=request.content_length or 0
            )
        body = await request.read()
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
            text=f"{request.path} wants a certificate of {name}, shown was: {shown or 'none'}\n"
        )


def _unavailable(trouble: str) -> web.Response:
    return web.Response(text=f"{trouble}\n", status=503)
