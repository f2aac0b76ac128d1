"""`kubectl gpu resize` writes what a person asks, and ends with what the agent answers."""

import asyncio
from functools import partial
from typing import Any

import pytest
from click.testing import Result
from tests.cli.test_overview import Cluster, cluster
from tools.harness.api_server import ApiRequest
from tools.harness.objects import path, pod
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.pod_annotations import MOST_ASKED, RESIZE, RESIZED
from gpu_device_plugin.domain.fractions.request_rules import MOST_CONTAINERS
from gpu_device_plugin.domain.fractions.resize import (
    ContainerAnswer,
    ResizeAnswer,
    ResizeState,
    resized_annotation,
)
from gpu_device_plugin.errors import ClusterError, ConfigError, NotKnownError, RequestError

__all__ = ["cluster"]


WAITS = "2 units of 1024 MiB more needed, 1 unit of 1024 MiB free on its card; ns/ants has 12"


async def running(cluster: Cluster, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    """A pod with a slice of 2 units and 30 %."""
    asking = pod("book", 2, 30, on="gpu-a", annotations=annotations)
    asking["spec"] |= spec
    await cluster.add(asking)


async def answered(cluster: Cluster, asked: str, *answers: tuple[ResizeState, str]) -> None:
    """The agent's answers, each one after another, once the pod asks."""
    where = path(pod("book"))

    def told(key: str) -> str:
        found: str = cluster.server.objects[where]["metadata"].get("annotations", {}).get(key, "")
        return found

    await until(lambda: told(RESIZE) == asked, 10)
    reads = 0
    for state, text in answers:
        await until(partial(has_read, cluster, reads), 10)
        has = ContainerAnswer(4 if state is ResizeState.DONE else 2, 30, state, "", text)
        said = resized_annotation(ResizeAnswer(asked, 1024, {"a": has}))
        cluster.server.patch(where, {"metadata": {"annotations": {RESIZED: said}}})
        reads = count_of_reads(cluster) + 1


def has_read(cluster: Cluster, reads: int) -> bool:
    """Whether somebody has read the pod more often."""
    return count_of_reads(cluster) > reads


def count_of_reads(cluster: Cluster) -> int:
    """How often somebody has read the pod."""
    asked = cluster.server.requests
    return sum(each.method == "GET" and each.path == path(pod("book")) for each in asked)


async def resize(cluster: Cluster, *words: str) -> Result:
    """What it prints and its exit code."""
    return await cluster.run("resize", "ns/book", *words, columns=200)


async def test_a_resize_that_is_done_ends_well(cluster: Cluster) -> None:
    """It names the unit, and what other containers ask stays."""
    await running(cluster, annotations={RESIZE: "side=mem:1"})
    asked = "side=mem:1;a=mem:4,within:60s"
    done, _ = await asyncio.gather(
        resize(cluster, "--mem", "4", "--within", "1m", "--wait"),
        answered(cluster, asked, (ResizeState.WAITS, WAITS), (ResizeState.DONE, "")),
    )

    has = "ns/book, container a has"
    assert done.stdout == f"{has} 4 units of 1024 MiB and 30 % compute\n"
    assert done.stderr == f"{has} 2 units of 1024 MiB and 30 % compute: {WAITS}\n"
    assert done.exit_code == 0


async def test_a_resize_that_waits_is_told_at_once(cluster: Cluster) -> None:
    await running(cluster)
    waits, _ = await asyncio.gather(
        resize(cluster, "--core", "50"), answered(cluster, "a=core:50", (ResizeState.WAITS, WAITS))
    )

    assert (
        waits.stdout == f"ns/book, container a has 2 units of 1024 MiB and 30 % compute: {WAITS}\n"
    )
    assert waits.exit_code == 0


async def test_a_refused_resize_fails_with_its_reason_and_can_be_asked_again(
    cluster: Cluster,
) -> None:
    """In another text: the same would change nothing. What was answered before is no answer to it."""
    await running(cluster)
    refused = (ResizeState.REFUSED, "its namespace is allowed nothing")
    with pytest.raises(ClusterError, match=refused[1]):
        await asyncio.gather(
            resize(cluster, "--mem", "9", "--wait"), answered(cluster, "a=mem:9", refused)
        )
    done, _ = await asyncio.gather(
        resize(cluster, "--mem", "9", "--wait"),
        answered(cluster, "a=mem:09", (ResizeState.DONE, "")),
    )
    assert done.exit_code == 0


def others_write(cluster: Cluster, times: int) -> None:
    """So many of the CLI's writes come just after another's, of another container."""
    where, left = path(pod("book")), list(range(1, times + 1))

    def fault(asked: ApiRequest) -> None:
        if asked.method == "PATCH" and left:
            theirs = {"metadata": {"annotations": {RESIZE: f"side=mem:{left.pop(0)}"}}}
            cluster.server.patch(where, theirs)

    cluster.server.fault = fault


async def test_what_somebody_asks_at_the_same_moment_is_kept(cluster: Cluster) -> None:
    await running(cluster)
    others_write(cluster, 2)
    done, _ = await asyncio.gather(
        resize(cluster, "--mem", "4", "--wait"),
        answered(cluster, "side=mem:2;a=mem:4", (ResizeState.DONE, "")),
    )

    assert done.exit_code == 0


async def test_what_would_be_too_long_for_the_agent_is_not_written(cluster: Cluster) -> None:
    asked = ";".join(f"{'x' * 23}{n:02}=mem:1" for n in range(MOST_CONTAINERS))
    await running(cluster, annotations={RESIZE: asked})
    with pytest.raises(RequestError, match=f"at most {MOST_ASKED} are read"):
        await resize(cluster, "--mem", "4")

    assert not cluster.server.seen("PATCH")


async def test_it_gives_up_where_others_always_come_first(cluster: Cluster) -> None:
    await running(cluster)
    others_write(cluster, 100)
    with pytest.raises(ClusterError, match="pod ns/book is changed again and again"):
        await resize(cluster, "--mem", "4")

    assert len(cluster.server.seen("PATCH")) < 10


async def test_what_another_container_asks_meanwhile_ends_no_waiting(cluster: Cluster) -> None:
    await running(cluster)

    async def other() -> None:
        await answered(cluster, "a=mem:9")
        both = {"metadata": {"annotations": {RESIZE: "a=mem:9;side=mem:1"}}}
        cluster.server.patch(path(pod("book")), both)
        await answered(cluster, "a=mem:9;side=mem:1", (ResizeState.DONE, ""))

    done, _ = await asyncio.gather(resize(cluster, "--mem", "9", "--wait"), other())

    assert (done.exit_code, done.exception) == (0, None)


async def test_a_pod_that_asks_something_else_meanwhile_is_named(cluster: Cluster) -> None:
    await running(cluster)
    with pytest.raises(ClusterError, match="something else is asked of ns/book, container a now"):
        await asyncio.gather(resize(cluster, "--mem", "9", "--wait"), changed(cluster))


async def changed(cluster: Cluster) -> None:
    """Somebody writes another size."""
    await answered(cluster, "a=mem:9")
    other = {"metadata": {"annotations": {RESIZE: "a=mem:3"}}}
    cluster.server.patch(path(pod("book")), other)


@pytest.mark.parametrize("asked", ["", "a=mem:4", "a=mem:5"])
async def test_an_agent_that_is_away_is_named(cluster: Cluster, asked: str) -> None:
    """Also where it has answered the same words before, whatever was asked since."""
    has = {"a": ContainerAnswer(4, 30, ResizeState.DONE)}
    told = resized_annotation(ResizeAnswer("a=mem:4", 1024, has))
    await running(cluster, annotations={RESIZE: asked, RESIZED: told} if asked else None)
    silent = await resize(cluster, "--mem", "4")

    assert "the agent of node gpu-a has not answered yet" in silent.output
    assert silent.exit_code == 0


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ([], ConfigError, "name --mem, --core or both"),
        (["--mem", "4", "-c", "first"], ConfigError, "first of pod ns/book is an init container"),
        (
            ["--mem", "4", "-c", "log"],
            ConfigError,
            "log of pod ns/book asks for no aliyun.com/gpu-mem",
        ),
        (
            ["--mem", "4", "-c", "x"],
            NotKnownError,
            "pod ns/book has no container x; with a slice: a, b",
        ),
        (["--mem", "4"], ConfigError, r"no single container with a slice \(a, b\); name one"),
    ],
)
async def test_a_wrong_question_names_what_is_there(
    cluster: Cluster, words: list[str], error: type[Exception], text: str
) -> None:
    """Nothing is written."""
    slice_ = {"limits": {"aliyun.com/gpu-mem": "2"}}
    containers = [
        {"name": "a", "resources": slice_},
        {"name": "b", "resources": slice_},
        {"name": "log"},
    ]
    await running(
        cluster, containers=containers, initContainers=[{"name": "first", "resources": slice_}]
    )
    with pytest.raises(error, match=text):
        await resize(cluster, *words)

    assert not [each for each in cluster.server.requests if each.method == "PATCH"]


@pytest.mark.parametrize(
    ("on", "phase", "text"),
    [("", "Pending", "is on no node yet"), ("gpu-a", "Succeeded", "has ended")],
)
async def test_a_pod_that_has_no_slice_now_is_named(
    cluster: Cluster, on: str, phase: str, text: str
) -> None:
    await cluster.add(pod("book", 2, 30, on=on), phase)
    with pytest.raises(ClusterError, match=text):
        await resize(cluster, "--mem", "4")
