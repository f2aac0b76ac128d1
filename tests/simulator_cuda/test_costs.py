"""What a card costs beside the work itself is a setting each, and one setting for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import Node


def _number(node: Node, program: Path, word: str, **settings: str) -> int:
    return int(node.run(program, word, **settings).stdout)


@pytest.mark.parametrize(
    ("settings", "lasts_ns"),
    [
        ({}, 10_000),
        ({"GPU_SIMULATOR_EVENT_NS": "1500"}, 11_500),
        ({"GPU_SIMULATOR_EVENT_NS": "1500", "GPU_SIMULATOR_EVENT_BEHIND_NS": "700"}, 12_200),
        ({"GPU_SIMULATOR_EVENT_NS": "0", "GPU_SIMULATOR_CARD_LIKE": "1"}, 10_000),
        ({"GPU_SIMULATOR_CARD_LIKE": "1"}, 12_000),
    ],
)
def test_events_take_a_streams_time(
    node: Node, compiled: Callable[[str], Path], settings: dict[str, str], lasts_ns: int
) -> None:
    """By the setting of their own, else as a card has it if that is asked for."""
    quiet = {"GPU_SIMULATOR_JITTER_PERMILLE": "0", "GPU_SIMULATOR_CLOCK_PERMILLE": "0"}

    assert _number(node, compiled("costs"), "event", **quiet, **settings) == lasts_ns


@pytest.mark.parametrize(("waits", "is_idle"), [("0", 0), ("1", 1)])
def test_loading_code_waits_for_the_card(
    node: Node, compiled: Callable[[str], Path], waits: str, is_idle: int
) -> None:
    """With lazy loading that is the first launch."""
    settings = {
        "GPU_SIMULATOR_LOADING_WAITS": waits,
        "GPU_SIMULATOR_MODULE_MIB": "1",
        "CUDA_MODULE_LOADING": "LAZY",
    }

    assert _number(node, compiled("costs"), "loading", **settings) == is_idle


@pytest.mark.parametrize("locks", [0, 1])
def test_a_call_that_waits_for_room_may_keep_the_driver_to_itself(
    node: Node, compiled: Callable[[str], Path], locks: int
) -> None:
    """A queue is full of launches behind a function that does not return."""
    program = compiled("costs")

    assert _number(node, program, "queue", GPU_SIMULATOR_QUEUE_LOCKS=str(locks)) == locks
