"""What is done to a node reaches the programs that use it, and hurts no other card."""

import select
import signal
import subprocess
import time

from tests.simulator.programs import end, hear, run, start, started

from gpu_device_plugin.simulation.simulated_node import SimulatedNode

_GPU_IS_LOST = 15
_DRIVER_NOT_LOADED = 9

_WAIT_FOR_XID = """
nvml.nvmlInit()
events = nvml.nvmlEventSetCreate()
for index in range(nvml.nvmlDeviceGetCount()):
    card = nvml.nvmlDeviceGetHandleByIndex(index)
    nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
say("waiting")
event = nvml.nvmlEventSetWait_v2(events, 120000)
say([nvml.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData])
say(error_of(nvml.nvmlEventSetWait_v2, events, 50))
"""

_READ_ON_DEMAND = """
nvml.nvmlInit()
cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
say(len(cards))
for line in sys.stdin:
    say([error_of(nvml.nvmlDeviceGetMemoryInfo, card) for card in cards])
"""


def test_an_xid_wakes_a_program_that_waits_for_events(node: SimulatedNode) -> None:
    """Card, kind and code arrive; then there is nothing more to hear."""
    with started(node, _WAIT_FOR_XID) as program:
        assert hear(program) == "waiting"
        node.xid(1, 74)

        assert hear(program) == [1, 8, 74]
        assert hear(program) == 10  # a timeout


def test_an_event_before_the_registration_is_not_heard(node: SimulatedNode) -> None:
    """As with the driver: nobody waits for the past, even with a set made before it."""
    with started(
        node,
        """
        nvml.nvmlInit()
        events = nvml.nvmlEventSetCreate()
        say("made")
        sys.stdin.readline()
        card = nvml.nvmlDeviceGetHandleByIndex(1)
        nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)
        say("registered")
        say(nvml.nvmlEventSetWait_v2(events, 120000).eventData)
        """,
    ) as program:
        assert hear(program) == "made"
        node.xid(1, 48)
        assert _ask(program) == "registered"
        node.xid(0, 62)  # a card that nobody registered
        node.xid(1, 79)

        assert hear(program) == 79


def test_an_xid_that_asks_for_a_reset_shows_as_recovery_action(node: SimulatedNode) -> None:
    """The field stays until somebody resets the card; an application's XID sets none."""
    read = """
    nvml.nvmlInit()
    action = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    say([nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(i), [action])[0].value.uiVal
         for i in range(2)])
    """
    node.xid(0, 48)
    node.xid(1, 31)
    assert run(node, read) == [1, 0]

    node.restore(0)

    assert run(node, read) == [0, 0]


def test_a_lost_card_answers_for_itself_only(node: SimulatedNode) -> None:
    """Every call on it says so; its neighbour goes on, and so does it after its return."""
    with started(node, _READ_ON_DEMAND) as program:
        assert hear(program) == 2

        answers = [_ask(program)]
        node.lose(1)
        answers.append(_ask(program))
        node.restore(1)
        answers.append(_ask(program))

        assert answers == [[0, 0], [0, _GPU_IS_LOST], [0, 0]]


def test_a_hang_blocks_every_call_until_it_is_over(node: SimulatedNode) -> None:
    """A call made in a hang returns after it with the right answer, and not before."""
    with started(node, _READ_ON_DEMAND) as program:
        assert hear(program) == 2
        node.hang()
        _poke(program)
        _wait_until_asleep(program.pid)
        node.temperature(0, 50)  # the controls work meanwhile
        assert program.stdout is not None
        said, _, _ = select.select([program.stdout], [], [], 0)
        assert said == []
        node.unhang()

        assert hear(program) == [0, 0]


def test_a_program_in_a_hang_can_be_killed(node: SimulatedNode) -> None:
    """It sits in an interruptible wait, so a signal ends it."""
    program = start(node, _READ_ON_DEMAND)
    assert hear(program) == 2
    node.hang()
    _poke(program)
    _wait_until_asleep(program.pid)

    program.send_signal(signal.SIGTERM)

    assert program.wait(timeout=120) == -signal.SIGTERM
    end(program)
    node.unhang()


def test_a_program_killed_with_the_lock_blocks_nobody(node: SimulatedNode) -> None:
    """The mutex is robust: the next caller takes it over."""
    holder = start(node, 'control("gpusim_hold_lock"); say("held"); time.sleep(600)')
    assert hear(holder) == "held"

    end(holder)

    seen = run(node, "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount())")
    assert seen == 2


def test_an_unplugged_card_is_lost_to_who_holds_it_and_gone_for_who_comes(
    node: SimulatedNode,
) -> None:
    """NVML enumerates once; a new init counts again, and the index of others moves."""
    count = "nvml.nvmlInit(); say(nvml.nvmlDeviceGetCount())"
    survivor = node.view().cards[1].uuid
    with started(node, _READ_ON_DEMAND) as program:
        assert hear(program) == 2
        node.unplug(0)

        assert _ask(program) == [_GPU_IS_LOST, 0]
        assert run(node, count) == 1
        first = "nvml.nvmlInit(); say(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)))"
        assert run(node, first) == survivor

    node.plug(0)
    assert run(node, count) == 2


def test_a_driver_upgrade_shows_its_version_and_ends_the_need_for_a_reset(
    node: SimulatedNode,
) -> None:
    """Driver, NVML and CUDA versions move together."""
    node.xid(0, 95)

    node.upgrade_driver("580.65.06")

    shown = node.view()
    assert (shown.driver_version, shown.cuda_version) == ("580.65.06", "13.0")
    assert shown.cards[0].recovery_action == 0
    read = "nvml.nvmlInit(); say(nvml.nvmlSystemGetNVMLVersion())"
    assert run(node, read) == "13.580.65.06"


def test_without_a_node_there_is_no_driver(node: SimulatedNode) -> None:
    """The library is there, the driver is not loaded: what an agent waits for."""
    node.state.unlink()

    assert run(node, "say(error_of(nvml.nvmlInit))") == _DRIVER_NOT_LOADED


def _poke(program: subprocess.Popen[str]) -> None:
    """Lets the program look at its cards once."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


def _ask(program: subprocess.Popen[str]) -> object:
    """What the program's calls answer now."""
    _poke(program)
    return hear(program)


def _wait_until_asleep(pid: int) -> None:
    """Until the program is seen asleep three times in a row: it waits for something."""
    deadline = time.monotonic() + 120
    asleep = 0
    while asleep < 3 and time.monotonic() < deadline:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:  # noqa: PTH123
            asleep = asleep + 1 if file.read().startswith("202 ") else 0  # futex
    assert asleep == 3
