"""Somebody without a token of the cluster delays no reader of the page, and costs little."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from tests.page.test_access import TOKEN, TOKENS, Exposed, Users, ask, place_of, refusal_of
from tests.page.test_access import exposed as exposed
from tools.harness.api_server import running
from tools.harness.waiting import until

from gpu_device_plugin.page.access import Access
from gpu_device_plugin.page.drawing import PageParts


@pytest.mark.parametrize("guesses", [500, 2000])
async def test_an_address_has_a_few_guesses_whatever_it_tries(guesses: int) -> None:
    """The API server is asked for no more of them, and nothing is kept of the rest."""
    async with running() as (server, api):
        server.fault = Users()
        access = Access(api, 10)
        tried = [refusal_of(access, f"guess-{number}", "10.0.0.9") for number in range(guesses)]
        refused = {each.status for each in await asyncio.gather(*tried) if each}

        assert refused == {401, 503}
        late = [await refusal_of(access, f"late-{number}", "10.0.0.9") for number in range(40)]
        assert late[-1]
        assert late[-1].status == 429
        assert await refusal_of(access, TOKEN, "10.0.0.1") is None
        assert len(server.seen("POST", TOKENS)) <= 40


@pytest.mark.usefixtures("patient_api")
async def test_guesses_from_many_addresses_delay_no_reader() -> None:
    """While as many as may wait do wait, a reader's token is checked again at once."""
    async with running() as (server, api):
        server.fault = Users()
        access = Access(api, kept_seconds=0)
        assert await refusal_of(access, TOKEN, "10.0.0.1") is None
        may_answer, users = asyncio.Event(), server.fault

        class Late(web.Response):
            async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
                await may_answer.wait()
                return await super().prepare(request)

        server.fault = lambda seen: (
            Late(text='{"status": {}}') if "guess" in str(seen.body) else users(seen)
        )
        guesses = [
            asyncio.ensure_future(refusal_of(access, f"guess-{number}", f"10.0.1.{number}"))
            for number in range(200)
        ]
        await until(lambda: sum(each.done() for each in guesses) == 200 - 32)
        assert await refusal_of(access, TOKEN, "10.0.0.1") is None
        may_answer.set()
        statuses = [int(each.status) for each in await asyncio.gather(*guesses) if each]
        assert (statuses.count(401), statuses.count(503)) == (32, 168)


async def test_guesses_do_not_fill_the_memory() -> None:
    """Nor push out those who may read."""
    async with running() as (server, api):
        server.fault = Users()
        access = Access(api, kept_seconds=3600)
        assert await refusal_of(access, TOKEN, "10.0.0.1") is None
        for number in range(1010):
            await refusal_of(access, f"guess-{number}", f"10.0.{number >> 8}.{number & 255}")
        before = len(server.seen("POST", TOKENS))
        assert await refusal_of(access, TOKEN, "10.0.0.1") is None
        assert len(server.seen("POST", TOKENS)) == before
        assert len(access._others) == len(access._refused) == 1000


async def test_one_token_follows_with_a_few_browsers(exposed: Exposed) -> None:
    _, _, url = exposed
    headers = {"Authorization": f"Bearer {TOKEN}"}
    where = f"{url}/events?after={await place_of(url)}"
    async with aiohttp.ClientSession(
        headers=headers, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        answers = await asyncio.gather(*(session.get(where) for _ in range(25)))
        assert sorted(answer.status for answer in answers) == [200] * 20 + [503] * 5
        for answer in answers:
            answer.close()


@pytest.mark.parametrize("place", ["9" * 5000, "x" * 5000, "-", "٣-٣"])
async def test_a_strange_last_event_id_reads_all_again(exposed: Exposed, place: str) -> None:
    parts = PageParts()
    start = parts.at.partition("-")[0]
    assert parts.since(f"{start}-{place}") is None

    code, text = await ask(f"{exposed[2]}/events?after={start}-{place}", TOKEN)
    assert code == 200
    assert "event: restart" in text
