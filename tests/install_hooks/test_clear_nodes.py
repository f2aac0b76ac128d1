"""After an uninstall nothing that we wrote stays on a node's object, and what another installation needs does."""

import asyncio
from typing import Any

import pytest
from tools.harness.api_server import StandInApiServer, running
from tools.harness.waiting import until

from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
)
from gpu_device_plugin.domain.models.model_catalogue import MODEL_LABEL, SERIES_ANNOTATION
from gpu_device_plugin.domain.node.labels import COUNT_LABEL, DRIVER_LABEL
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.install_hooks.uninstall import clear_nodes
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.objects.fleet import Fleet
from gpu_device_plugin.kubernetes.objects.survey import Survey

GONE, OTHER = "installation-1", "installation-2"
ANSWERED = {UNINSTALL_ANNOTATION: GONE, WITHDRAWN_ANNOTATION: "{}"}
PATIENCE_SECONDS = 30
SPEC = {"containers": [{"name": "agent", "command": ["gpu-device-plugin", "agent"]}]}


async def put_node(
    server: StandInApiServer, name: str, annotations: dict[str, str], **labels: str
) -> None:
    meta = {"name": name, "annotations": {"theirs": "1", **annotations}, "labels": labels}
    await server.put(f"/api/v1/nodes/{name}", {"metadata": meta})


async def put_agents(server: StandInApiServer, name: str, uid: str, *nodes: str) -> None:
    made: dict[str, Any] = {"metadata": {"namespace": "gpu", "name": name, "uid": uid}}
    made["spec"] = {"template": {"spec": SPEC}}
    await server.put(f"/apis/apps/v1/namespaces/gpu/daemonsets/{name}", made)
    for node in nodes:
        owners = [{"kind": "DaemonSet", "uid": uid, "controller": True}]
        meta = {"namespace": "gpu", "name": f"{name}-{node}", "ownerReferences": owners}
        path = f"/api/v1/namespaces/gpu/pods/{name}-{node}"
        await server.put(path, {"metadata": meta, "spec": {**SPEC, "nodeName": node}})


def kept(server: StandInApiServer, node: str) -> tuple[set[str], set[str]]:
    """Keys of the node's annotations and labels."""
    meta = server.objects[f"/api/v1/nodes/{node}"]["metadata"]
    return set(meta.get("annotations") or {}), set(meta.get("labels") or {})


async def clear(api: ApiServer, seconds: float = PATIENCE_SECONDS) -> list[str]:
    return list(
        await clear_nodes(Survey(api), Fleet(api, "gpu", "agents"), seconds, lambda _: None, 0.02)
    )


async def test_mark_and_answer_of_an_installation_that_is_gone_are_removed() -> None:
    async with running() as (server, api):
        await put_node(server, "a", ANSWERED, role="worker")
        await put_node(server, "b", {})
        assert await clear(api) == ["a"]
        assert kept(server, "a") == ({"theirs"}, {"role"})


async def test_a_node_whose_agent_never_withdrew_loses_its_labels_too() -> None:
    """Its agent was gone before the uninstall, so that nobody was asked."""
    async with running() as (server, api):
        notes = {CARDS_ANNOTATION: "{}", SERIES_ANNOTATION: "V100"}
        labels = {COUNT_LABEL: "4", DRIVER_LABEL: "535", MODEL_LABEL: "V100", "role": "worker"}
        await put_node(server, "a", notes, **labels)
        assert await clear(api) == ["a"]
        assert kept(server, "a") == ({"theirs"}, {"role"})


async def test_a_label_that_somebody_else_set_stays() -> None:
    async with running() as (server, api):
        labels = {COUNT_LABEL: "4", MODEL_LABEL: "mine"}
        await put_node(server, "a", {**ANSWERED, SERIES_ANNOTATION: "V100"}, **labels)
        await clear(api)
        assert kept(server, "a") == ({"theirs"}, {COUNT_LABEL, MODEL_LABEL})


async def test_what_another_installation_has_on_its_nodes_stays() -> None:
    async with running() as (server, api):
        await put_agents(server, "others", OTHER, "served")
        await put_node(server, "served", {CARDS_ANNOTATION: "{}"})
        await put_node(server, "between-two-pods", {CARDS_ANNOTATION: "{}"})
        await put_node(server, "leaving", {UNINSTALL_ANNOTATION: OTHER})
        await put_node(server, "ours", ANSWERED)
        assert await clear(api) == ["ours"]


async def test_the_mark_stays_until_the_agent_has_ended() -> None:
    """An agent that sees its mark go serves again."""
    async with running() as (server, api):
        await put_node(server, "a", ANSWERED)
        await put_agents(server, "agents", GONE, "a")
        run = asyncio.ensure_future(clear(api))
        await server.delete("/apis/apps/v1/namespaces/gpu/daemonsets/agents")
        asked = len(server.requests)
        await until(lambda: len(server.requests) > asked + 6, PATIENCE_SECONDS)
        assert UNINSTALL_ANNOTATION in kept(server, "a")[0]
        await server.delete("/api/v1/namespaces/gpu/pods/agents-a")
        assert await asyncio.wait_for(run, PATIENCE_SECONDS) == ["a"]


async def test_agents_that_stay_are_named_and_nothing_is_removed() -> None:
    async with running() as (server, api):
        await put_node(server, "a", ANSWERED)
        await put_agents(server, "agents", GONE, "a")
        with pytest.raises(ClusterError, match="DaemonSet gpu/agents"):
            await clear(api, 2)
        assert UNINSTALL_ANNOTATION in kept(server, "a")[0]
