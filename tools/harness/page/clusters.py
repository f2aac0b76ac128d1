"""Clusters to look at: a small one with everything that the page draws, and a large one."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from tools.harness.api_server import ApiRequest, Json, StandInApiServer, working
from tools.harness.objects import held, node, pod
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, ASSIGNED, CORE_ALLOCATION
from gpu_device_plugin.domain.grants.holdings_annotation import (
    HOLDINGS_ANNOTATION,
    Holding,
    holdings_annotation,
)
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.page.run_page import Page, PageSettings, PageTimes

PROMETHEUS = "monitoring/prometheus:9090"
_TEAMS = ("search", "vision", "speech", "batch", "notebooks", "ads")
_WORK = ("train", "serve", "embed", "rerank", "eval", "notebook", "asr", "detect")
_MIB = 1024 * 1024


def place(value: Json, namespace: str, phase: str = "Running", **status: object) -> Json:
    """A pod in a namespace, with a status."""
    value["metadata"]["namespace"] = namespace
    value["metadata"]["uid"] = f"{namespace}-{value['metadata']['name']}"
    value["status"] = {"phase": phase, **status}
    return value


def add_pod(server: StandInApiServer, value: Json) -> None:
    """Have it from before the first watch."""
    meta = value["metadata"]
    server.preload(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", value)


def add_node(
    server: StandInApiServer, value: Json, *, is_ready: bool = True, **spec: object
) -> None:
    """The same for a node, which reports ready or not."""
    value |= {"spec": spec, "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}
    server.preload(f"/api/v1/nodes/{value['metadata']['name']}", value)


def fill(
    server: StandInApiServer,
    nodes: int,
    cards: int,
    seed: int = 7,
    sick: tuple[int, int] | None = None,
) -> int:
    """Nodes with cards, about two slices each; how many pods that made.

    The card with that number of that node is unhealthy.
    """
    chance, count = random.Random(seed), 0  # noqa: S311 the same each time
    for n in range(nodes):
        name = f"gpu-{n:03}"
        sick_cards = sick[1:] if sick and sick[0] == n else ()
        add_node(server, node(name, cards, sick=sick_cards))
        for card in range(cards):
            left, share = 15, 100
            for _ in range(chance.choice((0, 1, 2, 2, 3, 4))):
                units, percent = chance.choice((2, 3, 4, 6)), chance.choice((10, 20, 30))
                if units > left or percent > share:
                    continue
                left, share, count = left - units, share - percent, count + 1
                title = f"{chance.choice(_WORK)}-{count}"
                value = pod(title, units, percent, on=name, annotations=held(card, units, percent))
                add_pod(server, place(value, chance.choice(_TEAMS)))
    return count


def small(server: StandInApiServer) -> None:
    """Eight nodes: healthy, closed, faulty, unreadable and of whole cards; pods that wait and were refused."""
    fill(server, 4, 8)
    away = node("gpu-004", 4, mode="cgpu", sick=(1,))
    away["metadata"].setdefault("labels", {})["topology.kubernetes.io/zone"] = "eu-1a"
    add_node(server, away)
    add_node(server, node("gpu-005", 2), is_ready=False, unschedulable=True)
    whole = node("gpu-006", 4, mode="default")
    holders = {"finetune-1": "GPU-gpu-006-0", "pretrain-1": "GPU-gpu-006-1"}
    holders["pretrain-2"] = holders["pretrain-1"]
    whole["metadata"]["annotations"][HOLDINGS_ANNOTATION] = holdings_annotation(
        {f"vision-{name}": Holding(devices=(uuid,)) for name, uuid in holders.items()}
    )
    add_node(server, whole)
    for name, uuid in holders.items():
        given = {"gpu-device-plugin/devices": json.dumps({"0": [uuid]})}
        add_pod(server, place(pod(name, on="gpu-006", annotations=given), "vision"))
    broken = node("gpu-007")
    broken["metadata"]["annotations"]["gpu-device-plugin/cards"] = "{}"
    add_node(server, broken)
    wish = held(0, 5, 0, assigned="false")
    add_pod(server, place(pod("reserved-1", 5, on="gpu-004", annotations=wish), "ads"))
    add_pod(server, place(pod("starting-1", 6, 20, on="gpu-005"), "vision", "Pending"))
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    big = place(pod("big-1", 16, 30), "batch", "Pending", conditions=[unschedulable])
    add_pod(server, big)
    refused = pod("late-1", 14, 90, on="gpu-000")
    message = "Pod was rejected: Allocate failed: the largest free slice is 9 units"
    add_pod(
        server,
        place(refused, "search", "Failed", reason="UnexpectedAdmissionError", message=message),
    )


def slices_in_use(server: StandInApiServer) -> web.Response:
    """What a Prometheus answers: every slice, with some use."""
    chance, result = random.Random(3), []  # noqa: S311 as above
    for path, value in server.objects.items():
        notes = value["metadata"].get("annotations") or {}
        if "/pods/" not in path or notes.get(ASSIGNED) != "true":
            continue
        ((card, units),) = json.loads(notes[ALLOCATION])["0"].items()
        percent = json.loads(notes.get(CORE_ALLOCATION, "{}")).get("0", {}).get(card, 0)
        limit = _MIB * (16160 * units // 15)
        labels = {"namespace": value["metadata"]["namespace"], "pod": value["metadata"]["name"]}
        labels |= {"container": "a", "card": card}
        figures = {
            "memory_limit_bytes": limit,
            "memory_used_bytes": limit * chance.random(),
            "core_percent": percent,
            "core_used_ratio": percent / 100 * chance.random(),
        }
        for name, figure in figures.items():
            metric = {"__name__": f"gpu_device_plugin_slice_{name}", **labels}
            result.append({"metric": metric, "value": [1, str(figure)]})
    return web.json_response({"data": {"result": result}})


def with_prometheus(server: StandInApiServer) -> None:
    """Have one behind the API server's proxy."""

    def proxied(seen: ApiRequest) -> web.Response | None:
        return slices_in_use(server) if "services/prometheus:9090" in seen.path else None

    server.fault = proxied


@asynccontextmanager
async def served(
    api: ApiServer, settings: Mapping[str, str] | None = None, use_seconds: float = 15.0
) -> AsyncIterator[str]:
    """The page of that cluster, when it has drawn it: the address; `use_seconds` as in `PageTimes`."""
    chosen = {"address": "127.0.0.1:0", "cluster": "prod-eu", **(settings or {})}
    times = PageTimes(use_seconds=use_seconds, beat_seconds=0.5)
    page = Page(PageSettings(**chosen), api, times)  # type: ignore[arg-type]
    async with working(page.run), aiohttp.ClientSession() as session:
        await until(lambda: page.server.port)
        url = f"http://127.0.0.1:{page.server.port}"

        async def is_drawn() -> bool:
            async with session.get(f"{url}/readyz") as answer:
                return answer.status == 200

        await until(is_drawn, 20)
        yield url
