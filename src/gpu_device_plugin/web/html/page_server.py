"""The page's address: pages, events and sign-in, with the headers that a browser enforces.

Templates, the script and the stylesheet; every value is escaped unless it is a template's own.
"""

import asyncio
import hashlib
import ipaddress
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.web.connections import MOST_CONNECTIONS
from gpu_device_plugin.web.http_server import HttpListener, ReadyState, add_probes
from gpu_device_plugin.web.tls import ServingTls

_HERE = Path(__file__).resolve().parent
_STATIC = {"page.js": "text/javascript", "page.css": "text/css"}


class Html:
    """What the page consists of, read once; `static` is name -> content and type of a file."""

    def __init__(self, grafana: str = "", cluster: str = "") -> None:
        """`grafana` is the dashboard that pods and nodes link to, `cluster` a name; "" for none."""
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["code"] = with_code
        self.static = {
            name: ((_HERE / "static" / name).read_bytes(), kind) for name, kind in _STATIC.items()
        }
        contents = b"".join(content for content, _ in self.static.values())
        version = hashlib.sha256(contents).hexdigest()[:12]
        self._templates.globals.update(grafana=grafana, cluster=cluster, version=version)

    def render(self, template: str, **values: object) -> str:
        text: str = self._templates.get_template(template + ".html").render(values)
        return text

    def own(self, html: str) -> Markup:
        """What `render` has made before, to be put into another template as it is."""
        return Markup(html)  # noqa: S704 a template has made it


TOKEN, NAMESPACE, THEME = "gpu-page-token", "gpu-page-namespace", "gpu-page-theme"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NAME = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_NAMESPACE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_OPEN = ("/static/", "/healthz", "/readyz", "/login")
_SCOPE = web.RequestKey("scope", str)
_MOST_STREAMS = 500
_MOST_STREAMS_OF_TOKEN = 20
_MOST_BODY = 1 << 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: an HTTP status, and words."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One server-sent event: its name, its data as JSON, and where the reader then is."""

    name: str
    data: Mapping[str, object]
    at: str


class Shown(Protocol):
    """What one reader may see: everything, or one namespace."""

    def page(self) -> Mapping[str, object]:
        """Values of `templates/page.html`, but for what the server adds."""

    def events(self, at: str) -> AsyncIterator[ServerSentEvent]:
        """What has changed since that place, and whatever changes, until cancelled."""

    async def pod(self, namespace: str, name: str) -> str | None:
        """A pod's story as HTML; None where there is none; ClusterError: the API server does not tell."""

    async def node(self, name: str) -> str | None:
        """A node's cards as HTML; None and ClusterError as above."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the server asks for.

    Attributes:
        shown: A scope, "" for all or a namespace -> what its readers see.
        scope: A bearer token, or "" for none, the address that shows it, and the namespace that is
            enough (or "") -> what it may see, or why nothing.
    """

    shown: Callable[[str], Awaitable[Shown]]
    scope: Callable[[str, str, str], Awaitable[Refusal | str]]
    readiness: Callable[[], ReadyState]


class PageServer(HttpListener):
    """Serves `content` between `start` and `stop`.

    On a loopback address everybody on this machine may read; elsewhere each request has to show a
    bearer token, in its header or in the cookie of the sign-in form.
    """

    def __init__(
        self, address: str, content: Content, html: Html, tls: ServingTls | None = None
    ) -> None:
        connections = _MOST_STREAMS + MOST_CONNECTIONS
        super().__init__("address", address, tls.context if tls else None, connections)
        self._is_local = _is_loopback(self._host)
        self._content, self._html = content, html
        self._readers: dict[asyncio.Task[Any], str] = {}

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=_MOST_BODY)
        app.router.add_get("/", self._page)
        app.router.add_get(f"/pod/{{namespace:{_NAME}}}/{{name:{_NAME}}}", self._pod)
        app.router.add_get(f"/node/{{name:{_NAME}}}", self._node)
        app.router.add_get("/events", self._events)
        app.router.add_get("/static/{name}", self._static)
        add_probes(app, self._content.readiness)
        if not self._is_local:
            app.router.add_post("/login", self._login)
            app.router.add_post("/logout", self._logout)
        app.on_shutdown.append(self._end_streams)
        await self.listen(app)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every answer has the headers; only who may read gets more than the sign-in form."""
        try:
            scope = "" if request.path.startswith(_OPEN) else await self._scope(request)
            if isinstance(scope, Refusal):
                answer: web.StreamResponse = self._refuse(scope)
            else:
                request[_SCOPE] = scope
                answer = await handler(request)
        except web.HTTPException as error:
            answer = self._message(HTTPStatus(error.status), error.reason)
        if not answer.prepared:
            answer.headers.update({**_HEADERS, **answer.headers})
        return answer

    async def _scope(self, request: web.Request) -> Refusal | str:
        if not self._is_local:
            wanted = _namespace(request.cookies.get(NAMESPACE, ""))
            return await self._content.scope(_token(request), request.remote or "", wanted)
        # A page of another site whose name leads to this machine would be of the same origin.
        host = re.sub(r":\d+$", "", request.host).strip("[]")
        if _is_loopback(host):
            return ""
        text = f"this address serves localhost only, not {host}"
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, text)

    async def _shown(self, request: web.Request) -> Shown:
        return await self._content.shown(request[_SCOPE])

    def _refuse(self, refusal: Refusal) -> web.Response:
        answer = self._message(refusal.status, refusal.text)
        if refusal.status is HTTPStatus.UNAUTHORIZED:
            answer.headers["WWW-Authenticate"] = "Bearer"
        return answer

    def _message(self, status: HTTPStatus, text: str) -> web.Response:
        asks = not self._is_local and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return _html(self._html.render("message", text=text, asks_token=asks, theme=""), status)

    async def _page(self, request: web.Request) -> web.Response:
        values = (await self._shown(request)).page()
        has_token = not request.cookies.keys().isdisjoint((TOKEN, NAMESPACE))
        answer = _html(
            self._html.render("page", **values, theme=_theme(request), has_token=has_token)
        )
        answer.enable_compression()
        return answer

    async def _pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        story = (await self._shown(request)).pod(namespace, name)
        missing = f"no pod {namespace}/{name}, and no Event about one"
        return await self._story(request, story, missing)

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        missing = f"no node {name}, or it publishes no cards: `kubectl gpu doctor`"
        return await self._story(request, (await self._shown(request)).node(name), missing)

    async def _story(
        self, request: web.Request, story: Awaitable[str | None], missing: str
    ) -> web.Response:
        """A page of its own, or with `?part` the part that the script puts beside the nodes."""
        try:
            html = await story
        except ClusterError as error:
            return self._message(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if html is None:
            return self._message(HTTPStatus.NOT_FOUND, missing)
        if "part" in request.query:
            return _html(html)
        values = {"name": request.path.split("/", 2)[2], "theme": _theme(request)}
        return _html(self._html.render("story_page", story=self._html.own(html), **values))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        reader, token = asyncio.current_task(), _token(request)
        if reader is None or self._is_full(token):
            return self._message(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many browsers follow this page"
            )
        kind = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        answer = web.StreamResponse(headers={**_HEADERS, **kind})
        await answer.prepare(request)
        at = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        self._readers[reader] = token
        try:
            async for event in (await self._shown(request)).events(at):
                # A right may be taken away while the stream is open.
                scope = await self._scope(request)
                is_away = (
                    isinstance(scope, Refusal) and scope.status is HTTPStatus.SERVICE_UNAVAILABLE
                )
                if scope != request[_SCOPE] and not is_away:
                    break
                data = json.dumps(event.data, separators=(",", ":"))
                text = f"id: {event.at}\nevent: {event.name}\ndata: {data}\n\n"
                await answer.write(text.encode())
        except ConnectionError:
            pass  # the reader has gone
        finally:
            self._readers.pop(reader, None)
        return answer

    def _is_full(self, token: str) -> bool:
        """Whether no browser more may follow: none at all, or of those with this token."""
        of_token = sum(each == token for each in self._readers.values())
        bound = _MOST_STREAMS if self._is_local else _MOST_STREAMS_OF_TOKEN
        return len(self._readers) >= _MOST_STREAMS or of_token >= bound

    async def _end_streams(self, _: web.Application) -> None:
        """The browsers' streams never end by themselves; closing would wait for them in vain."""
        for reader in self._readers:
            reader.cancel()

    async def _static(self, request: web.Request) -> web.Response:
        found = self._html.static.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        content, kind = found
        kept = {"Cache-Control": "public, max-age=86400, immutable"}
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=kept)

    async def _login(self, request: web.Request) -> web.Response:
        form = await request.post()
        token, namespace = str(form.get("token", "")).strip(), str(form.get("namespace", ""))
        namespace = _namespace(namespace.strip())
        # A proxy that signs people in shows their token by itself.
        scope = await self._content.scope(token or _token(request), request.remote or "", namespace)
        if isinstance(scope, Refusal):
            return self._refuse(scope)
        answer = _to_the_page()
        is_secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
        for name, value in ((TOKEN, token), (NAMESPACE, scope)):
            if value:
                answer.set_cookie(
                    name, value, httponly=True, samesite="Strict", secure=is_secure, path="/"
                )
        return answer

    async def _logout(self, _: web.Request) -> web.Response:
        answer = _to_the_page()
        answer.del_cookie(TOKEN)
        answer.del_cookie(NAMESPACE)
        return answer


def with_code(text: str) -> Markup:
    """A text whose commands stand in backticks, as in a terminal."""
    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 escaped


def _token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else request.cookies.get(TOKEN, "")


def _namespace(given: str) -> str:
    """A name that a namespace can have, or none."""
    return given if _NAMESPACE_NAME.fullmatch(given) else ""


def _theme(request: web.Request) -> str:
    theme = request.cookies.get(THEME, "")
    return theme if theme in ("light", "dark") else ""


def _html(text: str, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


def _to_the_page() -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})


def _is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach it.

    >>> [_is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "", "10.0.0.1")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
