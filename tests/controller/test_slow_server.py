"""A slow API server costs bindings their time, never the lead, and nothing that was done is called failed for long."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from tests.controller.replica import a_controller, a_replica
from tests.controller.test_leader import _LASTING, controller_pod
from tools.harness.api_server import ApiRequest, running, status
from tools.harness.objects import UNITS, node, path, pod
from tools.harness.waiting import until

from gpu_device_plugin.controller import binder
from gpu_device_plugin.controller.binder import MOST_BINDINGS

_NODES = tuple(node(f"n{number}", 8) for number in range(10))


def is_binding(seen: ApiRequest) -> bool:
    return seen.path.endswith("/binding")


async def test_bindings_that_wait_for_their_answers_keep_the_lease_and_refuse_others_at_once(
    tmp_path: Path,
) -> None:
    """Beyond the bound nothing is sent, so nothing is in doubt and kube-scheduler may ask again."""
    pods = tuple(pod(f"p{number}", 2, 10) for number in range(MOST_BINDINGS + 10))
    async with a_controller(tmp_path, _NODES, pods) as found:
        server = found.server
        server.latency = lambda seen: 3600 if is_binding(seen) else 0
        calls = [
            asyncio.ensure_future(found.bind(each, f"n{at % 10}")) for at, each in enumerate(pods)
        ]
        await until(lambda: sum(call.done() for call in calls) >= 10)
        refused = [call.result() for call in calls if call.done()]
        assert all("64 others are being bound; nothing was sent" in error for error in refused)
        assert found.controller.ledger.reserved == MOST_BINDINGS
        renewed = len(server.seen("PUT", "leases"))
        await until(lambda: len(server.seen("PUT", "leases")) > renewed)
        assert found.controller.leadership.leads()
        await asyncio.gather(*calls)
        _, metrics = await found.get("/metrics", port=found.controller.pages.port)
        assert 'gpu_controller_bindings_total{outcome="refused"} 10.0' in metrics


async def test_doubts_end_by_the_watch_without_a_question_for_each_pod(tmp_path: Path) -> None:
    """Each was carried out, and its answer got lost."""
    pods = tuple(pod(f"p{number}", 2, 10) for number in range(20))
    async with a_controller(tmp_path, _NODES, pods) as found:
        server, ledger = found.server, found.controller.ledger
        server.is_mute = True

        def lost(seen: ApiRequest) -> web.Response | None:
            if is_binding(seen):
                server.bind(seen)
            return status(502, "gone") if "/pods/" in seen.path else None

        server.fault = lost
        errors = await asyncio.gather(
            *(found.bind(each, f"n{at % 10}") for at, each in enumerate(pods))
        )
        assert all("502" in error for error in errors)
        assert ledger.reserved == 20
        server.speak()
        await until(lambda: ledger.reserved == 0)
        assert len(server.seen("GET", "/api/v1/namespaces/ns/pods/")) == 20
        free = [room.free_mem for each in _NODES for room in ledger.rooms(each["metadata"]["name"])]
        assert sum(free) == 10 * 8 * UNITS - 20 * 2


async def test_doubts_that_no_watch_ends_are_ended_by_one_list_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None was carried out: all are unbound a minute later, and give their room back."""
    monkeypatch.setattr(binder, "_DOUBT_SECONDS", 0.5)
    monkeypatch.setattr(binder, "_TOGETHER_SECONDS", 2.0)
    pods = tuple(pod(f"p{number}", 2, 10) for number in range(20))
    async with a_controller(tmp_path, _NODES, pods) as found:
        server, ledger = found.server, found.controller.ledger
        server.fault = lambda seen: status(502, "gone") if "/pods/" in seen.path else None
        await asyncio.gather(*(found.bind(each, f"n{at % 10}") for at, each in enumerate(pods)))
        assert ledger.reserved == 20
        await until(lambda: ledger.reserved == 0)
        lists = [seen for seen in server.requests if "spec.nodeName=" in seen.query.values()]
        assert len(lists) == 1
        assert len(server.seen("GET", "/api/v1/namespaces/ns/pods/")) == 20


async def test_a_server_that_takes_longer_than_the_pause_between_two_tries_has_a_leader(
    tmp_path: Path,
) -> None:
    """The Lease is asked for until it would have run out, and renewed by one request each time."""
    async with running() as (server, _):
        server.latency = lambda seen: 0.3 if "leases" in seen.path else 0
        own = controller_pod("one")
        await server.put(path(own), own)
        async with a_replica(server, tmp_path, "one", _LASTING) as one:
            await until(lambda: len(server.seen("PUT", "leases")) >= 2)
            assert one.controller.leadership.leads()
            verbs = [seen.method for seen in server.requests if "leases" in seen.path]
            assert verbs[:4] == ["GET", "POST", "PUT", "PUT"]
            server.latency = lambda _: 0

            async def is_told() -> bool:
                # As if three quarters of the time had passed since the last one.
                one.controller.leadership.until = asyncio.get_running_loop().time() + 100
                _, text = await one.get("/metrics", port=one.controller.pages.port)
                return 'gpu_controller_lease_renewals_total{outcome="late"} 0.0' not in text

            await until(is_told)
