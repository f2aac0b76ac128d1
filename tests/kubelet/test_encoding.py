"""The list's bytes are what protobuf would write, small enough, and cheap to change."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.nvidia.nodes import card
from tests.kubelet.rig import MEM, Rig, group, mem_cards, until

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.fractions.room import MAX_MESSAGE_BYTES, list_message_bytes
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids, units_of
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.device_list import encode_list


@given(
    cards=st.lists(
        st.tuples(st.integers(0, MAX_CARDS - 1), st.integers(0, 1500), st.booleans()), max_size=4
    ),
    resource=st.sampled_from(list(Resource)),
)
def test_hand_joined_bytes_are_what_protobuf_writes(
    cards: Sequence[tuple[int, int, bool]], resource: Resource
) -> None:
    """Every id in order, with its health, and not a byte besides."""
    expected = pb.ListAndWatchResponse()
    for number, units, is_healthy in cards:
        for text in unit_ids(resource, number, units):
            expected.devices.add(ID=text, health="Healthy" if is_healthy else "Unhealthy")

    assert (
        encode_list(
            group(resource, number, units, is_healthy=is_healthy)
            for number, units, is_healthy in cards
        )
        == expected.SerializeToString()
    )


@given(
    cards=st.integers(1, 16),
    memory_gib=st.integers(4, 512),
    unit=st.sampled_from(MemoryUnit),
    resource=st.sampled_from(Resource),
)
def test_predicted_size_is_that_of_the_largest_message(
    cards: int, memory_gib: int, unit: MemoryUnit, resource: Resource
) -> None:
    """Over 1 to 16 cards of 4 to 512 GiB: exact where all is unhealthy, never too small."""
    nodes = [
        Card(f"GPU-{i}", CardNumber(i), CardIndex(i), i, "any", MiB(memory_gib * 1024))
        for i in range(cards)
    ]
    units = units_of(nodes[0], resource, unit)
    offered = [group(resource, i, units, is_healthy=False) for i in range(cards)]
    healthy = [group(resource, i, units) for i in range(cards)]

    predicted = list_message_bytes(resource, nodes, unit)

    assert predicted == len(encode_list(offered))
    assert len(encode_list(healthy)) == predicted - 2 * units * cards
    assert predicted <= MAX_MESSAGE_BYTES


def test_a_health_change_encodes_only_the_card_it_concerns() -> None:
    """Seven of eight chunks are the very bytes of before."""
    before = [group(Resource.MEM, card, 1123) for card in range(8)]
    after = [*before[:3], group(Resource.MEM, 3, 1123, is_healthy=False), *before[4:]]

    first, second = encode_list(before), encode_list(after)

    assert len(second) - len(first) == 2 * 1123
    assert len(second) < 250_000
    assert first[: len(encode_list(before[:3]))] == second[: len(encode_list(before[:3]))]


def test_whole_cards_are_listed_with_their_numa_node() -> None:
    """For the kubelet's Topology Manager; a card of which the kernel knows none has no topology."""
    nodes = (None, 0, 1, 200)
    cards = tuple(
        replace(each, hardware=replace(each.hardware, numa_node=node))
        for each, node in zip(map(card, range(4)), nodes, strict=True)
    )
    state = NodeState("n1", mode=NodeMode.DEFAULT, cards=cards)
    (pool,) = Schemes(Configuration).pools(state)
    expected = pb.ListAndWatchResponse()
    for each, node in zip(cards, nodes, strict=True):
        device = expected.devices.add(ID=each.uuid, health="Healthy")
        if node is not None:
            device.topology.nodes.add(ID=node)

    assert encode_list(pool.groups) == expected.SerializeToString()


async def test_a_client_limited_to_4_mib_takes_8_h200_in_units_of_128_mib(rig: Rig) -> None:
    """9024 devices arrive at a kubelet, all of them."""
    await rig.serve(units=1128, cards=8)

    assert rig.kubelet.allocatable(MEM) == 9024


async def test_a_list_above_4_mib_would_never_arrive(rig: Rig) -> None:
    """Why settings that need such a list are refused: the kubelet ends the stream."""
    await rig.kubelet.start()
    rig.mem.publish(mem_cards(20_000, cards=16))
    rig.run(rig.mem)
    await until(lambda: rig.mem.state.registrations >= 2)

    assert rig.kubelet.allocatable(MEM) == 0


@pytest.mark.parametrize("resource", list(Resource))
def test_no_list_at_all_is_an_empty_message(resource: Resource) -> None:
    """A card without units, or no card."""
    assert encode_list([group(resource, 0, 0)]) == encode_list([]) == b""
