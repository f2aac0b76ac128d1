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
from tools.harness.api_server import ApiRequest, StandInApiServer, running, status, working
from tools.harness.objects import held, path, pod
from tools.harness.page.clusters import place, served, small
from tools.harness.waiting import until

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from gpu_device_plugin.overview.node_cards import ClusterCards
from gpu_device_plugin.overview.questions import read_cluster
from gpu_device_plugin.page.access import NEEDED, Access
from gpu_device_plugin.page.run_page import Page, PageSettings, PageTimes
from gpu_device_plugin.web.certificate_authority import renew
from gpu_device_plugin.web.html.page_server import Refusal

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
Exposed = tuple[StandInApiServer, "Users", str]


TOKEN = "good-token"  # noqa: S105 of no cluster
_NAMES = {TOKEN: "good-user", "poor": "poor-user", "team": "team-user"}


class Users:
    """What the API server knows of users: token -> what its owner may do."""

    def __init__(self) -> None:
        self.rights = {
            TOKEN: {str(right) for right in NEEDED},
            "poor": {"list pods", "list events"},
            "team": {"list pods -n vision", "list events -n vision"},
        }

    def __call__(self, seen: ApiRequest) -> web.Response | None:
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
            right = f"{asked['verb']} {asked['resource']}"
            where = f" -n {asked['namespace']}" if asked["namespace"] else ""
            allowed = not granted.isdisjoint({right, right + where})
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        return None


@pytest.fixture
async def exposed(request: pytest.FixtureRequest) -> AsyncIterator[Exposed]:
    """The page on every address, its API server and who that knows."""
    async with running() as (server, api):
        small(server)
        users = Users()
        server.fault = users
        times = PageTimes(kept_seconds=getattr(request, "param", 2.0), beat_seconds=0.05)
        page = Page(PageSettings("0.0.0.0:0"), api, times)
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


async def refusal_of(access: Access, token: str, address: str) -> Refusal | None:
    """Why who has that token may not read; None for who may read all."""
    found = await access.scope(token, address)
    return found if isinstance(found, Refusal) else None


def signed_in(namespace: str = "") -> aiohttp.ClientSession:
    """A browser in which somebody of team `vision` has signed in, for one namespace or for all."""
    cookies = {"gpu-page-token": "team", "gpu-page-namespace": namespace}
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), cookies=cookies)


async def seen_in(session: aiohttp.ClientSession, url: str, status: int = 200) -> str:
    """The page's text, which has that status."""
    async with session.get(url) as answer:
        assert answer.status == status
        return await answer.text()


async def test_who_may_list_one_namespace_names_it_in_the_form(exposed: Exposed) -> None:
    """Without one, or with another one, they are told what they lack."""
    url = exposed[2]
    async with signed_in() as session:
        assert "name one whose pods and Events you may list" in await seen_in(session, url, 403)
    async with signed_in("ads") as session:
        assert "may not list pods -n ads, list events -n ads" in await seen_in(session, url, 403)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        form = {"token": "team", "namespace": " vision "}
        async with session.post(f"{url}/login", data=form) as answer:
            assert "of namespace vision" in await answer.text()
        await session.post(f"{url}/logout")
        await seen_in(session, url, 401)


async def test_who_may_list_one_namespace_sees_theirs_and_nothing_of_others(
    exposed: Exposed,
) -> None:
    """No other pod, nothing of what is free, and no totals but their own."""
    server, _, url = exposed
    async with signed_in("vision") as session:
        await shows_vision_only(session, url, await summary_of_vision(server))


async def test_on_ones_own_machine_they_see_the_same_and_need_no_other_rights() -> None:
    """Of pods those of the namespace are listed and watched, and no others."""
    async with running() as (server, api):
        small(server)
        summary = await summary_of_vision(server)
        allowed = re.compile(r"/api/v1/(nodes|namespaces/vision/(pods|events)(/.*)?)")
        no = status(403, "no")
        server.fault = lambda seen: None if allowed.fullmatch(seen.path) else no
        async with served(api, {"namespace": "vision"}) as url, aiohttp.ClientSession() as session:
            await shows_vision_only(session, url, summary)
            await server.delete("/api/v1/namespaces/vision/pods/starting-1")

            async def is_gone() -> bool:
                return "starting-1" not in await seen_in(session, url)

            await until(is_gone)


async def summary_of_vision(server: StandInApiServer) -> str:
    """What the heading says of that namespace's part of the cluster."""
    api = ApiServer(lambda: asyncio.sleep(0, Credentials(server.url)))
    nodes = (await read_cluster(api)).cards.nodes
    await api.close()
    own = (node.of_namespace("vision") for node in nodes if "vision" in node.namespaces)
    return ClusterCards(tuple(own)).summary


async def shows_vision_only(session: aiohttp.ClientSession, url: str, summary: str) -> None:
    """The page has that summary, and shows what pods of `vision` hold and nothing else."""
    page = await seen_in(session, url)
    assert {pod.partition("/")[0] for pod in re.findall(r'data-pod="([^"]+)"', page)} == {"vision"}
    assert "of namespace vision" in page
    assert summary in page
    assert set(re.findall(r'data-(?:free|largest)="(\d+)"', page)) == {"0"}
    assert "data-room" not in page
    assert "room for" not in page
    assert "units of 1 GiB</span>" in page  # of gpu-005, where no card holds a pod of theirs
    assert not re.search(r"search/|ads/|batch/|speech/|notebooks/", page)
    assert "vision/starting-1" in page
    assert "gpu-007" not in page

    assert "has no card" not in await seen_in(session, f"{url}/pod/vision/starting-1")
    await seen_in(session, f"{url}/pod/batch/big-1", 404)
    assert "the whole card" in await seen_in(session, f"{url}/node/gpu-006")
    await seen_in(session, f"{url}/node/gpu-007", 404)


async def test_what_others_do_does_not_reach_who_sees_one_namespace(exposed: Exposed) -> None:
    """What their own pods do does."""
    server, _, url = exposed
    async with signed_in("vision") as session:
        at = re.search(r'data-at="([^"]+)"', await seen_in(session, url))
        assert at
        theirs = place(pod("theirs", 1, 10, on="gpu-006", annotations=held(3, 1, 10)), "ads")
        await server.put(path(theirs), theirs)

        async def all_know() -> bool:
            return "ads/theirs" in (await ask(url, TOKEN))[1]

        await until(all_know)
        assert f'data-at="{at[1]}"' in await seen_in(session, url)
        await server.delete("/api/v1/namespaces/vision/pods/finetune-1")

        async def is_gone() -> bool:
            return "finetune-1" not in await seen_in(session, url)

        await until(is_gone)


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


@pytest.mark.parametrize("exposed", [600.0], indirect=True)
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
            assert await refusal_of(access, TOKEN, "::1") is None
            users.rights[TOKEN].clear()
            assert await refusal_of(access, TOKEN, "::1") is not None
        assert TOKEN not in repr(logs) + repr(vars(access))


async def test_while_the_api_server_is_away_nobody_new_gets_in() -> None:
    async with running(is_up=False) as (_, api):
        refusal = await refusal_of(Access(api, 10), TOKEN, "::1")
        assert refusal is not None
        assert refusal.status == 503
        assert "cannot be checked now" in refusal.text


async def test_a_page_that_may_not_ask_says_so() -> None:
    """Its own rights are missing: the operator's mistake, not the reader's."""
    async with running() as (server, api):
        server.fault = lambda seen: status(403, "tokenreviews is forbidden") if seen.body else None
        refusal = await refusal_of(Access(api, 10), TOKEN, "::1")
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
