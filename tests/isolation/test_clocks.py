"""What is charged is what the card did: neither what its clock counts otherwise, nor what the host took.

`True` is the time of the kernels that were done, in simulated time that moves in steps; both clocks
differ by parts in a million, launches and events cost the host microseconds, and the card has a
launch some later (docs/simulator.md).
"""

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tests.sweeps import sweep
from tools.harness.isolation.shares import POINTS, alone, shares

# How the launches of a kernel come: as fast as the host can, one each 9 us, or each waited for.
EAGER_NS = "9000"
WAYS = [("stream", "3600"), ("stream", EAGER_NS), ("sync", "3600")]


def had_and_charged(
    make_box: MakeBox, percent: int, kind: str, seconds: float, **variables: str
) -> tuple[float, float]:
    """Percent of the card's time that a slice had by itself, and what it was charged."""
    box = alone(make_box, percent)
    box.variables.update(variables)
    [had] = shares((box, kind), seconds=seconds)
    region = Region(box.root / "state" / "region")
    charged = region.charged_ns() / (seconds * 1e9) * 100
    region.close()
    return had, charged


@sweep("drift_ppm", [50, -50, 20, -20, 0])
@sweep("way", WAYS)
@sweep("unit_ns", [1880, 5000, 20_000, 100_000])
@sweep("percent", [30, 10, 50, 90])
def test_kernels_are_charged_what_they_take(
    make_box: MakeBox, percent: int, unit_ns: int, way: tuple[str, str], drift_ppm: int
) -> None:
    """10⁶ of 1.88 us had 50 or 18 of 30 %, as the card's clock counted 20 parts in a million less or more."""
    had, charged = had_and_charged(
        make_box,
        percent,
        f"{way[0]}@{unit_ns}",
        4,
        GPU_SIMULATOR_DRIFT_PPM=str(drift_ppm),
        GPU_SIMULATOR_LAUNCH_NS=way[1],
    )

    # A batch of 200 that is out at the end is neither had nor charged in part.
    assert charged / had == pytest.approx(1, abs=0.07 if percent == 10 else 0.05)


@sweep("record_ns", ["2000", "1000"])
@sweep("tick_ns", ["500", "32"])
def test_kernels_are_so_charged_by_coarse_events(
    make_box: MakeBox, tick_ns: str, record_ns: str
) -> None:
    """CUDA promises half a microsecond, and a call of cuEventRecord may take longer than the kernel."""
    had, charged = had_and_charged(
        make_box,
        30,
        "stream@1880",
        4,
        GPU_SIMULATOR_TICK_NS=tick_ns,
        GPU_SIMULATOR_RECORD_NS=record_ns,
    )

    assert charged / had == pytest.approx(1, abs=0.2)


@sweep("launch_ns", ["20000", EAGER_NS, "3600"])
@sweep("unit_ns", [5000, 1880])
@sweep("percent", [30, 10])
def test_short_kernels_on_several_streams_are_charged_what_they_take(
    make_box: MakeBox, percent: int, unit_ns: int, launch_ns: str
) -> None:
    """On three streams in turn: the host's time was charged, 7 of 30 % were had; then the events', 22 of 30."""
    kind = f"streams@{unit_ns}"
    had, charged = had_and_charged(make_box, percent, kind, 1, GPU_SIMULATOR_LAUNCH_NS=launch_ns)

    assert charged / had == pytest.approx(1, abs=0.22 if percent == 10 else 0.07)


@sweep("percent, kind, stopped_ms", [(30, "sync@100000", "60"), (60, "sync@100000", "15")])
def test_a_thread_that_stands_still_is_no_card_time(
    make_box: MakeBox, percent: int, kind: str, stopped_ms: str
) -> None:
    """As the kernel throttles a container with a CPU limit: 60 of each 100 ms left 17 of 30 %."""
    had, charged = had_and_charged(make_box, percent, kind, 4, GPU_SIMULATOR_STOPPED_MS=stopped_ms)

    assert had == pytest.approx(percent, abs=POINTS)
    assert charged / had == pytest.approx(1, abs=0.05)


def test_nor_where_it_stands_still_between_a_launch_and_the_event_behind_it(
    make_box: MakeBox,
) -> None:
    """The kernel was over long before: the sample says no more than that."""
    had, charged = had_and_charged(
        make_box, 30, "stream@20000-60000", 4, GPU_SIMULATOR_STOPPED_MS="60"
    )

    assert charged / had == pytest.approx(1, abs=0.05), had


@sweep("kind", ["sync@20000/20000000/1000", "sync@20000/2000000/50"])
@sweep("stopped_ms", ["0", "60"])
def test_rare_long_kernels_that_are_waited_for_are_not_free(
    make_box: MakeBox, kind: str, stopped_ms: str
) -> None:
    """What may be a thread that stood still is measured from then on, and made up for once it is proved.

    Until then the program waits for what was not its own.
    """
    had, _ = had_and_charged(make_box, 30, kind, 10, GPU_SIMULATOR_STOPPED_MS=stopped_ms)

    assert 25 <= had <= 30 + POINTS
