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

from tests.histories.node import Node
from tests.histories.pods import Life
from tests.histories.shapes import pod_of
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
    ACTIONS[step.do](node, **step.what)


# -- pods


def create(node: Node, pod: int, shape: str) -> None:
    """The scheduler binds a pod here; nothing while one of that name is there."""
    name = f"p{pod}"
    if _youngest(node, pod) is None:
        uid = f"uid-{name}-{len(node.pods.lives)}"
        life = node.pods.create(pod_of(name, uid, shape), never_fits=not node.gives(shape))
        if life.is_forgotten:
            # It runs without units and may ask at a container's restart: until two passes have
            # listed it, an equal pod is refused rather than given what this one may be asking for.
            node.disturb(2 * PASS_SECONDS)


def finish(node: Node, pod: int, phase: str) -> None:
    """Its containers end by themselves."""
    life = _youngest(node, pod)
    if life is not None and life.phase == "Running":
        node.pods.end(life.pod.uid, phase)


def delete(node: Node, pod: int) -> None:
    """It is deleted."""
    life = _youngest(node, pod)
    if life is not None:
        node.pods.end(life.pod.uid, "Gone")


def replace(node: Node, pod: int, shape: str) -> None:
    """It is deleted, and one of the same name comes at once, as of a StatefulSet."""
    delete(node, pod)
    create(node, pod, shape)


def restart_container(node: Node, pod: int, container: int) -> None:
    """One of its containers crashes and is started again."""
    life = _youngest(node, pod)
    if life is not None and life.running:
        names = sorted(life.running)
        node.pods.restart(life.pod.uid, names[container % len(names)])


# -- the agent


def kill_agent(node: Node, steps: int) -> None:
    """SIGKILL, after so many steps of its code."""
    node.kill_agent(steps)


def stop_agent(node: Node) -> None:
    """SIGTERM, as for another version or another setting."""
    node.stop_agent()


def new_settings(node: Node, **settings: str) -> None:
    """The operator changes the DaemonSet; its pod is made again."""
    node.settings |= {key: _SETTINGS[key](value) for key, value in settings.items()}
    node.units.add(node.settings.get("memory_unit", MemoryUnit.GIB))
    node.modes.add(str(node.settings.get("mode", NodeMode.CORE_MEM)))
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
    """A person says that a card is well."""
    if node.agent is not None:
        line = json.dumps({"command": "recover", "card": str(card)}).encode() + b"\n"
        asyncio.get_running_loop().create_task(node.agent.ask(line))


def _kept_in_memory(descriptor: int) -> None:
    """A program that is no agent does not keep the loop waiting for the disk."""


# -- the kubelet


def restart_kubelet(
    node: Node, away: float, late: float, *, forgets: bool = False, has_get: bool = True
) -> None:
    """It ends, is away for some seconds, and lists no pod for some more."""
    if node.pods.is_kubelet_up:
        node.pods.forget_work()
        restart = node.restart_kubelet(away, late, forgets=forgets, has_get=has_get)
        asyncio.get_running_loop().create_task(restart)


def _youngest(node: Node, pod: int) -> Life | None:
    found = [life for life in node.pods.lives.values() if life.pod.name == f"p{pod}"]
    return found[-1] if found and found[-1].phase != "Gone" else None


_OF_PODS_AND_AGENT: tuple[Callable[..., None], ...] = (
    create,
    finish,
    delete,
    replace,
    restart_container,
    kill_agent,
    stop_agent,
    new_settings,
    release_after,
    recover,
    restart_kubelet,
)
ACTIONS: dict[str, Callable[..., None]] = {
    action.__name__: action for action in (*_OF_PODS_AND_AGENT, *TROUBLES)
}
