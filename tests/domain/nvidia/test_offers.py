"""The promise: cards and a configuration give the resources and numbers of NVIDIA's documents."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import card, instance, sevenths, whole

from gpu_device_plugin.domain.cards.card import UNKNOWN, Card, CardIndex, CardNumber, Hardware
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.node.state import DeviceGroup
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    Devices,
    MigStrategy,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.offers import device_of, offers
from gpu_device_plugin.kubelet.device_list import encode_list

LIST_BYTES = 4 << 20
SINGLE, MIXED = MigStrategy.SINGLE, MigStrategy.MIXED
MPS = SharingKind.MPS


def shared(
    *entries: SharedResource,
    renamed: bool = False,
    kind: SharingKind = SharingKind.TIME_SLICING,
    strategy: MigStrategy = MigStrategy.NONE,
) -> Configuration:
    return Configuration(mig_strategy=strategy, sharing=Sharing(kind, entries, is_renamed=renamed))


def counts(cards: Sequence[Card], configuration: Configuration) -> dict[str, int]:
    """Resource -> how many; fails where nothing is offered for a reason."""
    found = offers(cards, configuration)
    assert not found.problem
    return {name: len(devices) for name, devices in found.resources.items()}


@pytest.mark.parametrize(
    ("cards", "configuration", "wanted"),
    [
        pytest.param(whole(8), Configuration(), {GPU: 8}, id="whole cards"),
        pytest.param(whole(8), shared(SharedResource(GPU, 10)), {GPU: 80}, id="R-701"),
        pytest.param(
            whole(8),
            shared(SharedResource(GPU, 10), renamed=True),
            {"nvidia.com/gpu.shared": 80},
            id="R-701, renamed by default",
        ),
        pytest.param(whole(1), shared(SharedResource(GPU, 4)), {GPU: 4}, id="R-304"),
        pytest.param(sevenths(8), Configuration(mig_strategy=SINGLE), {GPU: 56}, id="R-207 single"),
        pytest.param(
            sevenths(8),
            Configuration(mig_strategy=MIXED),
            {"nvidia.com/mig-1g.5gb": 56},
            id="R-207 mixed",
        ),
        pytest.param(whole(2), Configuration(mig_strategy=SINGLE), {GPU: 2}, id="single, no MIG"),
        pytest.param(
            [card(i, "3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb") for i in range(8)],
            Configuration(mig_strategy=MIXED),
            {"nvidia.com/mig-1g.5gb": 16, "nvidia.com/mig-2g.10gb": 8, "nvidia.com/mig-3g.20gb": 8},
            id="the static layout of ACK",
        ),
        pytest.param(
            [card(0), card(1, "1g.5gb+me")],
            Configuration(mig_strategy=MIXED),
            {GPU: 1, "nvidia.com/mig-1g.5gb.me": 1},
            id="mixed beside a whole card",
        ),
        pytest.param(
            sevenths(1),
            shared(SharedResource("nvidia.com/mig-1g.5gb", 2), strategy=MIXED),
            {"nvidia.com/mig-1g.5gb": 14},
            id="replicas of instances",
        ),
        pytest.param(
            whole(4),
            shared(
                SharedResource(GPU, 2, "nvidia.com/half", Devices(references=("0", "GPU-1"))),
                SharedResource(GPU, 4, "nvidia.com/quarter", Devices(references=("2",))),
            ),
            {GPU: 1, "nvidia.com/half": 4, "nvidia.com/quarter": 4},
            id="disjoint entries",
        ),
        pytest.param(
            whole(4),
            shared(SharedResource(GPU, 2, devices=Devices(count=3)), renamed=True),
            {GPU: 1, "nvidia.com/gpu.shared": 6},
            id="the first three",
        ),
        pytest.param(
            sevenths(1),
            shared(
                SharedResource(
                    "nvidia.com/mig-1g.5gb", 3, "nvidia.com/x", Devices(references=("0:6",))
                ),
                strategy=MIXED,
            ),
            {"nvidia.com/mig-1g.5gb": 6, "nvidia.com/x": 3},
            id="an instance by its index",
        ),
        pytest.param(
            whole(1), shared(SharedResource("nvidia.com/none", 2)), {GPU: 1}, id="not here"
        ),
        pytest.param(
            whole(1),
            Configuration(gpu_patterns=(Pattern("*A100 SXM4*40GB", "nvidia.com/a100"),)),
            {"nvidia.com/a100": 1},
            id="a pattern",
        ),
        pytest.param(
            whole(1), shared(SharedResource(GPU, 48), kind=MPS), {GPU: 48}, id="48 of MPS"
        ),
    ],
)
def test_a_node_offers(
    cards: list[Card], configuration: Configuration, wanted: dict[str, int]
) -> None:
    """The tables of the documents, and what NVIDIA's plugin parses without using it (R-206, R-304, R-305, R-701, R-706)."""
    assert counts(cards, configuration) == wanted


def test_a_card_of_the_last_run_that_has_not_answered_yet_takes_no_other_out() -> None:
    """What it is made of is not kept; MPS would take it for a card that is older than Turing."""
    silent = replace(card(0), hardware=UNKNOWN)
    found = offers([silent, card(1)], shared(SharedResource(GPU, 20), kind=MPS))
    assert len(found.resources[GPU]) == 40


@pytest.mark.parametrize(
    ("cards", "configuration", "words"),
    [
        pytest.param(
            [*sevenths(1), card(1)],
            Configuration(mig_strategy=SINGLE),
            "all devices on the node must be configured with the same migEnabled value",
            id="single, on and off",
        ),
        pytest.param(
            [card(0, "1g.5gb", "2g.10gb")],
            Configuration(mig_strategy=SINGLE),
            "more than one MIG device type present on node",
            id="single, two profiles",
        ),
        pytest.param(
            [*sevenths(1), card(1, is_mig=True)],
            Configuration(mig_strategy=SINGLE),
            "device 1 has no MIG devices configured",
            id="single, not cut",
        ),
        pytest.param(
            whole(2),
            shared(
                SharedResource(GPU, 2, "nvidia.com/x", Devices(references=("0",))),
                SharedResource(GPU, 2, "nvidia.com/y", Devices(references=("GPU-0",))),
            ),
            "replicated by two entries",
            id="one card by two names",
        ),
        pytest.param(
            whole(1),
            shared(SharedResource(GPU, 49), kind=MPS),
            "maximum allowed replicas exceeded: 49 > 48",
            id="49 of MPS",
        ),
        pytest.param(
            [card(0, capability=(7, 0))],
            shared(SharedResource(GPU, 17), kind=MPS),
            "maximum allowed replicas exceeded: 17 > 16",
            id="17 of MPS on a V100",
        ),
        pytest.param(
            sevenths(1),
            shared(SharedResource(GPU, 2), kind=MPS, strategy=SINGLE),
            "MPS sharing is not supported for MIG devices",
            id="MPS on MIG",
        ),
    ],
)
def test_a_node_that_does_not_fit_offers_nothing(
    cards: list[Card], configuration: Configuration, words: str
) -> None:
    """R-704, R-707: with NVIDIA's words."""
    found = offers(cards, configuration)

    assert not found.resources
    assert words in found.problem


@pytest.mark.parametrize("replicas", [16384, 10**9])
def test_as_many_replicas_are_offered_as_a_kubelets_list_has_room_for(replicas: int) -> None:
    """The bound is of bytes: the whole list of a resource is one message, also when its cards are unhealthy."""
    cards = [replace(each, uuid=f"GPU-{each.index:036}") for each in whole(4)]
    found = offers(cards, shared(SharedResource(GPU, replicas)))
    ids = tuple(device.id for device in found.resources[GPU])
    size = len(encode_list([DeviceGroup(ids, is_healthy=False, numa_node=255)]))

    assert 0.9 * LIST_BYTES < size <= LIST_BYTES
    assert len(ids) % 4 == 0
    (note,) = found.notes
    assert f"{len(ids) // 4} of {replicas} replicas of each card" in note
    assert str(LIST_BYTES) in note


def test_a_replica_is_named_by_its_device_and_a_number() -> None:
    """R-701: `<uuid>::<n>`, from 0."""
    found = offers(whole(2), shared(SharedResource(GPU, 2))).resources[GPU]

    assert [each.id for each in found] == ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]
    assert {device_of(each.id) for each in found} == {"GPU-0", "GPU-1"}
    assert [each.index for each in found] == ["0", "0", "1", "1"]
    assert {each.replicas for each in found} == {2}


@pytest.mark.parametrize("wanted", [Devices(references=("2", "3")), Devices(count=2)])
def test_a_lost_card_changes_nothing_of_the_others(wanted: Devices) -> None:
    """NVML shows it no more, so that no card has its index; it is kept, to be offered unhealthy."""
    configuration = shared(SharedResource(GPU, 4, "nvidia.com/fast", wanted))
    before = offers(whole(4), configuration).resources
    lost = [replace(card(3), index=CardIndex(-1)), *whole(3)]

    found = offers(lost, configuration).resources

    ids = {name: {each.id for each in devices} for name, devices in found.items()}
    assert ids == {name: {each.id for each in devices} for name, devices in before.items()}


def test_of_two_lost_cards_each_stays_in_its_entry() -> None:
    """Also on a node where cards were replaced, so that their numbers are not their indices."""
    entries = (
        SharedResource(GPU, 2, f"nvidia.com/{name}", Devices(references=references))
        for name, references in (("x", ("0", "1")), ("y", ("2", "3")))
    )
    cards = [
        replace(card(n), index=CardIndex(-1), number=CardNumber(n + 4)) if n % 2 else card(n)
        for n in range(4)
    ]

    assert counts(cards, shared(*entries)) == {"nvidia.com/x": 4, "nvidia.com/y": 4}


def test_a_card_in_mig_mode_is_left_out_under_none_with_a_note() -> None:
    """The other cards are served."""
    found = offers([card(0), *[card(1, "1g.5gb")]], Configuration())

    assert [each.id for each in found.resources[GPU]] == ["GPU-0"]
    assert found.notes == ("card 1 (GPU-1) is in MIG mode and left out: the MIG strategy is none",)


def test_an_empty_card_is_only_noted_under_mixed() -> None:
    """R-707."""
    found = offers([card(0), card(1, is_mig=True)], Configuration(mig_strategy=MIXED))

    assert list(found.resources) == [GPU]
    assert found.notes == ("card 1 (GPU-1) is in MIG mode and has no MIG devices configured",)


def test_an_instance_with_part_of_its_compute_is_left_out() -> None:
    """R-706: its neighbours in the GPU instance would share its memory."""
    part = instance(0, 1, "1c.3g.20gb", compute_slices=1)
    hardware = Hardware(is_mig=True, instances=(instance(0, 0), part))
    found = offers(
        [Card("GPU-0", CardNumber(0), CardIndex(0), 0, "A100", MiB(40960), hardware)],
        Configuration(mig_strategy=MIXED),
    )

    assert {name: len(each) for name, each in found.resources.items()} == {
        "nvidia.com/mig-1g.5gb": 1
    }
    assert found.notes == (
        "instance 0:1 (1c.3g.20gb) is left out: it has 1 of the 3 compute slices of its GPU instance",
    )


@pytest.mark.parametrize(
    ("devices", "note"),
    [
        pytest.param(
            Devices(references=("0", "7")),
            "no matching device at index: 7; it has 0, 1, 2, 3",
            id="an index",
        ),
        pytest.param(
            Devices(references=("GPU-0", "GPU-7")),
            "no matching device with UUID: GPU-7",
            id="a UUID",
        ),
        pytest.param(
            Devices(count=5),
            "requested 5 devices to be replicated, but only 4 devices available",
            id="a count",
        ),
    ],
)
def test_a_device_that_is_not_there_is_left_out_with_a_note_and_the_others_are_served(
    devices: Devices, note: str
) -> None:
    """It may be a card that was lost before the agent started."""
    configuration = shared(SharedResource(GPU, 2, "nvidia.com/x", devices))
    found = offers(whole(4), configuration)

    assert note in " ".join(found.notes)
    assert not found.problem
    kept = len(devices.references) - 1 if devices.references else 4
    assert counts(whole(4), configuration).get("nvidia.com/x") == 2 * kept
