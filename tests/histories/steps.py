"""What may happen to a node, one step at a time.

A step is plain data, so that a history can be written down, played again and made shorter. One
that makes no sense where it stands (the end of a pod that is not there) does nothing.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.histories import resizes
from tests.histories.node import Node
from tests.histories.pods import NODE, STATIC, Life
from tests.histories.shapes import MEM, is_static, pod_of
from tests.histories.troubles import TROUBLES

from gpu_device_plugin.agent.reconcile.reconciler import PASS_SECONDS
from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, VERSION
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.node.memory_enforcer import EnforcerChoice, LimitBy
from gpu_device_plugin.domain.node.modes import NodeMode, PlacementPolicy
from gpu_device_plugin.errors import StateError, StorageError
from gpu_device_plugin.settings.agent_settings import Isolation


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        do: Name of an action of this module.
        wait: Virtual seconds until the next step.
        what: Its arguments.
    """

    do: str
    wait: float = 1.0
    what: Mapping[str, Any] = field(default_factory=dict)


_APART_SECONDS = 0.3
_BOUND_LATE = 99  # the number of a pod that was bound while the kubelet was away
QUIET = "quiet"
"""In place of an action: whatever is wrong ends, and after a while everything is compared."""
_SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "memory_unit": MemoryUnit,
    "placement": PlacementPolicy,
    "isolation": Isolation,
    "memory_enforcer": EnforcerChoice,
    "driver_limit_by": LimitBy,
    "mode": NodeMode,
}


def take(node: Node, step: Step) -> None:
    """Let it happen."""
    words = " ".join(f"{key}={value}" for key, value in step.what.items())
    node.machine.tell(f"{step.do} {words}".rstrip())
    node.explored[f"steps: {step.do}"] += 1
    node.past.neighbours = set()
    ACTIONS[step.do](node, **step.what)


# -- pods


def create(node: Node, pod: int, shape: str, *, is_new_name: bool = False) -> None:
    """The scheduler binds a pod here; nothing while one of that number is there."""
    if _youngest(node, pod) is None:
        born = len(node.pods.lives)
        name = f"p{pod}-{born}" if is_new_name else f"p{pod}"
        name = f"p{pod}-{NODE}" if is_static(shape) else name
        uid = f"{STATIC if is_static(shape) else 'uid'}-{name}-{born}"
        life = node.pods.create(pod_of(name, uid, shape), never_fits=not node.gives(shape))
        node.past.shapes[uid] = shape
        if life.is_forgotten:
            # It runs without units and may ask at a container's restart: until two passes have
            # listed it, an equal pod is refused rather than given what this one may be asking for.
            node.disturb(2 * PASS_SECONDS)


def finish(node: Node, pod: int, phase: str) -> None:
    """Its containers end by themselves."""
    life = _youngest(node, pod)
    if life is not None and life.phase == "Running" and not life.is_terminating:
        node.pods.end(life.pod.uid, phase)


def delete(node: Node, pod: int, grace: float = 0.0) -> None:
    """It is deleted; its containers take so long to end."""
    life = _youngest(node, pod)
    if life is not None:
        node.pods.delete(life.pod.uid, grace)


def delete_by_force(node: Node, pod: int, seconds: float) -> None:
    """It is deleted by force, and its containers run on for so long."""
    life = _youngest(node, pod)
    if life is not None:
        node.pods.force(life.pod.uid, seconds)


def replace(
    node: Node, pod: int, shape: str, grace: float = 0.0, *, is_new_name: bool = False
) -> None:
    """It is deleted, and another one comes: of the same name as of a StatefulSet, of a new one as of a DaemonSet."""
    delete(node, pod, grace)
    _when_gone(node, [pod], lambda: create(node, pod, shape, is_new_name=is_new_name))


def swap(node: Node, one: int, other: int, grace: float = 0.0, *, by_force: bool = False) -> None:
    """Two pods of a StatefulSet come back, the second one first."""
    lives = [_youngest(node, number) for number in (one, other)]
    if one == other or None in lives:
        return
    shapes = {
        n: node.past.shapes[life.pod.uid]
        for n, life in zip((one, other), lives, strict=True)
        if life
    }
    for number in shapes:
        if by_force:
            delete_by_force(node, number, grace)
        else:
            delete(node, number, grace)

    def come_back() -> None:
        create(node, other, shapes[other])
        later = asyncio.get_running_loop().call_later
        later(_APART_SECONDS, lambda: create(node, one, shapes[one]))

    _when_gone(node, [one, other], come_back)


def restart_container(node: Node, pod: int, container: int) -> None:
    """One of its containers crashes and is started again."""
    life = _youngest(node, pod)
    if life is not None and life.running:
        names = sorted(life.running)
        node.pods.restart(life.pod.uid, names[container % len(names)])


def resize(node: Node, pod: int, text: str) -> None:
    """Its author asks for other sizes: of the first of its containers that has a slice."""
    life = _youngest(node, pod)
    names = [c.name for c in life.pod.containers if MEM in c.limits] if life else []
    if life is not None and names:
        resizes.ask(node, life, text.replace("NAME", names[-1]))


def allow_growth(node: Node, growth: str) -> None:
    """The operator changes how far slices may grow."""
    resizes.allow(node, growth)


# -- the agent


def kill_agent(node: Node, steps: int) -> None:
    """SIGKILL, after so many steps of its code."""
    node.kill_agent(steps)


def agent_away(node: Node, seconds: float) -> None:
    """It ends, and nobody starts it again for so long."""
    node.agent_back_at = node.machine.loop.now + seconds
    node.stop_agent()


def stop_agent(node: Node) -> None:
    """SIGTERM, as for another version or another setting."""
    node.stop_agent()


def new_settings(node: Node, **settings: str) -> None:
    """The operator changes the DaemonSet; its pod is made again."""
    node.settings |= {key: _SETTINGS[key](value) for key, value in settings.items()}
    node.past.units.add(node.settings.get("memory_unit", MemoryUnit.GIB))
    node.past.modes.add(str(node.settings.get("mode", NodeMode.CORE_MEM)))
    node.pods.may_be_asked_again()
    node.stop_agent()


def release_after(node: Node) -> None:
    """A later release has run: it writes keys that this one does not know."""
    node.kill_agent()
    node.machine.arm("")
    file = SealedFile(node.file(KIND), KIND, VERSION, flush=_kept_in_memory)
    with contextlib.suppress(StateError, StorageError):
        sealed = file.read()
        if sealed is not None:
            content = json.loads(sealed.payload)
            content["of_later"] = 1
            for grant in content["grants"]:
                grant["of_later"] = {"a": [1]}
            file.write([json.dumps(content).encode()], sealed.boot_id)


def recover(node: Node, card: int) -> None:
    """A person says that a card is well; until the next probe that counts."""
    if node.agent is not None:
        node.past.bad_since.clear()
        line = json.dumps({"command": "recover", "card": str(card)}).encode() + b"\n"
        asyncio.get_running_loop().create_task(node.agent.ask(line))


def _kept_in_memory(descriptor: int) -> None:
    """A program that is no agent does not keep the loop waiting for the disk."""


# -- the kubelet


def restart_kubelet(
    node: Node,
    away: float,
    late: float,
    *,
    forgets: bool = False,
    has_get: bool = True,
    bound: str = "",
) -> None:
    """It ends, is away for some seconds, and has its pods some more later; one older than all is bound meanwhile."""
    if node.pods.is_kubelet_up:
        node.pods.forget_work()
        restart = node.restart_kubelet(away, late, forgets=forgets, has_get=has_get)
        asyncio.get_running_loop().create_task(restart)
    if bound and _youngest(node, _BOUND_LATE) is None:
        create(node, _BOUND_LATE, bound)
        life = _youngest(node, _BOUND_LATE)
        if life is not None:
            life.created = 0.0


def _youngest(node: Node, pod: int) -> Life | None:
    lives = node.pods.lives.values()
    found = [life for life in lives if life.pod.name.partition("-")[0] == f"p{pod}"]
    return found[-1] if found and found[-1].phase != "Gone" else None


def _when_gone(node: Node, pods: list[int], then: Callable[[], None]) -> None:
    """What a controller does when the last of them has gone."""

    async def wait() -> None:
        while any(_youngest(node, pod) for pod in pods):
            await asyncio.sleep(0.3)
        then()

    if any(_youngest(node, pod) for pod in pods):
        asyncio.get_running_loop().create_task(wait())
    else:
        then()


_OF_PODS_AND_AGENT: tuple[Callable[..., None], ...] = (
    create,
    finish,
    delete,
    delete_by_force,
    replace,
    swap,
    restart_container,
    resize,
    allow_growth,
    kill_agent,
    agent_away,
    stop_agent,
    new_settings,
    release_after,
    recover,
    restart_kubelet,
)
ACTIONS: dict[str, Callable[..., None]] = {
    action.__name__: action for action in (*_OF_PODS_AND_AGENT, *TROUBLES)
}
