"""NVIDIA's driver as the enforcer of memory: what is proved of it, and which limits are set again.

The agent may set no limit. The limit keeper does (`gpu-device-plugin limit-keeper`), asked for slices
by their ids; it takes size and cgroup from the files of the slice and from the processes that have
these mounted.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.memory_enforcer import (
    DriverLimits,
    EnforcerChoice,
    MemoryEnforcer,
    read_report,
    unmet_choice,
    unproven,
)
from gpu_device_plugin.errors import EdgeError, NodeError

KEEPER_SOCKET = "limits.sock"
PROBE_SECONDS = 60.0
SET, NONE, UNDER_WAY, IN_USE = "set", "none", "under way", "in use"
"""The keeper's answers: the limit was set (again); no container of the slice runs; ask again; it was
resized, and uses more."""
_HELD = "held"
_WAITS = {
    NONE: "the limit keeper finds no process of its container, which starts with its new size",
    IN_USE: "it uses more; the driver's limit is in effect once it uses no more than that",
}
_HIDDEN = (
    "its container runs without its limit, which cannot be set again: no process of the container that has the "
    "slice's directory mounted was found. Restart the pod"
)
_NO_HOOK = (
    "a container started without the limit of its CDI device, and got it afterwards. Check that CDI is on in the "
    "container runtime and, with --driver-limit-by toolkit, that NVIDIA's toolkit is 1.20.1 or later"
)


@dataclass(eq=False)
class DriverLimitsCheck:
    """Follows the probe's report, and has limits set again. `cdi_trouble` says why no CDI file can be written."""

    node_store: NodeStore
    recorder: EventRecorder
    cards: CardInventory
    files: SliceFiles
    live: LiveLedger
    socket: Path
    cdi_trouble: Callable[[], str]

    def __post_init__(self) -> None:
        self._proof = DriverLimits()  # what the probe said, by the last `follow`
        self._probed_load: tuple[object, ...] = ()
        self._probed_at = float("-inf")
        self._last_answers: Mapping[str, str] = {}

    def follow(self) -> str | None:
        """Publish what is proved; why the node cannot do what the operator wants, or None."""
        limits = read_report(self.files.driver_report(), self.cards.driver_version)
        self._proof = limits
        if limits.backends:
            hook = _NO_HOOK if self.files.is_hook_unseen() else ""
            trouble = self.cdi_trouble() or hook
            limits = DriverLimits(missing=trouble) if trouble else limits
        self.node_store.update(driver_limits=limits)
        state = self.node_store.read()
        cards = [card.uuid for card in state.cards]
        return unmet_choice(state.memory_choice, limits, cards) if state.isolates else None

    async def repair(self) -> None:
        """Have the probe repeated where that is due, and each lost limit of a running container set again."""
        if self._needs_probe():
            self._probed_load, self._probed_at = self.cards.driver_load, _now()
            await self._ask("probe")
        grants = self.live.living.grants.values()
        by_driver = (g for g in grants if g.memory_enforcer is MemoryEnforcer.DRIVER)
        lost = {g.slice_id: g for g in by_driver if self._is_to_ask(g)}
        resizing = {name for name, grant in lost.items() if self._is_behind(grant)}
        answers = await self._ask("limit", *lost) if lost else {}
        # Only those whose cgroup is there are known to run.
        running = frozenset().union(*self.cards.memory_limits.values()) & lost.keys()
        if answers is None:
            answers = dict.fromkeys(running, f"no limit keeper answers on {self.socket}")
        elif hidden := [name for name in running if answers.get(name) == NONE]:
            answers = {**answers, **dict.fromkeys(hidden, _HIDDEN)}
        for slice_id in lost.keys() & answers.keys() - resizing:
            self._report(lost[slice_id], answers[slice_id])
        self._last_answers = answers

    async def resize(self, grant: Grant) -> str:
        """Have the limit of a slice that was resized set; what that waits for, or "" where it is in effect."""
        if not self._is_behind(grant):
            return ""
        answers = await self._ask("limit", grant.slice_id)
        if not self._is_behind(grant):
            return ""
        if answers is None:
            return f"no limit keeper answers on {self.socket}"
        answer = answers.get(grant.slice_id, NONE)
        is_at_work = answer in {SET, _HELD, UNDER_WAY}
        return "the limit keeper is at work" if is_at_work else _WAITS.get(answer, answer)

    def _is_behind(self, grant: Grant) -> bool:
        revision = grant.resized.revision if grant.resized else 0
        is_driver = grant.memory_enforcer is MemoryEnforcer.DRIVER
        return is_driver and revision not in {0, self.files.driver_revision(grant.slice_id)}

    def _needs_probe(self) -> bool:
        state = self.node_store.read()
        if state.memory_choice is EnforcerChoice.LIBRARY or not self.cards.driver_load:
            return False
        proof = self._proof
        is_missing = any(
            unproven(proof, [c.uuid]) and c.uuid not in proof.reasons for c in state.cards
        )
        is_new = self.cards.driver_load != self._probed_load
        return is_new or (is_missing and _now() - self._probed_at >= PROBE_SECONDS)

    def _is_to_ask(self, grant: Grant) -> bool:
        return self._last_answers.get(grant.slice_id) == UNDER_WAY or not self._is_held(grant)

    def _is_held(self, grant: Grant) -> bool:
        """Whether the driver has a limit of each of its cards, by the last probe of the cards."""
        card = self.node_store.read().card
        for share in grant.shares:
            limit = self.cards.memory_limits.get(share.device, {}).get(grant.slice_id)
            size, whole = share.memory_bytes or 0, card(share.device)
            is_whole = whole is not None and size >> 20 >= whole.memory_mib
            if limit is None or (limit.limit_bytes > size and not is_whole):
                return False
        return True

    async def _ask(self, command: str, *slices: str) -> Mapping[str, str] | None:
        """What the keeper says, by slice; None where none answers."""
        try:
            answers = json.loads(await ask(self.socket, {"command": command, "slices": slices}))
        except (EdgeError, ValueError):
            return None
        return answers if isinstance(answers, dict) else None

    def _report(self, grant: Grant, answer: str) -> None:
        if answer == SET:
            self.recorder.limit_set(grant)
        elif answer not in (_HELD, NONE, UNDER_WAY, IN_USE, self._last_answers.get(grant.slice_id)):
            self.recorder.slice_broken(grant, NodeError(answer, reason="DriverLimitLost"))


def _now() -> float:
    return asyncio.get_running_loop().time()
