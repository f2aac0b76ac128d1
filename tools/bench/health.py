"""What a health change costs where lists are long."""

import time

from tools.bench.rows import Chapter, at_most, median, quantile, shown

from gpu_device_plugin.domain.cards.card import MAX_CARDS, Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.kubelet.device_list import DeviceList

ROUNDS = 108
_H200_MIB = 143771
_METHOD = """\
How long the agent computes, when a GPU becomes unhealthy or recovers, until it has the new device list for the kubelet.

In process: the new state of the node becomes the bytes of the next ListAndWatchResponse of gpu-mem (mode share, 128 MiB units, 8 cards
of 143771 MiB)."""


async def measure() -> Chapter:
    """Flip a card, and flip it back."""
    first, again, size = [], [], 0
    for number in range(ROUNDS):
        state = _node(number)
        listed = DeviceList()
        listed.publish(AliyunScheme().pools(state)[0].groups)
        out = _with_fault(state)
        first.append(_publish(listed, out))
        size = max(size, len(listed.message))
        _publish(listed, state)
        again.append(_publish(listed, out))
    return Chapter(
        "Health change of one of 8 H200",
        _METHOD,
        (
            at_most("first change of a card, p50", median(first), 1, "ms"),
            shown("first change of a card, p99", f"{quantile(first, 0.99):.2f} ms"),
            shown("later changes, p50", f"{median(again):.3f} ms"),
            at_most("message", size / 1e6, 0.25, "MB", 3),
        ),
    )


def _node(number: int) -> NodeState:
    """The first card differs from the first cards before it: its forms are not kept yet."""
    memory_mib = _H200_MIB - number // MAX_CARDS * 128
    cards = tuple(
        Card(
            f"GPU-{i}",
            CardNumber((number + i) % MAX_CARDS),
            CardIndex(i),
            i,
            "H200",
            MiB(memory_mib),
        )
        for i in range(8)
    )
    return NodeState("n1", NodeMode.SHARE, unit=MemoryUnit.MIB128, cards=cards)


def _with_fault(state: NodeState) -> NodeState:
    return NodeState(
        state.node,
        state.mode,
        unit=state.unit,
        cards=state.cards,
        unhealthy={state.cards[0].uuid: "XID 79"},
    )


def _publish(listed: DeviceList, state: NodeState) -> float:
    started = time.perf_counter_ns()
    is_change = listed.publish(AliyunScheme().pools(state)[0].groups)
    milliseconds = (time.perf_counter_ns() - started) / 1e6
    assert is_change
    return milliseconds
