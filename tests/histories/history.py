"""One history: made from a seed, played on a node, judged by the model, made shorter where it fails."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.histories.loop import StuckError
from tests.histories.model import ViolationError, check_always, check_quiet, check_settled
from tests.histories.node import Node, booted
from tests.histories.shapes import SHAPES
from tests.histories.steps import Step, take

from gpu_device_plugin.disk.failpoints import POINTS

_START_SECONDS = 10.0
_LOOK_SECONDS = 2.0
QUIET_SECONDS = 60.0
SETTLED_SECONDS = 150.0
_PODS = 6


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a history went.

    Attributes:
        violation: What was so that must never be; empty where all went well.
        story: What happened, line by line.
        virtual_seconds: How long it was.
        uncapped_seconds: How long containers ran without a limit that their grant names.
    """

    violation: str
    story: tuple[str, ...]
    virtual_seconds: float
    uncapped_seconds: float = 0.0


def made(seed: int) -> tuple[Step, ...]:
    """The steps of a seed; on every other node the driver limits memory."""
    chance = random.Random(seed)  # noqa: S311 - a seeded die
    steps = tuple(_step(chance) for _ in range(chance.randint(4, 25)))
    return (Step("limits_begin"), *steps) if seed % 2 else steps


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
        return Outcome(violation, story, loop.now, node.limits.uncapped_seconds)


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
        take(node, step)
        await _wait(node, step.wait)
    node.calm()
    await _wait(node, node.machine.loop.threads_until - node.machine.loop.now)  # of a slow disk
    node.machine.tell("from here on it is quiet")
    await _wait(node, QUIET_SECONDS)
    check_quiet(node)
    await _wait(node, SETTLED_SECONDS - QUIET_SECONDS)
    check_settled(node)


async def _wait(node: Node, seconds: float) -> None:
    """Let time pass; what must always hold is looked at again and again."""
    end = node.machine.loop.now + seconds
    while node.machine.loop.now < end:
        await asyncio.sleep(min(_LOOK_SECONDS, end - node.machine.loop.now))
        check_always(node)
    check_always(node)


_WAITS = (0.0, 0.02, 0.2, 1.0, 3.0, 8.0, 20.0, 40.0)


def _step(chance: random.Random) -> Step:
    makers = [maker for maker, weight in _MAKERS for _ in range(weight)]
    do, what = chance.choice(makers)(chance)
    return Step(do, chance.choice(_WAITS), what)


_SETTINGS: tuple[dict[str, object], ...] = (
    {"memory_unit": "128MiB"},
    {"memory_unit": "GiB"},
    {"placement": "spread"},
    {"placement": "binpack"},
    {"isolation": "off"},
    {"isolation": "on"},
    {"mode": "cgpu"},
    {"mode": "core_mem"},
    {"memory_enforcer": "library"},
    {"memory_enforcer": "auto"},
    {"driver_limit_by": "toolkit"},
    {"driver_limit_by": "hook"},
)
_LONG = (2.0, 8.0, 20.0, 70.0)
_KINDS = ("events", "pods", "nodes", "events pods nodes")
_FILES = ("grants", "grants", "cards", "node")
_Made = tuple[str, dict[str, object]]
_MAKERS: tuple[tuple[Callable[[random.Random], _Made], int], ...] = (
    (lambda c: ("create", {"pod": c.randrange(_PODS), "shape": c.choice(SHAPES)}), 12),
    (
        lambda c: (
            "finish",
            {"pod": c.randrange(_PODS), "phase": c.choice(("Succeeded", "Failed"))},
        ),
        3,
    ),
    (lambda c: ("delete", {"pod": c.randrange(_PODS)}), 4),
    (lambda c: ("replace", {"pod": c.randrange(_PODS), "shape": c.choice(SHAPES)}), 2),
    (lambda c: ("restart_container", {"pod": c.randrange(_PODS), "container": c.randrange(3)}), 2),
    (lambda c: ("kill_agent", {"steps": c.choice((0, c.randrange(1, 200)))}), 2),
    (lambda _: ("stop_agent", {}), 1),
    (lambda c: ("api_away", {"seconds": c.choice(_LONG)}), 3),
    (lambda c: ("api_slow", {"seconds": c.choice(_LONG), "latency": c.choice((0.3, 0.9, 3.0))}), 1),
    (lambda c: ("api_throttles", {"seconds": c.choice(_LONG), "kinds": c.choice(_KINDS)}), 2),
    (lambda c: ("api_behind", {"seconds": c.choice(_LONG), "lag": c.choice((0.5, 5.0, 60.0))}), 2),
    (lambda _: ("api_compacts", {}), 1),
    (lambda c: ("xid", {"card": c.randrange(2), "code": c.choice((31, 94, 63))}), 1),
    (lambda c: ("card_asks_for_reset", {"card": c.randrange(2), "seconds": c.choice(_LONG)}), 1),
    (lambda c: ("card_lost", {"card": c.randrange(2), "seconds": c.choice(_LONG)}), 1),
    (lambda c: ("card_unplugged", {"card": c.randrange(2), "seconds": c.choice(_LONG)}), 1),
    (lambda c: ("card_to_mig", {"card": c.randrange(2), "seconds": c.choice(_LONG)}), 1),
    (lambda c: ("driver_hangs", {"seconds": c.choice(_LONG)}), 1),
    (lambda c: ("driver_reloads", {"seconds": c.choice((3.0, 10.0, 30.0))}), 1),
    (lambda c: ("driver_slow", {"seconds": c.choice(_LONG), "init": c.choice((8.0, 25.0))}), 1),
    (lambda _: ("limits_lost", {}), 1),
    (lambda c: ("cdi_off", {"seconds": c.choice(_LONG)}), 1),
    (lambda c: ("hooks_fail", {"times": c.randint(1, 3)}), 1),
    (lambda c: ("enforcer", {"name": c.choice(("", "auto", "library", "odd"))}), 1),
    (lambda c: ("disk_full", {"seconds": c.choice(_LONG)}), 1),
    (lambda c: ("disk_slow", {"seconds": c.choice(_LONG), "flush": c.choice((0.5, 3.0, 30.0))}), 1),
    (lambda c: ("state_damaged", {"kind": c.choice(_FILES), "at": round(c.random(), 3)}), 1),
    (lambda c: ("region_grown", {"pod": c.randrange(_PODS)}), 1),
    (lambda _: ("sockets_wiped", {}), 1),
    (lambda c: ("registration_refused", {"times": c.randint(1, 4)}), 1),
    (lambda c: ("list_not_taken", {"times": c.randint(1, 3)}), 1),
    (lambda _: ("later_rejection", {"times": 1}), 1),
    (lambda c: ("reboot", {"seconds": c.choice((2.0, 20.0))}), 1),
    (
        lambda c: (
            "label",
            {"mode": c.choice(("", "core_mem", "cgpu", "share", "disabled", "odd"))},
        ),
        2,
    ),
    (lambda c: ("new_settings", c.choice(_SETTINGS)), 2),
    (lambda _: ("release_after", {}), 1),
    (lambda c: ("recover", {"card": c.randrange(2)}), 1),
    (lambda c: ("foreign_plugin", {"seconds": c.choice(_LONG)}), 1),
    (lambda c: ("failpoint", {"point": c.choice(POINTS)}), 2),
    (
        lambda c: (
            "restart_kubelet",
            {
                "away": round(c.uniform(0.1, 5), 2),
                "late": round(c.uniform(0, 20), 2),
                "forgets": c.random() < 0.2,
                "has_get": c.random() < 0.8,
            },
        ),
        2,
    ),
)
