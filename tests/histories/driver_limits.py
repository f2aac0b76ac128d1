"""NVIDIA's driver of 615 and later on the node: hooks, limits of containers, and the limit keeper.

A container has a cgroup of its own, a directory, from its start to its end. Of the real parts only the
agent is here; `gpu-limit-hook` and the keeper are held to what stands for them here by their own tests.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.histories.driver import Driver
from tests.histories.machine import Machine
from tests.histories.pods import Pods
from tools.harness.kubelet_pods import ContainerStart

from gpu_device_plugin.agent.node_checks.driver_limits_check import IN_USE, KEEPER_SOCKET, UNDER_WAY
from gpu_device_plugin.domain.fractions.fraction import fraction_of
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.memory_enforcer import MemoryEnforcer
from gpu_device_plugin.errors import KubeletError

_KIND = "gpu-device-plugin/slice="
_NONE = 2**64 - 1
_SLOW = 0.2  # of the keeper's answers say that it is at work
_USES_MORE = 0.7  # of the questions that would make a limit smaller find more in use
_MENDED_SECONDS = 30.0  # of calm, until a limit that was lost is set again


@dataclass(eq=False, slots=True)
class _Container:
    """One that runs, with the limits of its cgroup by card, in bytes; lost, since when."""

    options: ContainerStart
    slice_id: str
    cgroup: Path
    limits: dict[str, int] = field(default_factory=dict)
    lost_at: float | None = None


class DriverLimits:
    """Of one node; nothing where `begin` was not called.

    Attributes:
        is_cdi_off: The container runtime ignores CDI devices.
        failures: So many hooks will fail.
        uncapped_seconds: How long containers ran without the limit that their grant names, in all.
    """

    def __init__(self, machine: Machine, driver: Driver, pods: Pods) -> None:
        self.is_cdi_off = False
        self.failures = 0
        self.uncapped_seconds = 0.0
        self._machine, self._driver, self._pods = machine, driver, pods
        self._run, self._cdi = machine.root / "run", machine.root / "cdi"
        self._containers: list[_Container] = []
        self._made = 0
        self._looked_at = 0.0
        driver.limits, pods.on_start = self.by_slice, self._start

    def begin(self) -> None:
        """The operator lets the driver limit memory: the keeper runs, and has probed."""
        self._machine.loop.peers[str(self._run / KEEPER_SOCKET)] = self._answer
        self._run.mkdir(exist_ok=True)
        lines = [f"device={card.uuid} backend=misc" for card in self._driver.cards]
        (self._run / "driver-limits").write_text("\n".join(["driver=535.104.05", *lines, ""]))

    def boot(self) -> None:
        """The keeper's container is started as every other; the tree of cgroups is empty."""
        if self._machine.loop.peers:
            self.begin()

    def lose(self) -> None:
        """Every limit is gone: by a reload of the driver, a reset, or whoever may."""
        for container in self._running():
            container.limits.clear()
            container.lost_at = container.lost_at or self._machine.loop.now

    def by_slice(self, uuid: str) -> Mapping[str, list[int]]:
        """What the NVML child tells: of the cgroups that marks name."""
        cgroups = {str(container.cgroup): container for container in self._running()}
        found = {}
        for mark in self._run.glob("slices/*/driver-limit"):
            named = mark.read_text().partition("\n")[0].removeprefix("cgroup=")
            if named in cgroups:
                found[mark.parent.name] = [cgroups[named].limits.get(uuid, _NONE), 0]
        return found

    def problems(self, known: Mapping[str, Grant], *, is_calm: bool) -> Iterator[str]:
        """Containers less capped than their grant, but for the seconds after limits were lost.

        One whose slice was resized never has more than is booked. A slice of a whole card needs no limit.
        """
        now = self._machine.loop.now
        totals = {card.uuid: card.memory_mib for card in self._driver.cards}
        for container in self._running():
            grant = known.get(container.slice_id)
            if grant is None or grant.memory_enforcer is not MemoryEnforcer.DRIVER:
                continue
            sizes = self._allowed(grant, totals)
            sizes = {uuid: size for uuid, size in sizes.items() if size >> 20 < totals[uuid]}
            if all(container.limits.get(uuid, _NONE) <= size for uuid, size in sizes.items()):
                container.lost_at = None
                continue
            self.uncapped_seconds += now - self._looked_at
            if container.lost_at is None or (is_calm and now - container.lost_at > _MENDED_SECONDS):
                since = "its start" if container.lost_at is None else f"{container.lost_at:.0f}"
                yield (
                    f"a container of slice {container.slice_id} has limits {container.limits} since "
                    f"{since}, and its grant says {sizes}"
                )
            if not is_calm and container.lost_at is not None:
                container.lost_at = now
        self._looked_at = now

    def may_shrink(self, grant: Grant) -> bool:
        """Whether nothing keeps the driver's limit from being made smaller: its container runs."""
        is_driver = grant.memory_enforcer is MemoryEnforcer.DRIVER
        return not is_driver or grant.slice_id in {c.slice_id for c in self._running()}

    def _allowed(self, grant: Grant, totals: Mapping[str, int]) -> dict[str, int]:
        told = self._run / "slices" / grant.slice_id / "driver-revision"
        revision, unit = grant.resized.revision if grant.resized else 0, fraction_of(grant).unit_mib
        if not revision or (told.exists() and told.read_text() == f"{revision}\n"):
            return {share.device: share.memory_bytes or 0 for share in grant.shares}
        booked = {share.device: share.memory_mib // unit for share in grant.shares}
        return {
            uuid: (totals[uuid] * units // (totals[uuid] // unit)) << 20
            for uuid, units in booked.items()
        }

    # -- as container runtime, hook and keeper work

    def _start(self, options: ContainerStart) -> None:
        """A container is made; KubeletError: its hook fails, or its CDI device is not there."""
        mounted = [host.split("/") for host, _ in options.mounts.values()]
        slices = [parts[-2] for parts in mounted if parts[-1] == "config"]
        if not slices:
            return
        self._made += 1
        cgroup = self._machine.root / "cgroups" / f"{slices[0]}-{self._made}"
        container = _Container(options, slices[0], cgroup)
        for name in () if self.is_cdi_off else options.cdi_names:
            self._hook(container, name.removeprefix(_KIND))
        if self.is_cdi_off and options.cdi_names:
            container.lost_at = self._machine.loop.now
        self._containers.append(container)

    def _hook(self, container: _Container, device: str) -> None:
        try:
            told = json.loads((self._cdi / f"gpu-slice-{device}.json").read_text())
        except OSError as error:
            raise KubeletError(f"unresolvable CDI device {_KIND}{device}") from error
        edits = told["devices"][0]["containerEdits"]
        self.failures = max(0, self.failures - 1) if (fails := self.failures > 0) else 0
        if fails or not self._driver.answers:
            raise KubeletError("createRuntime hook: the driver does not answer")
        if "hooks" in edits:
            container.limits |= self._sizes(device)
            self._mark(container)
        else:  # NVIDIA's hook, which leaves no mark
            hard = int(edits["env"][1].partition("=")[2]) << 20
            container.limits |= dict.fromkeys(self._sizes(device), hard)

    def _answer(self, line: bytes) -> bytes:
        asked = json.loads(line)
        told: dict[str, str] = {}
        for container in self._running() if asked["command"] == "limit" else ():
            if container.slice_id in asked["slices"]:
                is_slow = self._machine.chance.random() < _SLOW
                told[container.slice_id] = UNDER_WAY if is_slow else self._repair(container)
        missing = set(asked["slices"]) - told.keys()
        return json.dumps({"text": json.dumps(told | dict.fromkeys(missing, "none"))}).encode()

    def _repair(self, container: _Container) -> str:
        if not self._driver.answers:
            return "gpu-limit-hook: the driver does not answer"
        sizes = self._sizes(container.slice_id)
        is_set = container.limits != sizes
        is_smaller = any(container.limits.get(uuid, _NONE) > sizes[uuid] for uuid in sizes)
        may_be_used = bool(self._revision(container.slice_id)) and bool(container.limits)
        if is_smaller and may_be_used and self._machine.chance.random() < _USES_MORE:
            return IN_USE
        container.limits = sizes
        self._mark(container, "by=repair\n" if is_set else "")
        self._tell_revision(container.slice_id)
        return "set" if is_set else "held"

    def _mark(self, container: _Container, by: str = "") -> None:
        path = self._run / "slices" / container.slice_id / "driver-limit"
        cgroup = f"cgroup={container.cgroup}\n"
        if not by or not path.is_file() or not path.read_text().startswith(cgroup):
            path.write_text(cgroup + by)
            self._machine.date(path)

    def _tell_revision(self, slice_id: str) -> None:
        if revision := self._revision(slice_id):
            path = self._run / "slices" / slice_id / "driver-revision"
            path.write_text(f"{revision}\n")

    def _revision(self, slice_id: str) -> int:
        text = (self._run / "slices" / slice_id / "config/limits").read_text()
        told = (line.removeprefix("revision=") for line in text.splitlines())
        return next((int(number) for number in told if number.isdigit()), 0)

    def _sizes(self, slice_id: str) -> dict[str, int]:
        text = (self._run / "slices" / slice_id / "config/limits").read_text()
        words = [line.split() for line in text.splitlines() if line.startswith("device=")]
        return {
            word[0].removeprefix("device="): int(word[1].removeprefix("memory_bytes="))
            for word in words
        }

    def _running(self) -> list[_Container]:
        """Those that have not ended; the cgroup of the others is gone."""
        lives = self._pods.lives.values()
        running = {id(options) for life in lives for options in life.running.values()}
        self._containers = [c for c in self._containers if id(c.options) in running]
        return self._containers
