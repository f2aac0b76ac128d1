"""A server that asks one kind of call to wait is obeyed, and is not taken for one that is away."""

import time

import pytest
from aiohttp import web
from tools.harness.api_server import ApiRequest, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.errors import ClusterError, ThrottledError
from gpu_device_plugin.kubernetes.client.api import Request
from gpu_device_plugin.kubernetes.objects.events import EventNote, Events
from gpu_device_plugin.kubernetes.objects.pod_watch import PodWatch

POD = "/api/v1/namespaces/ns/pods/p"
EVENTS = "/api/v1/namespaces/default/events"


@pytest.mark.parametrize(
    ("code", "retry_after"),
    [
        pytest.param(429, "", id="429"),
        pytest.param(429, "60", id="429 with a time"),
        pytest.param(503, "60", id="503 with a time"),
        pytest.param(500, "60", id="500 with a time"),
        pytest.param(504, "", id="a call that the server itself gave up"),
    ],
)
async def test_throttled_events_keep_no_pod_from_being_asked_for(
    code: int, retry_after: str
) -> None:
    """The agent asks for an unknown pod only while the server is not away."""
    async with running() as (server, api):
        await server.put(POD, {"metadata": {"namespace": "ns"}, "spec": {"nodeName": "n1"}})
        server.fault = lambda seen: (
            status(code, "too many requests", retry_after) if "events" in seen.path else None
        )
        events = Events(api, "n1")
        events.post(EventNote(None, "Refused", "no room"))
        async with working(events.run):
            await until(lambda: server.seen("POST", "events"))
            server.requests.clear()
            assert await PodWatch(api, "n1").get("ns", "p", 30.0) is not None
        assert not api.availability.is_away


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda: status(503, "starting"), id="503 without a time"),
        pytest.param(lambda: web.Response(status=504, text="<html>"), id="a proxy's 504"),
        pytest.param(lambda: status(401, "who?"), id="401"),
    ],
)
async def test_a_server_that_cannot_serve_is_away(answer: object) -> None:
    """These answers concern every call."""
    async with running() as (server, api):
        server.fault = lambda _: answer()  # type: ignore[operator]
        with pytest.raises(ClusterError) as failure:
            await api.call_in_turn(Request("GET", "/api/v1/pods"))
        assert not isinstance(failure.value, ThrottledError)
        assert api.availability.is_away


async def test_a_kind_of_call_that_shall_wait_is_not_sent_and_every_other_is() -> None:
    """The same verb of the same resource, in whatever namespace."""
    asked = Request("POST", EVENTS, body={"metadata": {"name": "e"}})
    async with running() as (server, api):
        server.fault = lambda _: status(429, "too many requests", "60")
        with pytest.raises(ThrottledError, match="again in 60"):
            await api.call(asked)
        server.fault = lambda _: None
        server.requests.clear()

        with pytest.raises(ThrottledError, match="throttled for another"):
            await api.call(Request("POST", "/api/v1/namespaces/ns/events", body={}))
        assert not server.requests
        for method, path in (("PATCH", f"{EVENTS}/e"), ("GET", POD), ("GET", "/api/v1/pods")):
            await api.call(Request(method, path, body={} if method == "PATCH" else None))


async def test_what_waits_for_its_turn_is_sent_when_the_server_said() -> None:
    """Not before the time of Retry-After, and then without being asked again."""
    moments: list[float] = []

    def once(_: ApiRequest) -> web.Response | None:
        moments.append(time.monotonic())
        return status(429, "too many requests", "1") if len(moments) == 1 else None

    async with running() as (server, api):
        server.fault = once
        events = Events(api, "n1")
        events.post(EventNote(None, "Refused", "no room"))
        async with working(events.run):
            await until(lambda: len(server.objects) == 1)
    assert moments[1] - moments[0] >= 1


async def test_without_a_time_the_pauses_grow_and_a_long_time_has_an_end() -> None:
    """An answer ends both."""
    async with running() as (server, api):
        server.fault = lambda _: status(429, "too many requests", "86400")
        with pytest.raises(ThrottledError, match="again in 60"):
            await api.call(Request("GET", POD))
        waits: list[float] = []
        server.fault = lambda _: status(429, "too many requests", "Wed, 21 Oct 2026 07:28:00 GMT")
        for _ in range(3):
            with pytest.raises(ThrottledError) as throttled:
                await api.call_in_turn(Request("GET", "/api/v1/nodes"))
            waits.append(float(str(throttled.value).split()[-2]))
        assert max(waits) <= api.availability.pace.longest_seconds
        server.fault = lambda _: None
        assert (await api.call_in_turn(Request("GET", "/api/v1/nodes"))).is_success
