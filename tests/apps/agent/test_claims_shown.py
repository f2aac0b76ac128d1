"""What the agent says of claims where people and other parts look: annotations, metrics, `why`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.apps.agent.claim_node import ClaimsOnly, Node, node_at
from tests.waiting import until

from gpu_device_plugin.cluster.objects import Wanted
from gpu_device_plugin.domain.doors import Door
from gpu_device_plugin.domain.pods import PodRef
from gpu_device_plugin.domain.schemes.aliyun.annotations import ALLOCATION, CORE_ALLOCATION


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """An agent that publishes."""
    made = node_at(tmp_path, ClaimsOnly())
    task = asyncio.ensure_future(made.wiring.publisher.run())
    yield made
    task.cancel()
    await asyncio.wait({task})


def recorded(node: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Wanted], list[str]]:
    """What is wanted on pods, and the node's annotation of cards, as they are written."""
    pods: dict[str, Wanted] = {}
    cards: list[str] = []

    def annotate(ref: PodRef, values: Wanted) -> None:
        pods[ref.name] = values

    def describe(*, labels: Wanted | None = None, annotations: Wanted | None = None) -> None:  # noqa: ARG001
        if text := (annotations or {}).get("gpu-device-plugin/cards"):
            cards.append(text)

    monkeypatch.setattr(node.wiring.cluster, "annotate_pod", annotate)
    monkeypatch.setattr(node.wiring.cluster, "describe_node", describe)
    return pods, cards


def doors(text: str) -> list[str | None]:
    """Each card's door."""
    return [card.get("door") for card in json.loads(text)["cards"]]


async def test_a_pod_with_a_claim_has_the_annotations_of_one_with_units(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods, _ = recorded(node, monkeypatch)
    await node.wiring.claim_door.prepare(node.cluster.allocate("a", 1))

    await until(lambda: "pod-a" in pods)
    assert pods["pod-a"][ALLOCATION] == '{"0":{"1":2}}'
    assert pods["pod-a"][CORE_ALLOCATION] == '{"0":{"1":30}}'


async def test_the_node_tells_which_cards_are_given_by_claims(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All with door `dra`; after that, those that a claim still holds."""
    _, cards = recorded(node, monkeypatch)
    await node.wiring.claim_door.prepare(node.cluster.allocate("a", 1))
    await until(lambda: cards and doors(cards[-1]) == ["dra", "dra"])
    node.wiring.node_store.update(door=Door.DEVICE_PLUGIN)
    await until(lambda: doors(cards[-1]) == [None, "dra"])
