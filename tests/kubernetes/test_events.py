"""Events reach `kubectl describe`, repeats count up, and no flood or outage hurts."""

from typing import Any

from tools.harness.api_server import StandInApiServer, running, status, working
from tools.harness.waiting import until

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.kubernetes.objects.events import EventNote, Events


def events(server: StandInApiServer) -> list[Any]:
    """All Events at the server."""
    return [value for path, value in server.objects.items() if "/events/" in path]


async def test_a_node_event_names_the_node_as_the_kubelet_does() -> None:
    """Namespace default, and the node's name as uid."""
    async with running() as (server, api):
        writer = Events(api, "n1")
        writer.post(EventNote(None, "CardUnhealthy", "card 0 is lost"))
        async with working(writer.run):
            await until(lambda: events(server))

        (event,) = events(server)
        assert server.seen("POST")[0].path == "/api/v1/namespaces/default/events"
        assert event["involvedObject"] == {"kind": "Node", "name": "n1", "uid": "n1"}
        assert (event["type"], event["reason"], event["message"], event["count"]) == (
            "Warning",
            "CardUnhealthy",
            "card 0 is lost",
            1,
        )
        assert event["source"] == {"component": "gpu-device-plugin", "host": "n1"}


async def test_a_pod_event_stands_beside_the_pod_with_the_apis_uid() -> None:
    """A static pod's Event names its mirror, or describe would not show it."""
    async with running() as (server, api):
        writer = Events(api, "n1", api_uid=lambda ref: f"api-of-{ref.uid}")
        writer.post(EventNote(PodRef("ns", "p", "u1"), "Refused", "no room", is_warning=False))
        async with working(writer.run):
            await until(lambda: events(server))

        (event,) = events(server)
        assert event["metadata"]["namespace"] == "ns"
        assert event["involvedObject"]["uid"] == "api-of-u1"
        assert event["type"] == "Normal"


async def test_repeats_raise_the_count_of_one_event() -> None:
    """Whether they wait together or come after it was written."""
    async with running() as (server, api):
        writer = Events(api, "n1")
        note = EventNote(None, "Again", "and again")
        writer.post(note)
        writer.post(note)
        async with working(writer.run):
            await until(lambda: [e["count"] for e in events(server)] == [2])
            writer.post(note)
            await until(lambda: [e["count"] for e in events(server)] == [3])

            server.objects.clear()  # the server's hour for Events is over
            writer.post(note)
            await until(lambda: [e["count"] for e in events(server)] == [4])


async def test_notes_wait_for_an_api_server_that_is_away() -> None:
    """All of them arrive, in order, once it is back."""
    async with running(is_up=False) as (server, api):
        writer = Events(api, "n1")
        async with working(writer.run):
            for number in range(20):
                writer.post(EventNote(None, "Number", str(number)))
            await until(lambda: api.availability.is_away)
            await server.start()
            await until(lambda: len(events(server)) == 20)

        assert [e["message"] for e in events(server)] == [str(n) for n in range(20)]


async def test_of_too_many_the_oldest_are_dropped_and_counted() -> None:
    """The queue holds 256 notes."""
    dropped: list[None] = []
    async with running(is_up=False) as (_, api):
        writer = Events(api, "n1", on_drop=lambda: dropped.append(None))
        for number in range(300):
            writer.post(EventNote(None, "Number", str(number)))

        assert len(dropped) == 44
        assert next(iter(writer._waiting)).text == "44"


async def test_a_flood_of_one_owner_delays_and_loses_nobody_elses_event() -> None:
    """Its own oldest go; what others have to say is written before it."""
    owner = "ReplicaSet ns/flood"
    async with running() as (server, api):
        dropped: list[None] = []
        writer = Events(api, "n1", on_drop=lambda: dropped.append(None))
        writer.post(EventNote(PodRef("ns", "other"), "Refused", "no room", owner="Job ns/other"))
        writer.post(EventNote(None, "XID79", "card 0"))
        for number in range(400):
            pod = PodRef("ns", f"flood-{number}")
            writer.post(EventNote(pod, "Refused", "no room", owner=owner))
        async with working(writer.run):
            await until(lambda: len(events(server)) >= 3)

        written = [event["involvedObject"]["name"] for event in events(server)]
        assert set(written[:2]) == {"other", "n1"}
        assert written[2] == "flood-146"
        assert len(dropped) == 146


async def test_a_refused_note_is_given_up_and_the_next_goes_on() -> None:
    """A namespace that is being deleted takes no Events; an internal error is tried again."""
    dropped: list[None] = []
    async with running() as (server, api):
        answers = iter([status(403, "namespace is being terminated"), status(500, "etcd")])
        server.fault = lambda _: next(answers, None)
        writer = Events(api, "n1", on_drop=lambda: dropped.append(None))
        writer.post(EventNote(PodRef("gone", "p"), "Refused", "first"))
        writer.post(EventNote(None, "Second", "second"))
        async with working(writer.run):
            await until(lambda: events(server))

        assert [e["reason"] for e in events(server)] == ["Second"]
        assert len(dropped) == 1


async def test_an_event_that_was_written_unheard_is_not_written_twice() -> None:
    """The answer to the POST is lost; the second try has the same name."""
    async with running() as (server, api):
        lost = iter([True])

        def fault(seen: Any) -> Any:
            if seen.method == "POST" and next(lost, False):
                server.objects[f"{seen.path}/{seen.body['metadata']['name']}"] = seen.body
                return status(504, "request timed out")
            return None

        server.fault = fault
        writer = Events(api, "n1")
        writer.post(EventNote(None, "Once", "only"))
        async with working(writer.run):
            await until(lambda: len(server.seen("POST")) == 2)
            await until(lambda: writer._written)

        assert len(events(server)) == 1


async def test_a_long_text_is_cut_to_what_an_event_may_carry() -> None:
    """1024 bytes, not characters; no half character at the end."""
    async with running() as (server, api):
        writer = Events(api, "n1")
        writer.post(EventNote(None, "Long", "ä" * 2000))
        async with working(writer.run):
            await until(lambda: events(server))

        message = events(server)[0]["message"]
        assert len(message.encode()) <= 1024
        assert message.endswith("ä…")
