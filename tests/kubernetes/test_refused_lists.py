"""A list that we may not read is none of an empty cluster."""

from collections.abc import Sequence

import pytest
from aiohttp import web
from tools.harness.api_server import ApiRequest, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.kubernetes.client.reflector import ObjectListener, Reflection, Source
from gpu_device_plugin.kubernetes.client.wire import Bare

_PATH = "/apis/policy/v1/poddisruptionbudgets"


def is_list(seen: ApiRequest) -> bool:
    """Whether it asks for the list, and not for a watch."""
    return seen.path == _PATH and "watch" not in seen.query


PAGE = "<html>no such page</html>"


@pytest.mark.parametrize(
    ("code", "text", "trouble"),
    [(403, "no", "403 no"), (404, "no", ""), (404, "404 page not found\n", ""), (404, PAGE, PAGE)],
)
async def test_a_refused_optional_list_keeps_the_last_and_says_so(
    code: int, text: str, trouble: str
) -> None:
    """An API that is gone has no objects; one that refuses the list says nothing of them.

    The API server answers 404 in plain text where it has no such group; a page is a proxy's.
    """
    kept = ["one"] if trouble else []

    def refuse(seen: ApiRequest) -> web.Response | None:
        made = status(code, text) if text == "no" else web.Response(status=code, text=text)
        return made if is_list(seen) else None

    names: list[str] = []

    def replace(found: Sequence[Bare]) -> None:
        names[:] = [each.metadata.name for each in found]

    listener = ObjectListener(replace, lambda _: None, lambda _: None)
    async with running() as (server, api):
        await server.put(f"{_PATH.replace('v1/', 'v1/namespaces/ns/')}/one", {"metadata": {}})
        followed = Reflection(api, Source(_PATH, "", is_optional=True), Bare, listener)
        async with working(followed.run):
            await until(lambda: names == ["one"])
            lists = len([s for s in server.requests if is_list(s)])
            server.fault = refuse
            await server.put("/api/v1/nodes/n1", {"metadata": {}})
            await server.compact()  # it has to list again
            await server.drop_watches()
            await until(lambda: len([s for s in server.requests if is_list(s)]) > lists)
            await until(lambda: (trouble in followed.trouble, names) == (True, kept))
            assert bool(followed.trouble) is bool(trouble)
            server.fault = lambda _: None
            if trouble:  # a server without the API is not asked again for two minutes
                await until(lambda: not followed.trouble, 20)


async def test_an_optional_list_that_was_always_refused_is_not_known() -> None:
    """Whoever uses it decides what that means."""
    listener: ObjectListener[Bare] = ObjectListener(lambda _: None, lambda _: None, lambda _: None)
    async with running() as (server, api):
        server.fault = lambda seen: status(403, "no") if is_list(seen) else None
        followed = Reflection(api, Source(_PATH, "", is_optional=True), Bare, listener)
        async with working(followed.run):
            await until(lambda: followed.trouble)
            assert not followed.is_synced
