"""The promise: a card that pods hold under the previous configuration is offered under no other."""

from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import sevenths, whole

from gpu_device_plugin.domain.cards.card import Card, CardIndex
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    MigStrategy,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.effective_configuration import with_held
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.domain.nvidia.offers import Offers, offers

FAST = "nvidia.com/fast"
MIXED = Configuration(mig_strategy=MigStrategy.MIXED)


def replicated(replicas: int, rename: str = "") -> Configuration:
    return Configuration(
        sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(GPU, replicas, rename),))
    )


def held(resource: str, *ids: str) -> Grant:
    return Grant("s", Holder(PodRef("default", "holder", "u"), "main"), {resource: ids})


def ids(found: Offers) -> dict[str, list[str]]:
    return {name: [each.id for each in devices] for name, devices in found.resources.items()}


def after(cards: list[Card], configuration: Configuration, *grants: Grant) -> Offers:
    return with_held(offers(cards, configuration), cards, grants)


@pytest.mark.parametrize(
    ("grant", "configuration", "wanted"),
    [
        (held(GPU, "GPU-0"), replicated(2), {GPU: ["GPU-1::0", "GPU-1::1", "GPU-0"]}),
        (held(GPU, "GPU-0::7"), replicated(2), {GPU: ["GPU-1::0", "GPU-1::1", "GPU-0::7"]}),
        (
            held(GPU, "GPU-0::1"),
            replicated(2, FAST),
            {FAST: ["GPU-1::0", "GPU-1::1"], GPU: ["GPU-0::1"]},
        ),
        (held(FAST, "GPU-0::1"), Configuration(), {FAST: ["GPU-0::1"], GPU: ["GPU-1"]}),
    ],
)
def test_a_held_card_offers_what_is_held_of_it_and_nothing_else(
    grant: Grant, configuration: Configuration, wanted: dict[str, list[str]]
) -> None:
    """The other card changes at once; the text names the pod."""
    found = after(whole(2), configuration, grant)

    assert ids(found) == wanted
    assert len(found.waiting) == 1
    assert "card 0 (GPU-0)" in found.waiting[0]
    assert "default/holder" in found.waiting[0]


def test_nothing_waits_where_the_configuration_offers_what_is_held() -> None:
    """More replicas of the same name come at once."""
    found = after(whole(1), replicated(3), held(GPU, "GPU-0::1"))

    assert ids(found) == {GPU: ["GPU-0::0", "GPU-0::1", "GPU-0::2"]}
    assert not found.waiting


def test_a_node_that_cannot_be_served_says_why_and_not_who_waits() -> None:
    """Nothing is offered, anyone who holds what."""
    problem = Offers(problem="no card of this node is in MIG mode")

    assert with_held(problem, whole(1), [held(GPU, "GPU-0")]) == problem


def test_an_instance_holds_its_whole_card() -> None:
    """Under the name of the strategy before; an instance that is gone holds nothing."""
    found = after(sevenths(2), MIXED, held(GPU, "MIG-0-3"), held(GPU, "MIG-0-9"))

    assert ids(found)[GPU] == ["MIG-0-3"]
    assert [each[:5] for each in ids(found)["nvidia.com/mig-1g.5gb"]] == ["MIG-1"] * 7
    assert not after(sevenths(1), MIXED, held(GPU, "MIG-0-9")).waiting


@pytest.mark.parametrize(
    ("resource", "unit", "cards", "configuration", "wanted"),
    [
        (GPU, "GPU-0::3", whole(2), Configuration(), {"GPU-0"}),
        (GPU, "GPU-0", whole(2), replicated(2), {"GPU-0::0", "GPU-0::1"}),
        (FAST, "GPU-0", whole(2), Configuration(), {"GPU-0"}),
        (GPU, "GPU-0", whole(2), Configuration(), set()),
        (GPU, "GPU-0::0", whole(2), replicated(2), set()),
        (GPU, "GPU-0", sevenths(2), MIXED, {f"MIG-0-{n}" for n in range(7)}),
        (GPU, "MIG-0-3", sevenths(2), MIXED, {f"MIG-0-{n}" for n in range(7)}),
        ("nvidia.com/mig-1g.5gb", "MIG-0-3", sevenths(2), MIXED, set()),
        (GPU, "MIG-0-9", sevenths(2), MIXED, set()),
        ("aliyun.com/gpu-mem", "m00", whole(2), Configuration(), set()),
    ],
)
def test_a_unit_that_is_not_offered_keeps_its_card_from_all_that_are(
    resource: str, unit: str, cards: list[Card], configuration: Configuration, wanted: set[str]
) -> None:
    """Whole cards, replicas and instances; what is offered may stand beside it, and what is gone keeps nothing."""
    state = NodeState("n", cards=tuple(cards), mode=NodeMode.DEFAULT)
    entry = CheckpointEntry("u", "main", resource, frozenset({unit}), ContainerEdits())

    assert NvidiaScheme(lambda: configuration).held_otherwise([entry], state) == dict.fromkeys(
        wanted, "u"
    )


@pytest.mark.parametrize(
    ("devices", "strategy", "mode", "wanted"),
    [
        ((), MigStrategy.MIXED, NodeMode.CORE_MEM, True),
        ((), MigStrategy.NONE, NodeMode.DEFAULT, False),
        ((), MigStrategy.NONE, NodeMode.MIG, True),
        (("GPU-0",), MigStrategy.MIXED, NodeMode.CORE_MEM, False),
        (("MIG-0-2",), MigStrategy.NONE, NodeMode.DEFAULT, True),
        (("GPU-1", "MIG-1-0"), MigStrategy.MIXED, NodeMode.DEFAULT, True),
    ],
)
def test_a_card_changes_sides_when_nobody_holds_what_it_was(
    devices: tuple[str, ...],
    strategy: MigStrategy,
    mode: NodeMode,
    wanted: bool,  # noqa: FBT001
) -> None:
    """A holder of the card keeps its instances back; one of an instance keeps them offered."""
    (card,) = sevenths(1)
    report = CardReport(
        card.uuid, CardIndex(0), 0, card.model, MiB(40960), is_mig=True, hardware=card.hardware
    )
    grant = replace(held(GPU), shares=tuple(Share(uuid, 0) for uuid in devices))
    scheme = NvidiaScheme(lambda: Configuration(mig_strategy=strategy), lambda: [grant])

    assert scheme.takes_mig(report, mode) is wanted
