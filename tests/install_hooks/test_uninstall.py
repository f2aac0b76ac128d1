"""The uninstall waits for the answer of every agent, and names who gave none."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tools.harness.api_server import ApiRequest, StandInApiServer, kubeconfig, running, status
from tools.harness.waiting import until

from gpu_device_plugin.cli.main import main
from gpu_device_plugin.controller.run_controller import LEASE
from gpu_device_plugin.controller.webhook_certificates import SECRET
from gpu_device_plugin.domain.grants.node_annotations import (
    UNINSTALL_ANNOTATION,
    WITHDRAWN_ANNOTATION,
    withdrawn_annotation,
)
from gpu_device_plugin.errors import AccessError, ClusterError, WrongServerError
from gpu_device_plugin.install_hooks.uninstall import Uninstall, left_by_controller
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.client.credentials import Credentials
from gpu_device_plugin.kubernetes.objects.fleet import Fleet
from gpu_device_plugin.kubernetes.objects.unhealthy_gpus import WRITTEN, WRITTEN_BY

UID = "installation-1"
DAEMONSET = "/apis/apps/v1/namespaces/gpu/daemonsets/agents"
PATIENCE_SECONDS = 30


async def install(server: StandInApiServer, *nodes: str) -> None:
    """A DaemonSet with a pod on each node, and a pod of somebody else."""
    await server.put(DAEMONSET, {"metadata": {"name": "agents", "uid": UID}})
    for node in nodes:
        await server.put(f"/api/v1/nodes/{node}", {"metadata": {"name": node}})
        await server.put(f"/api/v1/namespaces/gpu/pods/on-{node}", pod(f"on-{node}", node, UID))
    await server.put("/api/v1/namespaces/gpu/pods/other", pod("other", "elsewhere", "not-ours"))


def pod(name: str, node: str, owner: str) -> dict[str, Any]:
    owners = [{"kind": "DaemonSet", "uid": owner, "controller": True}]
    return {
        "metadata": {"namespace": "gpu", "name": name, "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
    }


def marks(server: StandInApiServer) -> dict[str, str]:
    """Node -> the mark that it carries."""
    found = {}
    for path, node in server.objects.items():
        if path.startswith("/api/v1/nodes/"):
            notes = node["metadata"].get("annotations") or {}
            found[node["metadata"]["name"]] = notes.get(UNINSTALL_ANNOTATION, "")
    return found


async def answer(server: StandInApiServer, node: str, mark: str, *kept: str) -> None:
    """As the node's agent does."""
    made = json.loads(json.dumps(server.objects[f"/api/v1/nodes/{node}"]))
    notes = made["metadata"].setdefault("annotations", {})
    notes[WITHDRAWN_ANNOTATION] = withdrawn_annotation(mark, kept)
    await server.put(f"/api/v1/nodes/{node}", made)


async def uninstall(
    api: ApiServer, tell: Callable[[str], None] = lambda _: None, seconds: float = 60
) -> None:
    await Uninstall(Fleet(api, "gpu", "agents"), tell, 0.02).run(seconds)


async def test_it_ends_when_every_agent_has_answered_its_mark() -> None:
    async with running() as (server, api):
        await install(server, "a", "b")
        await answer(server, "b", "installation-0")  # of an uninstall before
        told: list[str] = []
        run = asyncio.ensure_future(uninstall(api, told.append))
        await until(lambda: marks(server) == {"a": UID, "b": UID}, PATIENCE_SECONDS)
        await answer(server, "a", UID)
        await until(lambda: "node a: withdrawn" in told, PATIENCE_SECONDS)
        assert not run.done()
        await answer(server, "b", UID, "default/p")
        await asyncio.wait_for(run, PATIENCE_SECONDS)

        assert told[0] == "asking 2 nodes to withdraw"
        assert "node b: withdrawn; files of running pods are kept: default/p" in told
        assert "withdrawn: 2 nodes" in told
        assert "gpu-device-plugin cleanup" in told[-1]


async def test_who_does_not_answer_is_named_with_pod_and_cure() -> None:
    async with running() as (server, api):
        await install(server, "a", "b")
        await answer(server, "a", UID)
        with pytest.raises(ClusterError) as failure:
            await uninstall(api, seconds=5)
        text = str(failure.value)
        assert "the agents of 1 node: b (pod on-b)" in text
        assert "--no-hooks" in text
        assert f"{UNINSTALL_ANNOTATION}-" in text


async def test_a_node_that_is_removed_meanwhile_is_not_waited_for() -> None:
    async with running() as (server, api):
        await install(server, "a")
        told: list[str] = []
        run = asyncio.ensure_future(uninstall(api, told.append))
        await until(lambda: marks(server) == {"a": UID}, PATIENCE_SECONDS)
        await server.delete("/api/v1/nodes/a")
        await asyncio.wait_for(run, PATIENCE_SECONDS)
        assert "node a: gone" in told


async def test_a_mark_that_got_lost_is_set_again() -> None:
    """An agent that removed one of before may have taken ours with it."""
    async with running() as (server, api):
        await install(server, "a")
        run = asyncio.ensure_future(uninstall(api))
        await until(lambda: marks(server) == {"a": UID}, PATIENCE_SECONDS)
        await server.put("/api/v1/nodes/a", {"metadata": {"name": "a"}})
        await until(lambda: marks(server) == {"a": UID}, PATIENCE_SECONDS)
        await answer(server, "a", UID)
        await asyncio.wait_for(run, PATIENCE_SECONDS)


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    async with running(is_up=False) as (server, api):
        told: list[str] = []
        run = asyncio.ensure_future(uninstall(api, told.append))
        await until(lambda: told, PATIENCE_SECONDS)
        assert "trying again" in told[0]
        await server.start()
        await asyncio.wait_for(run, PATIENCE_SECONDS)
        assert told[-2] == "there is no DaemonSet gpu/agents: no node to ask"


async def test_a_daemonset_that_is_not_there_is_an_error_of_who_named_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who misspells the release must not believe that the nodes are empty; the chart's hook may."""
    async with running() as (server, _):
        config = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{server.port}", {})
        words = ["uninstall", "--namespace", "gpu", "--daemonset", "agent"]
        for more, code in ([], 2), (["--missing-ok"], 0):
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(main, [*words, *more, "--kubeconfig", str(config)])
            assert (ended.value.code or 0) == code
            said = "".join(capsys.readouterr())
            assert "there is no DaemonSet gpu/agent: no node to ask" in said


async def test_what_kept_it_from_asking_is_told_at_the_deadline() -> None:
    async with running(is_up=False) as (_, api):
        with pytest.raises(ClusterError, match="did not say which nodes have agents"):
            await uninstall(api, seconds=1)


async def test_it_gives_up_at_once_where_it_has_no_right() -> None:
    """Waiting for minutes would not give it any; a right of a moment ago may take a moment."""
    async with running() as (server, api):
        await install(server)
        forbidden = [status(403, "may not get daemonsets") for _ in range(2)]

        def denied_twice(_: ApiRequest) -> web.Response | None:
            return forbidden.pop() if forbidden else None

        server.fault = denied_twice
        await uninstall(api, seconds=60)
        assert not forbidden

        server.fault = lambda _: status(403, "may not get daemonsets")
        with pytest.raises(AccessError, match="may not get daemonsets"):
            await uninstall(api, seconds=3600)


async def test_it_gives_up_at_once_where_the_server_is_not_the_clusters() -> None:
    """An unknown name and a foreign certificate stay what they are."""

    async def load() -> Credentials:
        raise WrongServerError("https://nobody: no such host")

    run = Uninstall(Fleet(ApiServer(load), "gpu", "agents"), lambda _: None, 3600)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(WrongServerError, match="no such host"):
            await run.run(3600)


async def test_a_server_that_never_answers_is_waited_for_as_long_as_a_restart_takes() -> None:
    async with running(is_up=False) as (_, api):
        told: list[str] = []
        run = Uninstall(Fleet(api, "gpu", "agents"), told.append, 0.02, silent_seconds=0.5)
        with pytest.raises(ClusterError, match=r"gave up after .* connection refused"):
            await run.run(3600)
        assert len(told) == 1
        assert "trying again for 0.5 s" in told[0]


async def test_a_server_that_answered_once_is_waited_for_until_the_deadline() -> None:
    async with running() as (server, api):
        await install(server, "a")
        told: list[str] = []
        run = Uninstall(Fleet(api, "gpu", "agents"), told.append, 0.02, silent_seconds=0.1)
        work = asyncio.ensure_future(run.run(60))
        await until(lambda: marks(server) == {"a": UID}, PATIENCE_SECONDS)
        await server.stop()
        await until(lambda: "trying again:" in told[-1], PATIENCE_SECONDS)
        await server.start()
        await answer(server, "a", UID)
        await asyncio.wait_for(work, PATIENCE_SECONDS)


async def test_a_404_of_another_server_is_no_missing_daemonset() -> None:
    """Else a wrong address would say that nothing is installed."""
    async with running() as (server, api):
        server.fault = lambda _: web.Response(status=404, text="404 page not found")
        run = Uninstall(Fleet(api, "gpu", "agents"), lambda _: None, 0.02, silent_seconds=0.2)
        with pytest.raises(ClusterError, match="404 page not found"):
            await run.run(3600)


def test_what_a_controller_leaves_is_named_with_the_commands_that_remove_it() -> None:
    """A Secret with the key of a CA stayed, and nobody said so."""
    told = left_by_controller("gpu", "slices")
    assert f"-n gpu delete secret {SECRET} " in told
    assert f"-n gpu delete lease {LEASE} slices-scheduler" in told
    assert f"-n kube-system delete configmap -l {WRITTEN}={WRITTEN_BY} " in told
