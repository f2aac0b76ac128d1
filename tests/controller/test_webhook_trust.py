"""The promise: the API server trusts the webhook, whenever its configuration comes to be there."""

import base64
from typing import Any

from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.controller.webhook_trust import WebhookTrust

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ours"


def configuration() -> dict[str, Any]:
    """Two entries, as the chart has them: without an authority."""
    client = {"service": {"name": "s", "namespace": "n", "path": "/mutate"}}
    return {
        "metadata": {"name": "ours", "labels": {"a": "b"}},
        "webhooks": [
            {"name": "models", "clientConfig": client, "failurePolicy": "Fail"},
            {"name": "profiles", "clientConfig": client},
        ],
    }


def bundles(server: StandInApiServer) -> set[bytes]:
    """What the entries trust."""
    found = server.objects.get(PATH, {}).get("webhooks", ())
    return {base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in found}


async def test_the_authority_is_written_as_soon_as_there_is_something_to_write_it_to() -> None:
    """And again when either changes; what else stands there stays."""
    authority = [b""]
    async with running() as (server, api):
        trust = WebhookTrust(api, "ours", lambda: authority[0], look_seconds=0.02)
        async with working(trust.run):
            await until(lambda: len(server.seen("GET", "/ours")) > 1)
            await server.put(PATH, configuration())
            before = len(server.seen("GET", "/ours"))
            await until(lambda: len(server.seen("GET", "/ours")) > before + 1)
            unknown = bundles(server)
            authority[0] = b"one"
            await until(lambda: bundles(server) == {b"one"})
            first = server.objects[PATH]
            authority[0] = b"two"
            await until(lambda: bundles(server) == {b"two"})
            await server.put(PATH, configuration())
            await until(lambda: bundles(server) == {b"two"})

    assert unknown == {b""}
    assert first["metadata"]["labels"] == {"a": "b"}
    assert first["webhooks"][0]["failurePolicy"] == "Fail"
    assert first["webhooks"][0]["clientConfig"]["service"]["path"] == "/mutate"


async def test_what_is_right_is_not_written_again_and_a_refusal_is_tried_again() -> None:
    """No write a look."""
    is_refused = [True]

    def refuse(seen: ApiRequest) -> web.Response | None:
        return status(403, "no") if seen.method == "PUT" and is_refused[0] else None

    async with running() as (server, api):
        server.fault = refuse
        await server.put(PATH, configuration())
        trust = WebhookTrust(api, "ours", lambda: b"one", look_seconds=0.02)
        async with working(trust.run):
            await until(lambda: server.seen("PUT", "/ours"))
            is_refused[0] = False
            await until(lambda: bundles(server) == {b"one"})
            written, looked = len(server.seen("PUT")), len(server.seen("GET", "/ours"))
            await until(lambda: len(server.seen("GET", "/ours")) > looked + 2)
            again = len(server.seen("PUT"))

    assert again == written
