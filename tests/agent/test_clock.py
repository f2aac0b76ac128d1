"""The wall clock may jump: no grant ends by it, no card comes back by it, nothing stalls."""

from pathlib import Path

import pytest
from tools.harness.rig import CORE, COUNT, MEM, running_rig, slice_of, until

HOUR = 3600
RECOVERY_SECONDS = 1800  # less than the jump, more than any machine needs for the test


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
async def test_a_jump_of_an_hour_changes_nothing(clock: Path, jump: int) -> None:
    """Absences, probes, deadlines and retries are counted on clocks that never jump."""
    async with running_rig(is_started=False) as rig:
        offset = rig.root / "offset"
        offset.write_text("0")
        rig.environment |= {"LD_PRELOAD": str(clock), "CLOCK_OFFSET": str(offset)}
        await rig.serve(recovery_seconds=RECOVERY_SECONDS)
        await rig.admit("p", slice_of(2, 30))
        rig.cards.lose(3)
        await until(lambda: rig.kubelet.allocatable(COUNT) == 3, 10)
        rig.cards.restore(3)
        offset.write_text(str(jump))
        assert (await rig.admit("q", slice_of(2, 30))).is_admitted
        created = rig.grant("q").created_seconds - rig.grant("p").created_seconds
        await rig.kubelet.restart()
        # The card's clean half hour did not pass either: three cards, in all three resources.
        await rig.until_offered({MEM: 45, CORE: 300, COUNT: 3})

        assert abs(created - jump) < 300  # the clock did jump
        assert {grant.pod.name for grant in rig.grants()} == {"p", "q"}
