"""What a call costs is bounded by what it does not do."""

import os

import pytest
from tests.isolation.conftest import MakeBox
from tools.harness.isolation.box import SLICE

pytestmark = pytest.mark.skipif(
    "GPUSLICE_SANITIZER" in os.environ, reason="a sanitizer watches the same functions"
)


@pytest.mark.parametrize("core_percent", [None, 100, 90])
def test_nothing_on_a_calls_way_asks_the_environment_or_a_file(
    make_box: MakeBox, core_percent: int | None
) -> None:
    """Seen in HAMi-core 164, 165, 166: getenv, log and status in every call cost 23 %."""
    box = make_box()
    box.allow(SLICE, core_percent)
    ran = box.run("quiet", "2000")

    at_start, turns, *later = ran.stdout.split()
    asked = sum(int(count) for count in later[1::2])

    assert int(at_start) > 0  # or it would not be seen at all
    assert turns == "2000"
    # A launch that the cap holds back for long looks for the dead meanwhile, who free time.
    assert asked <= (2000 // 20 if core_percent == 90 else 0), ran.stdout
    assert ran.stderr == ""
