"""Cards that an MPS daemon has not given back are offered to nobody: in no mode, under no file, after no restart.

They are in exclusive mode, so containers that are no clients of the daemon could not use them.
"""

import signal

from tests.cards_tools.test_mps_daemon import (
    CONFIG,
    DEFAULT,
    EXCLUSIVE,
    GPU,
    Mps,
    allocatable,
    quit_control,
)
from tools.harness.rig import FOUR_CARDS, running_rig
from tools.harness.waiting import until

WITHOUT = "version: v1\n"
"""Neither `sharing.mps` nor `mpsRoot`."""


async def test_a_node_leaves_its_mode_when_the_daemon_has_given_the_cards_back() -> None:
    """Also where the daemon was killed, and its file taken away; an Event says what to do."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        await rig.start_agent(mode="default", config_file=mps.config)
        async with mps.running() as daemon:
            await allocatable(mps, 16)
            await rig.set_labels(schedule="core_mem")
            await until(lambda: bool(rig.events("ModeSwitchRefused")), 30)
            assert rig.kubelet.allocatable(GPU) == 16
            await mps.kill(daemon)
        (event,) = rig.events("ModeSwitchRefused")
        assert f"the MPS daemon of {mps.root} has given its cards back" in event["message"]
        await rig.stop_agent(signal.SIGKILL)
        mps.config.write_text(WITHOUT)
        await rig.start_agent(mode="default", config_file=mps.config)
        await until(lambda: len(rig.events("ModeSwitchRefused")) > 1, 30)
        assert mps.modes() == [EXCLUSIVE] * 4
        mps.choice.append(f"--mps-root={mps.root}")
        async with mps.running():
            await rig.until_offered(FOUR_CARDS, 60)
            assert mps.modes() == [DEFAULT] * 4
        quit_control(mps)


async def test_cards_wait_though_the_file_names_the_daemons_directory_no_more() -> None:
    """It is remembered, also by an agent that was away meanwhile."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        await rig.start_agent(mode="default", config_file=mps.config)
        async with mps.running() as daemon:
            await allocatable(mps, 16)
            await mps.kill(daemon)
        mps.config.write_text(WITHOUT)
        waits = f"waits for the MPS daemon of {mps.root}, which has not given it back"
        for runs in (1, 2):
            await until(lambda: len(rig.events("ConfigurationWaits")) == 4 * runs, 60)  # noqa: B023
            assert all(waits in event["message"] for event in rig.events("ConfigurationWaits"))
            assert rig.kubelet.allocatable(GPU) == 0
            if runs == 1:
                await rig.stop_agent()
                await rig.start_agent(mode="default", config_file=mps.config)
        mps.choice.append(f"--mps-root={mps.root}")
        async with mps.running():
            await allocatable(mps, 4)
            assert mps.modes() == [DEFAULT] * 4
        quit_control(mps)


async def test_cards_wait_while_it_is_not_known_which_of_them_a_daemon_took() -> None:
    """Neither agent nor daemon touches one until the operator has removed the file that cannot be read."""
    async with running_rig(is_started=False) as rig:
        mps = Mps(rig)
        mps.root.mkdir()
        modes = mps.root / "compute-modes.json"
        modes.write_text('{"GPU-')
        mps.config.write_text(f"version: v1\nflags: {{mpsRoot: {mps.root}}}\n")
        await rig.start_agent(mode="default", config_file=mps.config)
        await until(lambda: len(rig.events("ConfigurationWaits")) == 4, 60)
        waits = (
            f"the MPS daemon of {mps.root}, which has left a compute-modes.json that cannot be read"
        )
        assert all(waits in event["message"] for event in rig.events("ConfigurationWaits"))
        mps.config.write_text(CONFIG % mps.root)
        async with mps.running():
            await mps.says(f"{modes}: the previous compute modes are not known")
            assert mps.modes() == [DEFAULT] * 4
            assert (modes.read_text(), rig.kubelet.allocatable(GPU)) == ('{"GPU-', 0)
            modes.unlink()
            await allocatable(mps, 16)
