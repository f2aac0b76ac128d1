"""What the agent says of claims where people and other parts look: annotations, metrics, `why`."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at
from tools.harness.waiting import until

from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, CORE_ALLOCATION
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.errors import DoesNotFitError


@pytest.fixture
async def node(short_dir: Path) -> AsyncIterator[Node]:
    """An agent that publishes."""
    made = node_at(short_dir, ClaimsOnly())
    task = asyncio.ensure_future(made.wiring.publisher.run())
    yield made
    task.cancel()
    await asyncio.wait({task})


def apis(text: str) -> list[str | None]:
    """Each card's allocation API."""
    return [card.get("allocation_api") for card in json.loads(text)["cards"]]


async def test_a_pod_with_a_claim_has_the_annotations_of_one_with_units(node: Node) -> None:
    pods = node.api.on_pods
    await node.wiring.claim_endpoint.prepare(node.cluster.allocate("a", 1))

    await until(lambda: "pod-a" in pods)
    assert pods["pod-a"][ALLOCATION] == '{"0":{"1":2}}'
    assert pods["pod-a"][CORE_ALLOCATION] == '{"0":{"1":30}}'


async def test_the_node_tells_which_cards_are_given_by_claims(node: Node) -> None:
    """All with allocation API `dra`, and none after that."""
    cards = node.api.cards
    await node.wiring.claim_endpoint.prepare(node.cluster.allocate("a", 1))
    await until(lambda: cards and apis(cards[-1]) == ["dra", "dra"])
    node.wiring.node_store.update(allocation_api=AllocationApi.DEVICE_PLUGIN)
    await until(lambda: apis(cards[-1]) == [None, None])


def page_of(node: Node) -> list[str]:
    """The lines of the metrics page."""
    node.wiring.publisher.show()
    return node.wiring.metrics.page("")[0].decode().splitlines()


def spec_of(name: str, *containers: str) -> Specs:
    """A pod of app containers, as the watch has it; the first one asks for whole cards."""
    ref = PodRef("default", f"pod-{name}", f"pod-uid-{name}")
    asked = {"nvidia.com/gpu": 1}
    listed = tuple(
        ContainerRequest(each, ContainerKind.APP, index, {} if index else asked)
        for index, each in enumerate(containers)
    )
    return {ref.key: PodRequest(ref, listed)}


async def test_metrics_tell_a_slices_claim_its_container_and_what_it_consumes(node: Node) -> None:
    """The kubelet's units say nothing of it; two claims of a pod are two series."""
    node.api.known = spec_of("a", "first", "second")
    endpoint = node.wiring.claim_endpoint
    await endpoint.prepare(node.cluster.allocate("a", 1))
    other = node.cluster.allocate("b", 1, units=3, percent=10)
    first, second = (node.cluster.claims[name] for name in "ab")
    node.cluster.claims["b"] = replace(
        second, pod=first.pod, owners=first.owners, name_in_pod="slice-3-10-c1"
    )
    await endpoint.prepare(other)

    lines = page_of(node)
    of = 'card="1",{}container="{}",namespace="default",pod="pod-a"'
    for claim, container, percent in (
        ("slice-2-30-c0", "first", 30),
        ("slice-3-10-c1", "second", 10),
    ):
        labels = of.format(f'claim="{claim}",', container)
        assert f"gpu_device_plugin_slice_claim{{{labels}}} 1.0" in lines
        labels = of.format("", container)
        assert f"gpu_device_plugin_slice_core_percent{{{labels}}} {percent}.0" in lines
    for state, amount in (("held", 5.0), ("free", 10.0)):
        labels = f'card="1",resource="aliyun.com/gpu-mem",state="{state}",uuid="GPU-1"'
        assert f"gpu_device_plugin_units{{{labels}}} {amount}" in lines
    assert 'gpu_device_plugin_card_allocation_api{api="dra",card="0",uuid="GPU-0"} 1.0' in lines
    assert 'gpu_device_plugin_claims_total{outcome="granted",reason=""} 2.0' in lines


async def test_why_names_claim_and_scheduler_and_tells_a_refusal_once(node: Node) -> None:
    """The kubelet asks again and again."""
    why, endpoint = node.wiring.recorder.why, node.wiring.claim_endpoint
    await endpoint.prepare(node.cluster.allocate("a", 0, units=10, percent=80))
    second = node.cluster.allocate("b", 0, units=10, percent=80)
    for _ in range(3):
        with pytest.raises(DoesNotFitError):
            await endpoint.prepare(second)

    ledger = node.wiring.ledger_store.ledger
    given = why("default", "pod-a", ledger)
    assert "claim slice-10-80-c0: 10 units, 80 % compute" in given
    assert "card 0: the scheduler's choice" in given
    told = why("default", "pod-b", ledger)
    assert told.count("refused: ") == 1
    assert "claim b" in told
    assert 'claims_total{outcome="refused",reason="NoRoom"} 3.0' in "\n".join(page_of(node))


async def test_a_claim_of_whole_cards_is_told_as_whole_cards(node: Node) -> None:
    """kube-scheduler makes it, and no pod names it; it is of one container."""
    pods = node.api.on_pods
    ref = node.cluster.allocate("a", 1, units=15, percent=100)
    claim = replace(node.cluster.claims["a"], name_in_pod="")
    node.cluster.claims["a"] = claim
    await node.wiring.claim_endpoint.prepare(ref)

    await until(lambda: "pod-a" in pods)
    assert pods["pod-a"] == {"gpu-device-plugin/devices": '{"0":["GPU-1"]}'}
    # What an upgrade that switches claims off looks at.
    all_of_it = {"pods": 1, "units": 15, "percent": 100}
    await until(lambda: json.loads(node.api.cards[-1])["cards"][1].get("claimed") == all_of_it)
    (grant,) = node.wiring.ledger_store.ledger.grants.values()
    specs = spec_of("a", "main", "beside")
    (spec,) = specs.values()
    assert node.wiring.schemes.container_of(grant, spec) == "main"
    assert node.wiring.schemes.container_of(grant, None) == "a"
