"""The kubelet's work with pods, and the container runtime's: a model of the real one, habits included.

A pod that is deleted keeps what it holds until its containers have ended; one that is deleted by force
is forgotten at once while they run on. A kubelet that has started adds and admits its pods one by one,
oldest first, before its sources are ready. A static pod is known to it before the API server has a mirror.
"""

import asyncio
import fcntl
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.histories.api import Api
from tests.histories.machine import Machine
from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_pods import ContainerStart, StandInPod

from gpu_device_plugin.disk.region import SLOTS
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import KubeletError

NODE = "n1"
STATIC = "static"
"""Begins the uid of a static pod."""
_RETRY_SECONDS = 5.0
_OLD_SECONDS = 600.0
_OLD = 0.25  # of the pods are older than the others: they were bound late
_MIRROR = "kubernetes.io/config.mirror"
_OFD_SETLK = 37
_Mounted = dict[str, tuple[int, bytes | None]]


@dataclass(slots=True)
class Life:
    """What has become of one pod.

    Attributes:
        pod: The pod.
        created: When the API server took it, by the loop's clock.
        phase: As its status says.
        message: Why it was rejected.
        running: Container -> what it was started with.
        mounted: Container -> host path -> inode, and content where it is read-only.
        start_errors: Why containers did not start, each text once.
        done: Init containers that have ended well.
        units: Container -> resource -> units that it was started with.
        is_terminating: It is deleted, and its containers have some time to end.
        is_forced: It was deleted by force: the kubelet has forgotten it, and its containers run on.
        is_forgotten: The kubelet has lost what it knew of its units, or admitted it while it knew
            of no resource at all; such a pod runs with none.
        was_known: The agent could read its spec when it was admitted.
        asked_at: When the kubelet began to admit it.
        refused_by: The agent that ran when it was rejected.
        shape_never_fits: The node does not give what it asks for, or may have come not to.
        ended: When it ended, by the loop's clock.
    """

    pod: StandInPod
    created: float = 0.0
    phase: str = "Pending"
    message: str = ""
    running: dict[str, ContainerStart] = field(default_factory=dict)
    mounted: dict[str, _Mounted] = field(default_factory=dict)
    start_errors: dict[str, float] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    units: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    is_terminating: bool = False
    is_forced: bool = False
    is_forgotten: bool = False
    was_known: bool = True
    asked_at: float = 0.0
    refused_by: str = ""
    shape_never_fits: bool = False
    locks: dict[str, list[int]] = field(default_factory=dict)
    ended: float = math.inf

    @property
    def was_short(self) -> bool:
        """Whether the API's watch may never have told of it."""
        return self.ended - self.created < 1.0

    def is_over(self) -> bool:
        """Whether it holds nothing any more, by the kubelet."""
        return self.phase in ("Succeeded", "Failed", "Gone")

    @property
    def is_static(self) -> bool:
        """Whether the kubelet read it from a file."""
        return self.pod.uid.startswith(STATIC)


class Pods:
    """Every pod of the history, dead ones included."""

    def __init__(self, machine: Machine, api: Api, kubelet: StandInKubelet) -> None:
        self.lives: dict[str, Life] = {}
        self.can_read: Callable[[], bool] = lambda: True
        self.agent_name: Callable[[], str] = str
        self.is_kubelet_up = False
        self.forgetful_until = 0.0
        self.ended_at = 0.0
        """When the last one did."""
        self.on_start: Callable[[ContainerStart], None] = lambda _: None
        self.on_rejected: Callable[[Life], None] = lambda _: None
        self.cgroups = machine.root / "cgroup"
        self.are_cgroups_seen = machine.seed % 2 == 1
        self._machine = machine
        self._api = api
        self._kubelet = kubelet
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._all_added = asyncio.Event()

    def create(self, pod: StandInPod, *, never_fits: bool = False) -> Life:
        """The scheduler has bound it to this node, or its file is there."""
        now = self._machine.loop.now
        created = now - _OLD_SECONDS if self._machine.chance.random() < _OLD else now
        life = Life(pod, created, shape_never_fits=never_fits)
        knows = self._kubelet.registry.book.knows
        is_known = all(knows(r) for c in pod.containers for r in c.limits)
        life.is_forgotten = not is_known or now < self.forgetful_until
        self.lives[pod.uid] = life
        if not life.is_static:
            self._api.store(path_of(pod), object_of(pod))
        if self.is_kubelet_up:
            self._start(lambda: self._admit_soon(life))
        return life

    def held(self, life: Life) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) -> ids, those that the kubelet forgot of a running container included."""
        held = dict(self._kubelet.held(life.pod.uid))
        for container, by_resource in life.units.items() if life.is_forgotten else ():
            if container in life.running:
                held |= {(container, resource): ids for resource, ids in by_resource.items()}
        return held

    def living(self) -> list[Life]:
        """Pods that the kubelet has not forgotten and that have not ended."""
        return [life for life in self.lives.values() if not life.is_over()]

    def forced(self) -> Iterator[tuple[Life, str, dict[str, frozenset[str]]]]:
        """Containers that run although the kubelet has forgotten their pod, and what they hold."""
        for life in self.lives.values():
            if life.is_forced:
                for container in life.running:
                    yield life, container, life.units.get(container, {})

    def shows_a_process(self, life: Life, container: str) -> bool:
        """Whether the agent can know that the container runs, although its pod is forgotten."""
        return self.are_cgroups_seen or bool(life.locks.get(container))

    # -- what people and controllers do to a pod

    def end(self, uid: str, phase: str) -> None:
        """Its containers have ended: `Succeeded` or `Failed`; or it is deleted and `Gone`."""
        life = self.lives[uid]
        if life.phase == "Gone":
            return
        self._stop_all(life)
        self.ended_at = life.ended = self._machine.loop.now
        if phase == "Gone":
            self._kubelet.remove(uid)
            self._forget(life)
        else:
            self._kubelet.finish(uid)
            self._show(life, phase)
        life.phase = phase

    def delete(self, uid: str, seconds: float) -> None:
        """It is deleted; its containers end so much later, once a kubelet is there."""
        life = self.lives[uid]
        if life.phase == "Gone" or life.is_terminating:
            return
        if not (life.running and seconds):
            self.end(uid, "Gone")
            return
        life.is_terminating = True
        self._patch(life, {"metadata": {"deletionTimestamp": "2026-11-28T00:00:00Z"}})
        asyncio.get_running_loop().create_task(self._terminate(life, seconds))

    def force(self, uid: str, seconds: float) -> None:
        """It is deleted by force: kubelet and API server forget it, its containers run on so long."""
        life = self.lives[uid]
        if life.is_over() or not life.running or life.is_static:  # which nobody can force
            self.end(uid, "Gone")
            return
        life.is_forced, life.phase = True, "Gone"
        self._kubelet.remove(uid)
        self._forget(life)
        asyncio.get_running_loop().call_later(seconds, self.end_forced_of, life)

    def end_forced_of(self, life: Life) -> None:
        """Its containers end, which the kubelet has forgotten."""
        if life.is_forced:
            self._machine.tell(f"the containers of {life.pod.name}, deleted by force, end")
            self._stop_all(life)

    def restart(self, uid: str, container: str) -> None:
        """A container ended, and is started again as its pod's restart policy wants."""
        life = self.lives[uid]
        if container in life.running and not life.is_terminating:
            self._stop(life, container)
            if self.is_kubelet_up:
                self._start(lambda: self._start_container(life, container))

    def end_forced(self) -> None:
        """Containers that the kubelet has forgotten end."""
        for life in self.lives.values():
            self.end_forced_of(life)

    def may_be_asked_again(self) -> None:
        """The node's mode or unit changes: anyone who holds nothing may find another one."""
        for life in self.lives.values():
            if not any(self._kubelet.held(life.pod.uid).values()):
                life.shape_never_fits = True

    # -- what becomes of the kubelet

    def reboot(self) -> None:
        """No container runs any more; whatever was on the way is lost with the kubelet."""
        self.forget_work()
        for life in self.lives.values():
            self._stop_all(life)
            life.done.clear()

    def forget_work(self) -> None:
        """The kubelet ended: what it was doing is not finished."""
        self.is_kubelet_up = False
        for task in self._tasks:
            task.cancel()

    def readmit(self, late_seconds: float = 0.0) -> None:
        """A kubelet that has started gets its pods so much later, and looks at them one after the other."""
        self.is_kubelet_up = True
        self._all_added.clear()
        self._start(lambda: self._first_batch(late_seconds))

    # -- as a kubelet works

    async def _first_batch(self, late_seconds: float) -> None:
        for life in self._oldest_first(is_static=True):
            await self._admit(life)
        await asyncio.sleep(late_seconds)
        for life in self._oldest_first(is_static=False):
            await self._admit(life)
        self._kubelet.sources_ready = True
        self._all_added.set()

    def _oldest_first(self, *, is_static: bool) -> list[Life]:
        """Those that are not added yet."""
        lives = [life for life in self.living() if life.is_static is is_static]
        return sorted(lives, key=lambda life: life.created)

    async def _admit_soon(self, life: Life) -> None:
        await asyncio.sleep(self._machine.chance.uniform(0.01, 0.2))
        await self._all_added.wait()
        if life.pod.uid not in self._kubelet.pods:  # else it came with the first batch
            await self._admit(life)

    async def _admit(self, life: Life) -> None:
        if life.is_over():
            return
        if life.is_terminating:
            self._kubelet.add(life.pod)
            return
        life.asked_at = self._machine.loop.now
        life.was_known &= self.can_read()
        admission = await self._kubelet.admit(life.pod)
        if life.is_over():  # deleted meanwhile
            self._kubelet.remove(life.pod.uid)
            return
        if not admission.is_admitted:
            self._machine.tell(f"{life.pod.name} rejected: {admission.message}")
            life.message = admission.message
            life.refused_by = self.agent_name()
            self.on_rejected(life)
            self.end(life.pod.uid, "Failed")
            return
        if life.is_static:
            self._mirror(life)
        self._start(lambda: self._start_containers(life))

    async def _start_containers(self, life: Life) -> None:
        for container in life.pod.containers:
            if container.name not in {*life.running, *life.done} and not self._is_ending(life):
                await self._start_container(life, container.name)
                if container.kind is ContainerKind.INIT:
                    await asyncio.sleep(self._machine.chance.uniform(0.1, 2.0))
                    if not life.is_forced:
                        self._stop(life, container.name)
                    life.done.add(container.name)
        if not self._is_ending(life) and life.phase != "Running":
            life.phase = "Running"
            self._show(life, "Running")

    async def _start_container(self, life: Life, name: str) -> None:
        await asyncio.sleep(self._machine.chance.uniform(0.05, 0.5))
        await self._all_added.wait()
        while not self._is_ending(life) and name not in life.running:
            try:
                options = await self._kubelet.start_container(life.pod.uid, name)
                if not self._is_ending(life):
                    self.on_start(options)
            except KubeletError as error:
                if str(error) not in life.start_errors:
                    self._machine.tell(f"{life.pod.name}/{name} does not start: {error}")
                    life.start_errors[str(error)] = self._machine.loop.now
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not self._is_ending(life):
                life.running[name] = options
                self._note_cgroup(life, is_populated=True)
                life.mounted[name] = _mount(options)
                life.locks[name] = self._lock(options) if self._has_library(life, name) else []
                held = self._kubelet.held(life.pod.uid).items()
                life.units[name] = {r: ids for (c, r), ids in held if c == name}
                self._machine.tell(f"{life.pod.name}/{name} runs")
            return

    async def _terminate(self, life: Life, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while not (self.is_kubelet_up and self._all_added.is_set()):
            await asyncio.sleep(1.0)
        self.end(life.pod.uid, "Gone")

    @staticmethod
    def _is_ending(life: Life) -> bool:
        return life.is_over() or life.is_terminating

    def _stop_all(self, life: Life) -> None:
        for container in tuple(life.running):
            self._stop(life, container)
        self._note_cgroup(life, is_populated=False)
        life.is_forced = False

    def _stop(self, life: Life, container: str) -> None:
        life.running.pop(container, None)
        life.mounted.pop(container, None)
        for descriptor in life.locks.pop(container, ()):
            self._machine.kept_files.discard(descriptor)
            os.close(descriptor)

    def _note_cgroup(self, life: Life, *, is_populated: bool) -> None:
        """The pod's sandbox has a process from its first container's start to its own end."""
        place = self.cgroups / "kubepods" / f"pod{life.pod.uid}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.events").write_text(f"populated {int(is_populated)}\n")

    def _has_library(self, life: Life, container: str) -> bool:
        """Two of three containers have begun to use the card; the others have no lock yet."""
        words = f"{self._machine.seed} {life.pod.uid} {container}"
        return zlib.crc32(words.encode()) % 3 > 0

    def _lock(self, options: ContainerStart) -> list[int]:
        """What the isolation library of a process holds of its region while it lives."""
        found = []
        for source, is_read_only in options.mounts.values():
            if not is_read_only and source.endswith("/region") and Path(source).is_file():
                descriptor = os.open(source, os.O_RDWR | os.O_CLOEXEC)
                size = os.fstat(descriptor).st_size
                for slot in range(size, size + SLOTS):
                    with suppress(BlockingIOError):  # another process of the slice has it
                        lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
                        fcntl.fcntl(descriptor, _OFD_SETLK, lock)
                        break
                self._machine.kept_files.add(descriptor)
                found.append(descriptor)
        return found

    def _mirror(self, life: Life) -> None:
        """The API server learns of a static pod when the kubelet has admitted it."""
        mirror = object_of(life.pod)
        mirror["metadata"] |= {
            "uid": f"mirror-{life.pod.uid}",
            "annotations": {_MIRROR: life.pod.uid, "kubernetes.io/config.hash": life.pod.uid},
        }
        self._api.store(path_of(life.pod), mirror)

    def _forget(self, life: Life) -> None:
        if self._is_its(life):
            self._api.remove(path_of(life.pod))

    def _show(self, life: Life, phase: str) -> None:
        self._patch(life, {"status": {"phase": phase}})

    def _patch(self, life: Life, change: dict[str, Any]) -> None:
        if self._is_its(life):
            self._api.patch(path_of(life.pod), change)

    def _is_its(self, life: Life) -> bool:
        """Whether the API server has this very pod, and not another one of its name."""
        meta = self._api.objects.get(path_of(life.pod), {}).get("metadata", {})
        return meta.get("uid") in {life.pod.uid, f"mirror-{life.pod.uid}"}

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
