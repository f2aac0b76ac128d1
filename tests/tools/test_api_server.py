"""The promise: an agent reads and writes the stand-in API server as it does a real one."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tools.harness.api_server import StandInApiServer, kubeconfig

from gpu_device_plugin.kubernetes.client.credentials import load_credentials

POD = "/api/v1/namespaces/default/pods/a"
EVENTS = "/api/v1/namespaces/default/events"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    """A server with one pod on n1."""
    made = StandInApiServer()
    await made.start()
    made.store(POD, {"metadata": {"uid": "u1", "labels": {"a": "1"}}, "spec": {"nodeName": "n1"}})
    yield made
    await made.stop()


@pytest.fixture
async def client(server: StandInApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of it."""
    async with aiohttp.ClientSession(server.url) as session:
        yield session


async def test_a_list_holds_what_the_field_selector_names(client: aiohttp.ClientSession) -> None:
    """Pods of all namespaces, by node."""
    for node, names in (("n1", ["a"]), ("n2", [])):
        query = {"fieldSelector": f"spec.nodeName={node}"}
        async with client.get("/api/v1/pods", params=query) as answer:
            listed = await answer.json()
        assert [item["metadata"]["name"] for item in listed["items"] or []] == names


async def test_a_watch_tells_every_change_after_the_list(
    server: StandInApiServer, client: aiohttp.ClientSession
) -> None:
    """And nothing of other nodes."""
    async with client.get("/api/v1/pods") as answer:
        version = (await answer.json())["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": version, "fieldSelector": "spec.nodeName=n1"}
    async with asyncio.timeout(30), client.get("/api/v1/pods", params=query) as watch:
        server.store("/api/v1/namespaces/x/pods/other", {"spec": {"nodeName": "n2"}})
        server.patch(POD, {"status": {"phase": "Running"}})
        line = json.loads(await watch.content.readline())

    assert line["type"] == "MODIFIED"
    assert line["object"]["status"] == {"phase": "Running"}
    assert line["object"]["metadata"]["labels"] == {"a": "1"}


async def test_a_patch_merges_and_holds_to_the_uid(
    server: StandInApiServer, client: aiohttp.ClientSession
) -> None:
    """None removes a key; another incarnation of the pod is not touched."""
    wrong = {"metadata": {"uid": "u2", "annotations": {"b": "2"}}}
    async with client.patch(POD, data=json.dumps(wrong), headers=MERGE) as answer:
        assert answer.status == 422
    right = {"metadata": {"uid": "u1", "labels": {"a": None}, "annotations": {"b": "2"}}}
    async with client.patch(POD, data=json.dumps(right), headers=MERGE) as answer:
        assert answer.status == 200

    assert server.get(POD)["metadata"]["labels"] == {}
    assert server.get(POD)["metadata"]["annotations"] == {"b": "2"}


async def test_an_event_is_created_once(
    server: StandInApiServer, client: aiohttp.ClientSession
) -> None:
    """The same name again is a conflict."""
    event = {
        "metadata": {"name": "e1"},
        "involvedObject": {"kind": "Pod", "name": "a"},
        "reason": "NoRoom",
    }
    for status in (201, 409):
        async with client.post(EVENTS, json=event) as answer:
            assert answer.status == status

    assert [found["reason"] for found in server.events("Pod", "a")] == ["NoRoom"]
    assert server.events("Node", "a") == []


@pytest.mark.parametrize("path", ["/api/v1/nodes/n9", "/apis/batch/v1/jobs", "/nodes"])
async def test_what_is_not_there_is_not_found(client: aiohttp.ClientSession, path: str) -> None:
    """An object, and an API that this server does not have."""
    async with client.get(path) as answer:
        assert answer.status == 404


async def test_our_own_client_reads_the_kubeconfig(
    server: StandInApiServer, tmp_path: Path
) -> None:
    """No user, no TLS."""
    kubeconfig(tmp_path / "config", server.url, {})

    assert (await load_credentials([tmp_path / "config"])).server == server.url
