"""The promise: who is refused learns what was asked, what is there, and what to do."""

from dataclasses import replace

from tests.domain.words import V100_MIB, cards, container, pod, terms

from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.no_room import NoRoom, demand_text, no_room_text, room_lines
from gpu_device_plugin.domain.fractions.placement import place
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.grants.caller import Caller
from gpu_device_plugin.domain.grants.decision_log import Decision, why_text
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy

NODE = cards(V100_MIB, V100_MIB)
TAKEN = Room(
    NODE[0],
    is_healthy=True,
    free_mem=Units(7),
    free_core=70,
    pods=3,
    holds_pod=False,
    max_pods=16,
    least_core=5,
)
BROKEN = replace(
    TAKEN, card=NODE[1], is_healthy=False, free_mem=Units(15), free_core=100, pods=0, holds_pod=True
)
LEFT = (TAKEN, BROKEN)
REQUEST = pod("a", container("main", 9, 30))
ASKER = Caller(REQUEST.ref, REQUEST, REQUEST.containers[0])


def no_room(needed: Demand, left: tuple[Room, ...] = LEFT) -> NoRoom:
    """What `place` says."""
    found = place(left, needed, PlacementPolicy.BINPACK)
    assert isinstance(found, NoRoom)
    return found


def test_want_of_room_names_the_largest_slice_and_every_card() -> None:
    """Pod, container, node, amount with unit, the largest free slice in units and MiB, the cure."""
    needed = Demand(Units(9), 30)

    assert no_room_text(ASKER, needed, no_room(needed), terms()) == (
        "pod default/a, container main, on node node-a (mode core_mem) asks "
        "aliyun.com/gpu-mem: 9 (units of 1024 MiB) and "
        "aliyun.com/gpu-core.percentage: 30 (percent of one card), all from one card: "
        "the largest free slice is 7 units (7541 MiB) on card 0. "
        "card 0: 7 of 15 units free; card 1: unhealthy. "
        "Ask less, free a slice, or send the pod to another node"
    )


def test_units_that_no_card_has_and_that_are_room_as_mib_were_likely_meant_so() -> None:
    """3500 where a card has 15 units; not 20, which nobody means as MiB, nor what no card has of units. Cards give even parts."""

    def cure(units: int, cards: int = 1) -> str:
        needed = Demand(Units(units), 30, cards=cards)
        return no_room_text(ASKER, needed, no_room(needed), terms()).rpartition(". ")[2]

    assert cure(3500).startswith("If 3500 MiB are meant, ask 4 units (of 1024 MiB); else ask less")
    assert cure(7000, cards=2).startswith("If 7000 MiB are meant, ask 8 units (of 1024 MiB)")
    assert cure(20).startswith("Ask less")
    assert cure(V100_MIB).startswith("Ask less")
    assert cure(2 * V100_MIB).startswith("Ask less")


def test_an_unknown_container_is_told_without_a_name() -> None:
    """With the API server away."""
    needed = Demand(Units(0), 100)

    text = no_room_text(Caller(REQUEST.ref), needed, no_room(needed), terms())

    assert text.startswith(
        "pod default/a on node node-a (mode core_mem) asks aliyun.com/gpu-core.percentage: 100"
    )


def test_a_node_without_healthy_cards_says_so() -> None:
    """There is no largest slice to name."""
    text = no_room_text(ASKER, Demand(Units(1), 5), no_room(Demand(Units(1), 5), LEFT[1:]), terms())

    assert "nothing is free on any healthy card. card 1: unhealthy" in text
    assert "no cards" in no_room_text(
        ASKER, Demand(Units(1)), no_room(Demand(Units(1)), ()), terms()
    )


def test_several_cards_are_told_with_each_ones_part() -> None:
    """8 units on 2 cards."""
    assert demand_text(Demand(Units(8), cards=2), terms(NodeMode.CGPU)) == (
        "aliyun.com/gpu-mem: 8 (units of 1024 MiB) on 2 cards (4 each)"
    )


def test_rooms_are_told_one_a_line() -> None:
    """Whether the container fits; compute where it is divided, the cap where there is one."""
    shared = replace(TAKEN, max_pods=None, least_core=0)

    assert room_lines([*LEFT, shared], Demand(Units(7), 75)) == (
        "card 0   no room: 7/15 units, 70 % compute free, 3/16 pods (GPU-0)",
        "card 1   unhealthy: 15/15 units, 100 % compute free, 0/16 pods, this pod is here (GPU-1)",
        "card 0   no room: 7/15 units free, 3 pods (GPU-0)",
    )
    assert room_lines([shared], Demand(Units(7))) == (
        "card 0   fits: 7/15 units free, 3 pods (GPU-0)",
    )


def test_a_real_uuid_is_told_by_its_beginning() -> None:
    """A line fits into a terminal of 80 columns."""
    card = replace(NODE[0], uuid="GPU-fbe2901d-8128-59f9-9ae5-417b49a41849")

    (line,) = room_lines([replace(TAKEN, card=card)], Demand(Units(9), 30))

    assert line.endswith("3/16 pods (GPU-fbe2901d)")
    assert len(f"  {line}") < 80


def test_why_tells_the_decisions_of_a_pod() -> None:
    """What it asked, what each card had, what was decided, and why."""
    granted = Decision(
        "default/a",
        "main",
        "aliyun.com/gpu-mem: 2",
        room_lines(LEFT[:1], Demand(Units(2))),
        "card 0",
        "",
        45296.9,
    )
    refused = Decision(
        "default/a", "", "aliyun.com/gpu-mem: 9", (), "refused: no room", "NoRoom", 86400
    )

    assert why_text([granted, refused]) == (
        "12:34:56Z default/a, container main\n"
        "  asked    aliyun.com/gpu-mem: 2\n"
        "  decided  card 0\n"
        "  card 0   fits: 7/15 units, 70 % compute free, 3/16 pods (GPU-0)\n"
        "\n"
        "00:00:00Z default/a\n"
        "  asked    aliyun.com/gpu-mem: 9\n"
        "  decided  refused: no room [NoRoom]\n"
    )
