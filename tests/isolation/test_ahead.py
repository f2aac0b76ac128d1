"""A thread that launches is let go for several launches at a time: what it is charged stays what it did."""

import pytest
from tests.isolation.conftest import MakeBox
from tests.isolation.region import Region
from tests.sweeps import sweep
from tools.harness.isolation.shares import BESIDE_POINTS, STEPPING, in_turns, shares, tenant

UNIT_NS, TIMES, LEARNING = 10_000, 500, 600
# On card 0 at a time, and while the kinds are learned.
UNITS = {"cards": 2, "waited": 2, "shared": 11, "kinds": 82, "beside": 3, "grows": 12}
LEARNED = {"grows": 3}


@sweep("way", list(UNITS))
@sweep("cap", [100, 80])
def test_what_a_thread_launches_is_charged_and_not_what_it_was_let_go_for(
    make_box: MakeBox, way: str, cap: int
) -> None:
    """Two kernels, and a rest. A default stream is that of the current context: one name, two cards.

    Or another thread waits for the two, while the first could have launched tens of them. Or
    another launches as well, and its event has all of it in front. Or some are of another kind.
    Or another thread launches in a context of its own, and events follow there. Or one that always
    comes behind another takes longer one day.
    """
    box = in_turns(make_box(library=STEPPING))
    caps = (f"device={box.node.uuids[i]} core_percent={each}\n" for i, each in enumerate((90, cap)))
    box.write(f"version=1\nslice=a\n{''.join(caps)}")
    ran = box.run("ahead", way, str(UNIT_NS), str(TIMES))
    region = Region(box.root / "state" / "region")
    charged_ns = region.charged_ns()
    region.close()

    assert ran.stdout == "0\n"
    units = LEARNED.get(way, 2) * LEARNING + UNITS[way] * TIMES
    assert charged_ns == pytest.approx(units * UNIT_NS, rel=0.1)


def test_launches_that_come_late_are_asked_for(make_box: MakeBox) -> None:
    """The lease is over by then: bursts of 50, with 4 ms between them, left a neighbour 60 of 70 %."""
    _, neighbour = shares(
        (tenant(make_box, "a", 30), "burst@10000"), (tenant(make_box, "b", 70), "stream"), seconds=5
    )

    assert neighbour > 70 - BESIDE_POINTS
