"""What a card costs beside the work itself is a setting each, and one setting for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import Node

QUIET = {"GPU_SIMULATOR_JITTER_PERMILLE": "0", "GPU_SIMULATOR_CLOCK_PERMILLE": "0"}


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
    assert _number(node, compiled("costs"), "event", **QUIET, **settings) == lasts_ns


@pytest.mark.parametrize(
    ("word", "settings", "lasts_ns"),
    [
        ("launch", {"GPU_SIMULATOR_LAUNCH_NS": "3600"}, 3600),
        ("record", {"GPU_SIMULATOR_RECORD_NS": "1500"}, 1500),
        ("submit", {"GPU_SIMULATOR_SUBMIT_NS": "3000"}, 13_000 + 1000),
        ("stand", {"GPU_SIMULATOR_STOPPED_MS": "40"}, 20_000_000),
        ("stand", {"GPU_SIMULATOR_STOPPED_MS": "60"}, 70_000_000),
    ],
)
def test_calls_take_the_hosts_time(
    node: Node, compiled: Callable[[str], Path], word: str, settings: dict[str, str], lasts_ns: int
) -> None:
    """In stepped time; a wait ends a microsecond late, and a process may stand still meanwhile."""
    assert _number(node, compiled("costs"), word, **QUIET, **settings) == lasts_ns


@pytest.mark.parametrize(
    ("settings", "lasts_ns"),
    [
        ({"GPU_SIMULATOR_DRIFT_PPM": "1000"}, 10_010),
        ({"GPU_SIMULATOR_DRIFT_PPM": "-1000"}, 9990),
        ({"GPU_SIMULATOR_TICK_NS": "10000"}, 10_000),
    ],
)
def test_a_cards_clock_counts_otherwise(
    node: Node, compiled: Callable[[str], Path], settings: dict[str, str], lasts_ns: int
) -> None:
    """Parts in a million more or less, and in steps."""
    assert _number(node, compiled("costs"), "event", **QUIET, **settings) == lasts_ns


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
