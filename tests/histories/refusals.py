"""The judge of refusals: by the kubelet's own book, never by how long ago something went wrong.

A pod that was rejected is judged if its shape is one that the node gives. The question is whether a
kubelet that begins afresh could place it: is there a card whose units are offered, in enough number, and
held by nobody? If so, only a reason whose cause is there at that moment excuses the refusal.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from tests.histories.pods import Life
from tests.histories.shapes import ALONE, CARDS_LABEL, FRACTIONS, MEM
from tests.histories.truth import grants, may_list_be_short
from tools.harness.kubelet_pods import StandInContainer

from gpu_device_plugin.agent.reconcile.reconciler import PASS_SECONDS
from gpu_device_plugin.domain.fractions.units import parse_unit_id
from gpu_device_plugin.domain.grants.lifetime import KUBELET_SETTLE_SECONDS
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.kubelet.plugin_directory import LOOK_SECONDS

if TYPE_CHECKING:
    from tests.histories.node import Node

_Free = dict[str, frozenset[str]]  # resource -> ids
_OURS = re.compile(r"rpc error: code = (\w+) desc = (.*), which is unexpected", re.DOTALL)
_SWITCH = re.compile(r"the node switched from (?:mode|memory unit) (\S+) to ([^\s;]+)")
_API = {
    "starting": False,
    "the API server cannot be reached": True,
    "the API server answers again": False,
}
_BROKEN_OFF = ("Unavailable", "DeadlineExceeded", "Cancelled", "Canceled")
_LATER = "TopologyAffinityError"
_KUBELETS_OWN = (
    "requested number of devices unavailable",
    "no healthy devices present",
    "cannot allocate unhealthy devices",
    "cannot allocate unregistered device",
    "has been stopped",
    "unknown Device Plugin",
    _LATER,
)


@dataclass(slots=True)
class Refusal:
    """A rejected pod, with what there was at that moment.

    Attributes:
        free: By card, or None for devices that the kubelet chooses: units that nobody held.
        reason: The agent's word; empty where the agent did not refuse.
        excuse: What was there that makes such a refusal right.
    """

    life: Life
    free: Mapping[int | None, _Free]
    reason: str
    excuse: str = ""


@dataclass(slots=True)
class Refusals:
    """Of one history."""

    node: "Node"
    words: dict[str, str] = field(default_factory=dict)  # text of a refusal -> its reason
    waiting: list[Refusal] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    is_api_lost: bool = False  # the agent's last word on it

    def heard(self, event: Mapping[str, object]) -> None:
        """A line of the agent's log."""
        self.is_api_lost = _API.get(str(event.get("event")), self.is_api_lost)
        if "reason" in event:
            self.node.explored[f"reasons: {event['reason']}"] += 1
            if switch := _SWITCH.search(str(event.get("text", ""))):
                self.node.explored[f"transitions: {switch[1]} to {switch[2]}"] += 1
            if event.get("event") in {"refused", "start refused"}:
                self.words[str(event["error"])] = str(event["reason"])

    def note(self, life: Life) -> None:
        """The kubelet has just rejected this pod."""
        self.node.explored["refusals: in all"] += 1
        reason = next((word for text, word in self.words.items() if text in life.message), "")
        found = Refusal(life, self._free(life), reason)
        found.excuse = self._excuse(found)
        if not _has_reason(life.message, is_broken_off=bool(found.excuse)):
            self.unexplained.append(f"{life.pod.name} was refused without a reason: {life.message}")
        kinds = {container.kind for container in life.pod.containers}
        if "init container" in life.message and kinds == {ContainerKind.APP}:
            self.unexplained.append(f"{life.pod.name} has no init container: {life.message}")
        if life.shape_never_fits or _LATER in life.message:
            self.node.explored["refusals: of what the node does not give, or by a later step"] += 1
        else:
            self.waiting.append(found)

    def problems(self) -> Iterator[str]:
        """Pods that could be placed and were refused; judged when the kubelet has the agent's latest lists."""
        yield from self.unexplained
        waiting, self.waiting = self.waiting, []
        healthy = self.node.kubelet.registry.book.healthy
        for refusal in waiting:
            free = {
                card: {r: ids & healthy.get(r, frozenset()) for r, ids in by_resource.items()}
                for card, by_resource in refusal.free.items()
            }
            explored = self.node.explored
            if not refusal.reason and not refusal.excuse:
                explored["refusals: by the kubelet itself"] += 1
                continue
            is_wrong = _fits(refusal.life, free)
            if is_wrong and refusal.excuse:
                explored[f"refusals excused by a cause that was there: {refusal.excuse}"] += 1
                continue
            explored["refusals: judged"] += 1
            if is_wrong:
                yield (
                    f"{refusal.life.pod.name} fits by the kubelet's own book, and it was refused "
                    f"({refusal.reason}): {refusal.life.message}"
                )

    # -- what there was

    def _free(self, rejected: Life) -> Mapping[int | None, _Free]:
        """What nobody holds of each card; a card of which one pod has everything has nothing."""
        free: dict[int | None, dict[str, set[str]]] = {}
        for resource, ids in self.node.kubelet.registry.book.healthy.items():
            for unit in ids:
                free.setdefault(card_of(unit), {}).setdefault(resource, set()).add(unit)
        for units, is_alone in self._held_by_others(rejected):
            _take(free, units, is_alone=is_alone or _is_alone(rejected))
        return {
            card: {resource: frozenset(ids) for resource, ids in by_resource.items()}
            for card, by_resource in free.items()
        }

    def _held_by_others(self, rejected: Life) -> Iterator[tuple[frozenset[str], bool]]:
        """Units, and whether their pod is alone on its card."""
        pods, kubelet = self.node.pods, self.node.kubelet
        for life in filter(lambda life: life is not rejected, pods.living()):
            # A container that is to start again asks for what its kubelet has forgotten.
            forgotten = life.units.values() if life.is_forgotten else ()
            for ids in chain(pods.held(life).values(), *(by.values() for by in forgotten)):
                yield ids, _is_alone(life)
        for life, _, by_resource in pods.forced():
            # A pod's cgroup tells that a process runs, not whose: all that the pod had counts.
            parts = life.units.values() if pods.are_cgroups_seen else (by_resource,)
            yield from ((ids, _is_alone(life)) for part in parts for ids in part.values())
        if not kubelet.sources_ready:  # nothing is taken back from anybody
            for (uid, _, _), held in kubelet.registry.book.held.items():
                if uid != rejected.pod.uid:
                    yield held.ids, False

    def _excuse(self, refusal: Refusal) -> str:
        """What is there now that makes a refusal with this reason right."""
        life, node = refusal.life, self.node
        if _broke_off(life.message) and node.agent_ended_at >= life.asked_at:
            return "the agent ended meanwhile"
        noticed_by = node.past.sockets_wiped_at + LOOK_SECONDS  # there is no inotify here
        if _broke_off(life.message) and noticed_by >= life.asked_at:
            return "the plugin's sockets were removed meanwhile"  # a kubelet ends the calls with the list
        holds = _EXCUSES.get(refusal.reason)
        return refusal.reason if holds is not None and holds(node, life) else ""


def card_of(unit: str) -> int | None:
    """The card of a fraction's unit; None for devices that the kubelet chooses."""
    parsed = parse_unit_id(unit)
    return None if parsed is None else parsed.card


def _take(
    free: dict[int | None, dict[str, set[str]]], held: Collection[str], *, is_alone: bool
) -> None:
    for unit in held:
        by_resource = free.get(card_of(unit), {})
        for ids in by_resource.values():
            ids.discard(unit)
        if is_alone and card_of(unit) is not None:
            by_resource.clear()


def _is_alone(life: Life) -> bool:
    return life.pod.labels == ALONE


def _fits(life: Life, free: Mapping[int | None, _Free]) -> bool:
    """Whether one card has room for all of its containers together, or as many cards as it asks for."""
    label = life.pod.labels.get(CARDS_LABEL, "1")
    cards = int(label) if label.isdigit() else 1
    containers = life.pod.containers
    asked = {resource for c in containers for resource in c.limits}
    if not asked <= set(FRACTIONS):
        there = free.get(None, {})
        return all(peak(containers, r) <= len(there.get(r, ())) for r in asked)
    roomy = [
        card
        for card, by_resource in free.items()
        if card is not None
        and all(
            peak(containers, r) <= len(by_resource.get(r, ())) * (cards if r == MEM else 1)
            for r in asked
        )
    ]
    return len(roomy) >= cards


def peak(containers: Collection[StandInContainer], resource: str) -> int:
    """Units that a pod holds of a resource: its apps and sidecars take over what init containers held."""
    held = reusable = 0
    for container in containers:
        asked = container.limits.get(resource, 0)
        reused = min(asked, reusable)
        held += asked - reused
        reusable = (
            max(reusable, asked) if container.kind is ContainerKind.INIT else reusable - reused
        )
    return held


def _has_reason(message: str, *, is_broken_off: bool) -> bool:
    if any(words in message for words in _KUBELETS_OWN):
        return True
    found = _OURS.search(message)
    if found is None:
        return False
    code, text = found.groups()
    if _broke_off(message):
        return is_broken_off
    return code not in ("Unknown", "Internal") and ("node" in text or "invalid request" in text)


def _broke_off(message: str) -> bool:
    found = _OURS.search(message)
    return bool(found and found[1] in _BROKEN_OFF and not found[2].startswith("pod "))


# -- causes


def is_api_wrong(node: "Node", _: Life | None = None) -> bool:
    """A watch that is behind is none: one GET tells of a pod."""
    faults = node.api.faults
    return bool(
        node.refusals.is_api_lost
        or faults.is_away
        or faults.latency_seconds > 0.5
        or faults.throttled
    )


def _others_may_ask(node: "Node", life: Life) -> bool:
    """A pod that lacks what it asks for may be asking too: the kubelet lost it, or admitted it without."""
    sizes = {(r, n) for c in life.pod.containers for r, n in c.limits.items() if n}
    for other in node.pods.living():
        if other is not life:
            held = node.kubelet.held(other.pod.uid)
            for c in other.pod.containers:
                lacks = [(r, n) for r, n in c.limits.items() if n and not held.get((c.name, r))]
                if sizes & set(lacks):
                    return True
    return False


def _is_book_lost(node: "Node", life: Life) -> bool:
    """The kubelet has lost its checkpoint, and asks for what pods lack that run or are half admitted."""
    asked = {resource for c in life.pod.containers for resource in c.limits}
    return life.is_forgotten or any(
        other.is_forgotten
        and resource in asked
        and not node.kubelet.held(other.pod.uid).get((c.name, resource))
        for other in node.pods.living()
        for c in other.pod.containers
        for resource in c.limits
    )


def _is_nobody_known(node: "Node", life: Life) -> bool:
    causes = (is_api_wrong, _others_may_ask, _is_book_lost)
    return any(cause(node, life) for cause in causes)


def _is_disk_wrong(node: "Node", life: Life) -> bool:
    disk = node.machine.disk
    return (
        disk.is_full
        or disk.flush_seconds > 0
        or node.machine.loop.threads_until > life.asked_at + 1
    )


def _is_spec_unknown(node: "Node", life: Life) -> bool:
    """The first call shows one resource; nobody says what else the pod asks for."""
    is_hidden = life.is_static and not node.kubelet.has_pods_api
    return is_hidden or is_api_wrong(node, life)


def _is_unsure_who_lives(node: "Node", life: Life) -> bool:
    """List may be short, the checkpoint names pods that are gone, and the watch does not tell yet.

    Of a static pod that was rejected it never tells: it has no mirror. Nor of a pod that was replaced at once.
    What either left ends a pass after List is whole again.
    """
    since = node.machine.loop.now - 2 * (KUBELET_SETTLE_SECONDS + PASS_SECONDS)
    is_untold = any(
        other.asked_at > since and ((other.is_static and other.refused_by) or other.was_short)
        for other in node.pods.lives.values()
    )
    is_late = may_list_be_short(node, PASS_SECONDS) and (
        node.api.faults.lag_seconds > 0 or is_untold
    )
    return is_late or _is_half_lost(node) or _is_spec_unknown(node, life)


def _is_untold(node: "Node", life: Life) -> bool:
    """List may be short, and the API server, whose word alone ends a pod then, is away."""
    return may_list_be_short(node, PASS_SECONDS) and is_api_wrong(node, life)


def _is_half_lost(node: "Node") -> bool:
    """What a container that has not started was granted counts, by the API server.

    The kubelet has lost it, or was stopped while it admitted the pod, which it does again.
    """
    cut_off = (
        {grant.pod.uid for grant in grants(node)}
        if may_list_be_short(node, PASS_SECONDS)
        else set()
    )
    return any(
        (life.is_forgotten or (life.pod.uid in cut_off and life.phase == "Pending"))
        and {c.name for c in life.pod.containers} - {*life.running, *life.done}
        for life in node.pods.living()
    )


_EXCUSES: Mapping[str, Callable[["Node", Life], bool]] = {
    "NoRoom": _is_unsure_who_lives,
    "UnknownPod": _is_nobody_known,
    "UnitsHeld": _is_nobody_known,
    "DoubleBooked": _is_untold,
    "StateNotWritable": _is_disk_wrong,
    "CallCutOff": _is_disk_wrong,
}
