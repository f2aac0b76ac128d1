"""Steps made from a seed: what a node is when it begins, the pods that warm it, and what happens then."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.histories.shapes import OF_EXCLUSIVE, OF_MIG, OF_NVIDIA, OF_REPLACED, SHAPES, TIGHT, WARM
from tests.histories.steps import QUIET, Step
from tests.histories.troubles import CONFIGURATIONS

from gpu_device_plugin.disk.failpoints import POINTS

_WAITS = (0.0, 0.02, 0.2, 1.0, 3.0, 8.0, 20.0, 40.0)
_LONG = (2.0, 8.0, 20.0, 70.0)
_GRACE = (0.0, 0.0, 2.0, 10.0, 30.0)
_AWAY_SECONDS = 600.0
_Made = tuple[str, dict[str, object]]


class World(NamedTuple):
    """A kind of node.

    Attributes:
        begin: Its first steps.
        warm: Shapes of its first pods.
        shapes: Those that are asked for later.
        pods: Of how many pods.
        more: What happens to it more often than to others.
        end: Its last steps.
    """

    begin: tuple[Step, ...]
    warm: tuple[str, ...]
    shapes: tuple[str, ...]
    pods: int = 12
    more: tuple[str, ...] = ()
    end: tuple[Step, ...] = ()


def _nvidia(*further: Step, mode: str = "default") -> tuple[Step, ...]:
    label = (Step("label", 1.0, {"mode": mode}),) if mode else ()
    return (
        Step("nvidia", 2.0),
        *label,
        *further,
        Step("create", 10.0, {"pod": 9, "shape": "nothing"}),
    )


_SPREAD = (Step("placement", 0.0, {"policy": "spread"}),)
_BEHIND = (Step("api_behind", 3.0, {"seconds": 300.0, "lag": 60.0}),)
_GROWN = (Step("allow_growth", 0.0, {"growth": "mem:20,core:200"}),)
_WORLDS: tuple[tuple[World, int], ...] = (
    (World((), WARM, SHAPES), 26),
    (World((), OF_EXCLUSIVE, OF_EXCLUSIVE, 4, ("replace", "replace", "restart_kubelet")), 8),
    (World(_GROWN, WARM, SHAPES, 6, ("resize", "resize", "create", "restart_kubelet")), 12),
    (World(_BEHIND, OF_REPLACED, OF_REPLACED, 4, ("replace", "create")), 6),
    (World(_SPREAD, WARM, (*SHAPES, *TIGHT, *TIGHT, *TIGHT)), 26),
    (World((Step("label", 5.0, {"mode": "share"}),), ("memory",), SHAPES), 6),
    (World((Step("card_small", 5.0, {"card": 1}),), WARM, SHAPES, 6), 4),
    (World(_nvidia(), ("card",), (*OF_NVIDIA, "plain"), 3), 12),
    (World(_nvidia(Step("configure", 8.0, {"name": "x4"})), OF_NVIDIA, OF_NVIDIA, 8), 12),
    (
        World(
            _nvidia(Step("card_cut", 1.0, {"card": 1, "instances": 3}), mode=""),
            (*OF_MIG, *WARM),
            (*OF_MIG, *SHAPES),
            more=("card_cut", "replace"),
            end=(Step(QUIET), Step("xid", 20.0, {"card": 1, "code": 94})),
        ),
        10,
    ),
)


def made(seed: int) -> tuple[Step, ...]:
    """The steps of a seed; on every other node the driver limits memory."""
    chance = random.Random(seed)  # noqa: S311 - a seeded die
    world = chance.choice([world for world, weight in _WORLDS for _ in range(weight)])
    limits = (Step("limits_begin"),) if seed % 2 else ()
    first = range(min(world.pods, chance.randint(5, 10)))
    warm = [_warm(chance, pod, world.warm) for pod in first]
    steps = [_step(chance, world) for _ in range(chance.randint(4, 18))]
    if chance.random() < 0.3:
        steps.insert(chance.randrange(len(steps)), Step(QUIET))
    return (*limits, *world.begin, *warm, *steps, *world.end)


def _warm(chance: random.Random, pod: int, shapes: Sequence[str]) -> Step:
    return Step(
        "create", chance.choice((0.0, 0.3, 1.0)), {"pod": pod, "shape": chance.choice(shapes)}
    )


def _step(chance: random.Random, world: World) -> Step:
    is_special = bool(world.more) and chance.random() < 0.4
    maker = _MORE[chance.choice(world.more)] if is_special else chance.choice(_CHOICES)
    do, what = maker(chance, world)
    away = _AWAY_SECONDS if do == "agent_away" else 0.0
    return Step(do, away + chance.choice(_WAITS), what)


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
_MODES = ("", "core_mem", "cgpu", "share", "share", "default", "disabled", "disabled", "odd")
_KINDS = ("events", "pods", "nodes", "events pods nodes")
_FILES = ("grants", "grants", "cards", "node")
_Maker = Callable[[random.Random, World], _Made]


def _of_pod(do: str, **what: Callable[[random.Random], object]) -> _Maker:
    """An action on one of the pods."""

    def make(chance: random.Random, world: World) -> _Made:
        return do, {
            "pod": chance.randrange(world.pods),
            **{k: of(chance) for k, of in what.items()},
        }

    return make


def _of(do: str, **what: Callable[[random.Random], object]) -> _Maker:
    return lambda chance, _: (do, {key: of(chance) for key, of in what.items()})


def _of_card(do: str, **what: Callable[[random.Random], object]) -> _Maker:
    return _of(do, card=lambda chance: chance.randrange(2), **what)


def _one(*values: object) -> Callable[[random.Random], object]:
    return lambda chance: chance.choice(values)


def _resize(chance: random.Random, world: World) -> _Made:
    mem, core = chance.choice((0, 1, 2, 4, 8, 15)), chance.choice((5, 20, 60, 100))
    sizes = chance.choice((f"mem:{mem}", f"mem:{mem}", f"mem:{mem},core:{core}", f"core:{core}"))
    within = chance.choice(("", "", ",within:5s"))
    text = chance.choice(("odd", *[f"NAME={sizes}{within}"] * 9))
    return "resize", {"pod": chance.randrange(world.pods), "text": text}


def _create(chance: random.Random, world: World) -> _Made:
    return "create", {"pod": chance.randrange(world.pods), "shape": chance.choice(world.shapes)}


def _replace(chance: random.Random, world: World) -> _Made:
    what = {"pod": chance.randrange(world.pods), "shape": chance.choice(world.shapes)}
    return "replace", {**what, "grace": chance.choice(_GRACE), "is_new_name": chance.random() < 0.4}


def _swap(chance: random.Random, world: World) -> _Made:
    one, other = chance.sample(range(world.pods), 2)
    forced = chance.random() < 0.2
    return "swap", {"one": one, "other": other, "grace": chance.choice(_GRACE), "by_force": forced}


def _restart_kubelet(chance: random.Random, world: World) -> _Made:
    return "restart_kubelet", {
        "away": round(chance.uniform(0.1, 5), 2),
        "late": round(chance.uniform(0, 20), 2),
        "forgets": chance.random() < 0.2,
        "has_get": chance.random() < 0.8,
        **({"bound": chance.choice(world.shapes)} if chance.random() < 0.5 else {}),
    }


_MAKERS: tuple[tuple[_Maker, int], ...] = (
    (_create, 18),
    (_of_pod("finish", phase=_one("Succeeded", "Failed")), 3),
    (_of_pod("delete", grace=_one(*_GRACE)), 5),
    (_of_pod("delete_by_force", seconds=_one(3.0, 20.0, 70.0, 150.0)), 3),
    (_replace, 4),
    (_swap, 5),
    (_of_pod("restart_container", container=lambda c: c.randrange(3)), 2),
    (_of("kill_agent", steps=lambda c: c.choice((0, c.randrange(1, 200)))), 2),
    (_of("stop_agent"), 1),
    (_of("agent_away", seconds=_one(_AWAY_SECONDS)), 1),
    (_of("api_away", seconds=_one(*_LONG)), 3),
    (_of("api_slow", seconds=_one(*_LONG), latency=_one(0.3, 0.9, 3.0)), 1),
    (_of("api_throttles", seconds=_one(*_LONG), kinds=_one(*_KINDS)), 2),
    (_of("api_behind", seconds=_one(*_LONG), lag=_one(0.5, 5.0, 60.0)), 2),
    (_of("api_compacts"), 1),
    (_of_card("xid", code=_one(31, 94, 63)), 1),
    (_of_card("card_asks_for_reset", seconds=_one(*_LONG)), 1),
    (_of_card("card_lost", seconds=_one(*_LONG)), 1),
    (_of_card("card_unplugged", seconds=_one(*_LONG)), 1),
    (_of_card("card_to_mig", seconds=_one(*_LONG)), 1),
    (_of_card("card_cut", instances=_one(0, 2, 7)), 1),
    (_of_card("card_slow", seconds=_one(70.0, 150.0), call=_one(6.0, 20.0, 45.0)), 2),
    (_of("driver_hangs", seconds=_one(*_LONG)), 1),
    (_of("driver_reloads", seconds=_one(3.0, 10.0, 30.0)), 1),
    (_of("driver_slow", seconds=_one(*_LONG), init=_one(8.0, 25.0)), 1),
    (_of("limits_lost"), 1),
    (_of("cdi_off", seconds=_one(*_LONG)), 1),
    (_of("hooks_fail", times=lambda c: c.randint(1, 3)), 1),
    (_of("enforcer", name=_one("", "auto", "library", "odd")), 1),
    (_of("disk_full", seconds=_one(*_LONG)), 1),
    (_of("disk_slow", seconds=_one(*_LONG), flush=_one(0.5, 3.0, 30.0)), 1),
    (_of("state_damaged", kind=_one(*_FILES), at=lambda c: round(c.random(), 3)), 1),
    (_of_pod("region_grown"), 1),
    (_of("sockets_wiped"), 1),
    (_of("registration_refused", times=lambda c: c.randint(1, 4)), 1),
    (_of("list_not_taken", times=lambda c: c.randint(1, 3)), 1),
    (_of("later_rejection", times=_one(1)), 1),
    (_of("reboot", seconds=_one(2.0, 20.0)), 1),
    (_of("clock_jumps", seconds=_one(-7200.0, -40.0, 40.0, 7200.0)), 1),
    (_of("label", mode=_one(*_MODES)), 3),
    (_of("configure", name=_one(*CONFIGURATIONS)), 2),
    (lambda c, _: ("new_settings", c.choice(_SETTINGS)), 2),
    (_of("release_after"), 1),
    (_of_card("recover"), 1),
    (_of("foreign_plugin", seconds=_one(*_LONG)), 1),
    (_of("failpoint", point=_one(*POINTS)), 2),
    (_restart_kubelet, 3),
    (_resize, 6),
    (_of("allow_growth", growth=_one("mem:6", "mem:20,core:200", "", "odd")), 1),
)
_CHOICES = [maker for maker, weight in _MAKERS for _ in range(weight)]
_MORE = {
    "resize": _resize,
    "create": _create,
    "replace": _replace,
    "restart_kubelet": _restart_kubelet,
    "card_cut": _of_card("card_cut", instances=_one(0, 0, 3)),
}
