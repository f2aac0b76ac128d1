"""One history: played on a node, judged by the model, made shorter where it fails."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.histories import resizes
from tests.histories.explored import Explored
from tests.histories.judge import ViolationError, check_always, check_quiet, check_settled
from tests.histories.loop import StuckError
from tests.histories.node import Node, booted
from tests.histories.steps import QUIET, Step, take

_START_SECONDS = 10.0
_LOOK_SECONDS = 2.0
QUIET_SECONDS = 60.0
SETTLED_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a history went.

    Attributes:
        violation: What was so that must never be; empty where all went well.
        story: What happened, line by line.
        explored: What was there to see, counted.
        uncapped_seconds: How long containers ran without a limit that their grant names.
    """

    violation: str
    story: tuple[str, ...]
    explored: Explored
    uncapped_seconds: float = 0.0


def play(steps: Sequence[Step], seed: int = 0, cards: int = 2) -> Outcome:
    """Play steps on a fresh node; `seed` decides what is left to chance."""
    with booted(seed, cards) as node:
        loop = node.machine.loop
        try:
            loop.run_until_complete(_life(node, steps))
            violation = ""
        except ViolationError as error:
            violation = str(error)
        except StuckError:
            violation = "nothing would ever happen again"
        story = tuple(node.machine.story)
        return Outcome(violation, story, node.explored, node.limits.uncapped_seconds)


def shortened(steps: Sequence[Step], is_bad: Callable[[Sequence[Step]], bool]) -> tuple[Step, ...]:
    """The fewest steps found that still fail: parts are left out, halves first, then one by one."""
    kept = tuple(steps)
    size = max(1, len(kept) // 2)
    while True:
        for start in range(0, len(kept), size):
            shorter = kept[:start] + kept[start + size :]
            if is_bad(shorter):
                kept = shorter
                break
        else:
            if size == 1:
                return kept
            size //= 2


async def _life(node: Node, steps: Sequence[Step]) -> None:
    await node.start()
    await _wait(node, _START_SECONDS)
    for step in steps:
        if step.do == QUIET:
            await _quiet(node)
        else:
            take(node, step)
            await _wait(node, step.wait)
    await _quiet(node)
    await _wait(node, SETTLED_SECONDS - QUIET_SECONDS)
    await _read_metrics(node)
    check_settled(node)
    events = (value for path, value in node.api.objects.items() if "/events/" in path)
    node.explored.update(f"events: {event['reason']}" for event in events)


async def _quiet(node: Node) -> None:
    node.calm()
    resizes.ask_back(node)
    await _wait(node, node.machine.loop.threads_until - node.machine.loop.now)  # of a slow disk
    node.machine.tell("from here on it is quiet")
    await _wait(node, QUIET_SECONDS)
    while (seconds := node.pods.ended_at + QUIET_SECONDS - node.machine.loop.now) > 0:
        await _wait(node, seconds)  # a pod that was being deleted has ended since
    await _read_metrics(node)
    check_quiet(node)


async def _read_metrics(node: Node) -> None:
    node.past.page = await node.agent.page("/metrics") if node.agent else ""


async def _wait(node: Node, seconds: float) -> None:
    """Let time pass; what must always hold is looked at again and again."""
    end = node.machine.loop.now + seconds
    while node.machine.loop.now < end:
        await asyncio.sleep(min(_LOOK_SECONDS, end - node.machine.loop.now))
        check_always(node)
    check_always(node)
