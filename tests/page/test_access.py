"""On an address that others reach, the page is for those who may list what it shows; the API server decides."""

import asyncio
import datetime
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tools.harness.api_server import FakeApiServer, Seen, running, status, working
from tools.harness.page.clusters import small
from tools.harness.waiting import until

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.page.access import NEEDED, Access
from gpu_device_plugin.page.run_page import Page, PageSettings, PageTimes
from gpu_device_plugin.web.certificate_authority import renew

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Exposed = tuple[FakeApiServer, "Users", str]


TOKEN = "good-token"  # noqa: S105 of no cluster
_NAMES = {TOKEN: "good-user", "poor": "poor-user"}


class Users:
    """What the API server knows of users: token -> what its owner may do."""

    def __init__(self) -> None:
        self.rights = {
            TOKEN: {str(right) for right in NEEDED},
            "poor": {"list pods", "list events"},
        }

    def __call__(self, seen: Seen) -> web.Response | None:
        if seen.path == TOKENS:
            token = seen.body["spec"]["token"]
            user = {"username": _NAMES.get(token, ""), "groups": ["g"], "extra": {"k": ["v"]}}
            known = {"authenticated": True, "user": user}
            return web.json_response({"status": known if token in self.rights else {}}, status=201)
        if seen.path == ACCESS:
            spec = seen.body["spec"]
            assert (spec["groups"], spec["extra"]) == (["g"], {"k": ["v"]})
            asked = spec["resourceAttributes"]
            granted = next(
                (self.rights.get(t, set()) for t, name in _NAMES.items() if name == spec["user"]),
                set(),
            )
            allowed = f"{asked['verb']} {asked['resource']}" in granted
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        return None


@pytest.fixture
async def exposed() -> AsyncIterator[tuple[FakeApiServer, Users, str]]:
    """The page on every address, its API server and who that knows."""
    async with running() as (server, api):
        small(server)
        users = Users()
        server.fault = users
        page = Page(PageSettings("0.0.0.0:0"), api, PageTimes(kept_seconds=2.0, beat_seconds=0.05))
        async with working(page.run):
            await until(lambda: page.server.port and page.readiness()[0])
            yield server, users, f"http://127.0.0.1:{page.server.port}"


async def ask(url: str, token: str = "", **options: Any) -> tuple[int, str]:
    """Status and text."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, **options) as answer,
    ):
        return answer.status, await answer.text()


async def place_of(url: str) -> str:
    """Where a reader of the page is."""
    found = re.search(r'data-at="([^"]+)"', (await ask(url, TOKEN))[1])
    assert found
    return found[1]


@pytest.mark.parametrize("page", ["/", "/events", "/pod/batch/big-1", "/nothing"])
async def test_without_a_token_nothing_is_shown(exposed: Exposed, page: str) -> None:
    for token in ("", "wrong"):
        code, text = await ask(exposed[2] + page, token)
        assert code == 401
        assert "gpu-000" not in text


async def test_who_may_not_list_what_it_shows_is_told_what_is_missing(exposed: Exposed) -> None:
    code, text = await ask(exposed[2], "poor")
    assert code == 403
    assert "poor-user may not list nodes in all namespaces" in text
    assert "gpu-000" not in text


async def test_who_may_list_it_reads_it_and_the_api_server_is_asked_once(exposed: Exposed) -> None:
    server, _, url = exposed
    for page in ("/", "/pod/batch/big-1", "/"):
        assert (await ask(url + page, TOKEN))[0] == 200
    assert len(server.seen("POST", TOKENS)) == 1
    assert len(server.seen("POST", ACCESS)) == len(NEEDED)


async def test_a_browser_signs_in_with_a_form_and_out_again(exposed: Exposed) -> None:
    """The cookie is out of reach for scripts and for other sites."""
    _, _, url = exposed
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.post(f"{url}/login", data={"token": "wrong"}) as answer:
            assert answer.status == 401
        async with session.post(
            f"{url}/login", data={"token": f" {TOKEN}\n"}, allow_redirects=False
        ) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
        async with session.get(url) as answer:
            assert "gpu-000" in await answer.text()
        async with session.post(f"{url}/logout") as answer:
            assert answer.status == 401


async def test_a_right_that_is_taken_away_ends_what_was_open(exposed: Exposed) -> None:
    _, users, url = exposed
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{url}/events?after={await place_of(url)}") as answer,
    ):
        assert answer.status == 200
        del users.rights[TOKEN]
        async with asyncio.timeout(60):
            while await answer.content.readline():
                pass
    assert (await ask(url, TOKEN))[0] == 401


async def test_an_answer_is_kept_for_seconds_and_the_token_never() -> None:
    async with running() as (server, api):
        users = Users()
        server.fault = users
        access = Access(api, kept_seconds=0)
        with capture_logs() as logs:
            assert await access.refusal(TOKEN, "::1") is None
            users.rights[TOKEN].clear()
            assert await access.refusal(TOKEN, "::1") is not None
        assert TOKEN not in repr(logs) + repr(vars(access))


async def test_while_the_api_server_is_away_nobody_new_gets_in() -> None:
    async with running(is_up=False) as (_, api):
        refusal = await Access(api, 10).refusal(TOKEN, "::1")
        assert refusal is not None
        assert refusal.status == 503
        assert "cannot be checked now" in refusal.text


async def test_a_page_that_may_not_ask_says_so() -> None:
    """Its own rights are missing: the operator's mistake, not the reader's."""
    async with running() as (server, api):
        server.fault = lambda seen: status(403, "tokenreviews is forbidden") if seen.body else None
        refusal = await Access(api, 10).refusal(TOKEN, "::1")
        assert refusal is not None
        assert "tokenreviews is forbidden" in refusal.text


async def test_with_a_certificate_it_serves_https(tmp_path: Path) -> None:
    """And without its files it does not start."""
    now = datetime.datetime.now(datetime.UTC)
    made = renew({}, ["localhost", "127.0.0.1"], "client", now)
    assert made is not None
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    settings = PageSettings("127.0.0.1:0", certificate=certificate, key=key)
    async with running() as (server, api):
        small(server)
        with pytest.raises(ConfigError, match=r"tls\.crt: No such file"):
            await Page(settings, api).run()
        certificate.write_bytes(made["tls.crt"])
        key.write_bytes(made["tls.key"])
        page = Page(settings, api)
        trusted = ssl.create_default_context(cadata=made["ca.crt"].decode())
        async with working(page.run):
            await until(lambda: page.server.port and page.readiness()[0])
            code, text = await ask(f"https://127.0.0.1:{page.server.port}", ssl=trusted)
            assert code == 200
            assert "gpu-000" in text
