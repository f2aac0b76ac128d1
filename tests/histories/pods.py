"""Pods on the node: what kubelet, container runtime and API server do with them between birth and end."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.histories.api import Api
from tests.histories.machine import Machine
from tests.histories.shapes import CORE, MEM
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import ContainerStart, StandInPod

from gpu_device_plugin.domain.fractions.units import parse_unit_id
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError

NODE = "n1"
_RETRY_SECONDS = 5.0
_Mounted = dict[str, tuple[int, bytes | None]]


@dataclass(slots=True)
class Life:
    """What has become of one pod.

    Attributes:
        pod: The pod.
        phase: As its status says.
        message: Why it was rejected.
        running: Container -> what it was started with.
        mounted: Container -> host path -> inode, and content where it is read-only.
        start_errors: Why containers did not start, each text once.
        done: Init containers that have ended well.
        units: Container -> resource -> units that it was started with.
        is_forgotten: The kubelet has lost what it knew of its units, or admitted it while it knew
            of no resource at all; such a pod runs with none.
        refused_by: The agent that ran when it was rejected.
        shape_never_fits: The node does not give what it asks for, or may have come not to.
        room: What was free of each sound card when it was rejected: resource -> units.
        was_disturbed: The machine was not well when it was rejected.
    """

    pod: StandInPod
    phase: str = "Pending"
    message: str = ""
    running: dict[str, ContainerStart] = field(default_factory=dict)
    mounted: dict[str, _Mounted] = field(default_factory=dict)
    start_errors: dict[str, float] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    units: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    is_forgotten: bool = False
    refused_by: str = ""
    shape_never_fits: bool = False
    room: list[dict[str, int]] = field(default_factory=list)
    was_disturbed: bool = False

    def is_over(self) -> bool:
        """Whether it holds nothing any more."""
        return self.phase in ("Succeeded", "Failed", "Gone")


class Pods:
    """Every pod of the history, dead ones included."""

    def __init__(self, machine: Machine, api: Api, kubelet: StandInKubelet) -> None:
        self.lives: dict[str, Life] = {}
        self.is_disturbed: Callable[[], bool] = lambda: False
        self.agent_name: Callable[[], str] = str
        self.is_kubelet_up = False
        self.forgetful_until = 0.0
        self.is_sound: Callable[[], list[bool]] = list
        self.on_start: Callable[[ContainerStart], None] = lambda _: None
        self._machine = machine
        self._api = api
        self._kubelet = kubelet
        self._tasks: dict[asyncio.Task[None], None] = {}

    def create(self, pod: StandInPod, *, never_fits: bool = False) -> Life:
        """The scheduler has bound it to this node."""
        life = Life(pod, shape_never_fits=never_fits, was_disturbed=self.is_disturbed())
        knows = self._kubelet.registry.book.knows
        is_known = all(knows(r) for c in pod.containers for r in c.limits)
        life.is_forgotten = not is_known or self._machine.loop.now < self.forgetful_until
        self.lives[pod.uid] = life
        self._api.store(path_of(pod), object_of(pod))
        if self.is_kubelet_up:
            self._start(lambda: self._admit(life))
        return life

    def held(self, life: Life) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) -> ids, those that the kubelet forgot of a running container included."""
        held = dict(self._kubelet.held(life.pod.uid))
        for container, by_resource in life.units.items() if life.is_forgotten else ():
            if container in life.running:
                held |= {(container, resource): ids for resource, ids in by_resource.items()}
        return held

    def end(self, uid: str, phase: str) -> None:
        """Its containers have ended: `Succeeded` or `Failed`; or it is deleted and `Gone`."""
        life = self.lives[uid]
        if life.phase == "Gone":
            return
        life.running.clear()
        life.mounted.clear()
        if phase == "Gone":
            self._kubelet.remove(uid)
            found = self._api.objects.get(path_of(life.pod), {})
            if found.get("metadata", {}).get("uid") == uid:
                self._api.remove(path_of(life.pod))
        else:
            self._kubelet.finish(uid)
            self._show(life, phase)
        life.phase = phase

    def restart(self, uid: str, container: str) -> None:
        """A container ended, and is started again as its pod's restart policy wants."""
        life = self.lives[uid]
        if life.running.pop(container, None) is not None:
            life.mounted.pop(container)
            if self.is_kubelet_up:
                self._start(lambda: self._start_container(life, container))

    def may_be_asked_again(self) -> None:
        """The node's mode or unit changes: anyone who holds nothing may find another one."""
        for life in self.lives.values():
            if not any(self._kubelet.held(life.pod.uid).values()):
                life.shape_never_fits = True

    def reboot(self) -> None:
        """No container runs any more; whatever was on the way is lost with the kubelet."""
        self.forget_work()
        for life in self.lives.values():
            life.running.clear()
            life.mounted.clear()
            life.done.clear()

    def forget_work(self) -> None:
        """The kubelet ended: what it was doing is not finished."""
        self.is_kubelet_up = False
        for task in self._tasks:
            task.cancel()

    def readmit(self) -> None:
        """A kubelet that has started looks at all of its pods again."""
        self.is_kubelet_up = True
        lives = [life for life in self.lives.values() if not life.is_over()]
        self._machine.chance.shuffle(lives)
        for life in lives:
            self._start(lambda life=life: self._admit(life))  # type: ignore[misc]

    # -- as a kubelet works

    async def _admit(self, life: Life) -> None:
        await asyncio.sleep(self._machine.chance.uniform(0.01, 0.2))
        if life.is_over():
            return
        admission = await self._kubelet.admit(life.pod)
        if life.is_over():  # deleted meanwhile
            self._kubelet.remove(life.pod.uid)
            return
        if not admission.is_admitted:
            self._machine.tell(f"{life.pod.name} rejected: {admission.message}")
            life.message = admission.message
            life.was_disturbed |= self.is_disturbed()
            life.room = self._room(life)
            life.refused_by = self.agent_name()
            self.end(life.pod.uid, "Failed")
            return
        for container in life.pod.containers:
            if container.name not in {*life.running, *life.done} and not life.is_over():
                await self._start_container(life, container.name)
                if container.kind is ContainerKind.INIT:
                    await asyncio.sleep(self._machine.chance.uniform(0.1, 2.0))
                    life.running.pop(container.name, None)
                    life.mounted.pop(container.name, None)
                    life.done.add(container.name)
        if not life.is_over() and life.phase != "Running":
            life.phase = "Running"
            self._show(life, "Running")

    async def _start_container(self, life: Life, name: str) -> None:
        await asyncio.sleep(self._machine.chance.uniform(0.05, 0.5))
        while not life.is_over():
            try:
                options = await self._kubelet.start_container(life.pod.uid, name)
                if not life.is_over():
                    self.on_start(options)
            except KubeletError as error:
                if str(error) not in life.start_errors:
                    self._machine.tell(f"{life.pod.name}/{name} does not start: {error}")
                    life.start_errors[str(error)] = self._machine.loop.now
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not life.is_over():
                life.running[name] = options
                life.mounted[name] = _mount(options)
                held = self._kubelet.held(life.pod.uid).items()
                life.units[name] = {r: ids for (c, r), ids in held if c == name}
                self._machine.tell(f"{life.pod.name}/{name} runs")
            return

    def _room(self, rejected: Life) -> list[dict[str, int]]:
        """What living pods leave of each card, if all cards are sound; else nobody can tell."""
        sound = self.is_sound()
        each = {r: self._kubelet.allocatable(r) // max(1, len(sound)) for r in (MEM, CORE)}
        free = {number: dict(each) for number in range(len(sound))}
        for life in self.lives.values():
            if life is not rejected and not life.is_over():
                for (_, resource), ids in self.held(life).items():
                    for unit in map(parse_unit_id, ids):
                        if unit is not None and unit.card in free and resource in (MEM, CORE):
                            free[unit.card][resource] -= 1
        return list(free.values()) if all(sound) else []

    def _show(self, life: Life, phase: str) -> None:
        found = self._api.objects.get(path_of(life.pod), {})
        if found.get("metadata", {}).get("uid") == life.pod.uid:
            self._api.patch(path_of(life.pod), {"status": {"phase": phase}})

    def _start(self, work: Callable[[], Any]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def looked_at(path: str) -> tuple[int, bytes | None] | None:
    """Inode of a host path, and the content of what is short and not shared; None where it is gone."""
    try:
        found = os.lstat(path)
        limits = (Path(path) / "limits").read_bytes() if path.endswith("/config") else None
    except OSError:
        return None
    return found.st_ino, limits


def _mount(options: ContainerStart) -> _Mounted:
    """What the runtime mounts; a source that is missing becomes an empty directory."""
    mounted: _Mounted = {}
    for source, _ in options.mounts.values():
        if not os.path.lexists(source):
            Path(source).mkdir(parents=True)
        mounted[source] = looked_at(source) or (0, None)
    return mounted


def path_of(pod: StandInPod) -> str:
    """Where the API server has it."""
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def object_of(pod: StandInPod) -> dict[str, Any]:
    """The pod as the API server has it."""
    by_kind: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for c in pod.containers:
        entry: dict[str, Any] = {
            "name": c.name,
            "resources": {"limits": {key: str(n) for key, n in c.limits.items()}},
        }
        if c.kind is ContainerKind.SIDECAR:
            entry["restartPolicy"] = "Always"
        by_kind["containers" if c.kind is ContainerKind.APP else "initContainers"].append(entry)
    meta = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    return {
        "metadata": {**meta, "labels": dict(pod.labels)},
        "spec": {"nodeName": NODE, **by_kind},
        "status": {"phase": "Pending"},
    }
