"""What may be true of a node, whatever happens to it."""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping

from tests.histories.node import MODE_LABEL, NODE_PATH, Node
from tests.histories.pods import Life, looked_at, path_of
from tests.histories.shapes import CARDS_LABEL, CORE, COUNT, MEM
from tools.harness.kubelet_pods import StandInPod
from tools.harness.kubelet_registry import CHECKPOINT_NAME

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, GrantStore
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import parse_unit_id
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef
from gpu_device_plugin.errors import StateError
from gpu_device_plugin.kubelet.checkpoint import read_checkpoint

OFFERED = {"core_mem": (15, 100, 1), "cgpu": (15, 0, 1), "share": (15, 0, 1), "disabled": (0, 0, 0)}
"""Units a card, by mode: memory of 1 GiB, compute, count."""
_OURS = re.compile(r"rpc error: code = (\w+) desc = (.*), which is unexpected", re.DOTALL)
_KUBELETS_OWN = (
    "requested number of devices unavailable",
    "no healthy devices present",
    "cannot allocate unhealthy devices",
    "cannot allocate unregistered device",
    "has been stopped",
    "unknown Device Plugin",
    "TopologyAffinityError",
)
_NOTICED_SECONDS = 20.0
_REOPENED_SECONDS = 120.0
_MENDING_SECONDS = 15.0


class ViolationError(AssertionError):
    """Something is so that must never be."""


def check_always(node: Node) -> None:
    """What holds at any time.

    Raises:
        ViolationError: It does not.
    """
    for problem in _problems(node):
        raise ViolationError(problem)


def check_quiet(node: Node) -> None:
    """What holds 60 s after the last thing that happened.

    Raises:
        ViolationError: It does not.
    """
    check_always(node)
    for problem in _disagreements(node):
        raise ViolationError(f"60 s after everything was quiet: {problem}")


def check_settled(node: Node) -> None:
    """What holds some minutes later: nothing is left of pods that are gone.

    Raises:
        ViolationError: It does not.
    """
    check_quiet(node)
    for problem in _leftovers(node):
        raise ViolationError(f"minutes after everything was quiet: {problem}")


def grants(node: Node) -> tuple[Grant, ...]:
    """What stands on the disk.

    Raises:
        StateError: It cannot be read.
    """
    pair = (node.file(KIND), node.file(f"{KIND}.other"))
    found = tuple(path.stat() if path.exists() else None for path in pair)
    mark = tuple(f and (f.st_ino, f.st_mtime_ns, f.st_size) for f in found)
    if node.read_grants[0] != mark:
        ledger = GrantStore(pair[0].parent, "").read()
        node.read_grants = (mark, tuple(ledger.grants.values()))
    return node.read_grants[1]


def numbers(node: Node) -> Mapping[str, int]:
    """UUID -> number of the card, as the agent remembers them."""
    path = node.file("cards")
    mark = tuple(p.stat().st_mtime_ns for p in (path, path.with_name("cards.other")) if p.exists())
    if node.read_numbers[0] != mark:
        try:
            sealed = SealedFile(path, "cards", 1).read()
        except StateError:
            return node.read_numbers[1]
        found = json.loads(sealed.payload)["numbers"] if sealed else {}
        node.read_numbers = (mark, found)
    return node.read_numbers[1]


# -- at any time


def _problems(node: Node) -> Iterator[str]:
    yield from (f"the agent crashed: {text}" for text in node.crashes)
    yield from (f"an error nobody caught: {text}" for text in node.machine.loop.failures)
    yield from _doubles(node)
    yield from _spoilt_files(node)
    yield from _lost_grants(node)
    yield from _faulty_cards_offered(node)
    yield from _refusals_without_reason(node)
    yield from _needless_refusals(node)
    yield from _uncapped(node)


def _uncapped(node: Node) -> Iterator[str]:
    with contextlib.suppress(StateError):
        known = {grant.slice_id: grant for grant in grants(node)}
        yield from node.limits.problems(known, is_calm=not node.is_disturbed())


def _living(node: Node) -> list[Life]:
    return [life for life in node.pods.lives.values() if not life.is_over()]


def _held(node: Node, life: Life) -> dict[tuple[str, str], frozenset[str]]:
    """(container, resource) -> ids, of the resources that are granted."""
    held = node.pods.held(life).items()
    return {key: ids for key, ids in held if key[1] in (MEM, CORE) and ids}


def _doubles(node: Node) -> Iterator[str]:
    owner: dict[str, str] = {}
    for life in _living(node):
        for ids in _held(node, life).values():
            for unit in ids:
                if owner.setdefault(unit, life.pod.uid) != life.pod.uid:
                    yield f"unit {unit} is held by {owner[unit]} and by {life.pod.uid}"


def _spoilt_files(node: Node) -> Iterator[str]:
    for life in _living(node):
        for container, files in life.mounted.items():
            for path, before in files.items():
                if looked_at(path) != before:
                    short = path.removeprefix(f"{node.machine.root}/")
                    yield f"{life.pod.name}/{container} runs, and {short} was removed or changed"


def _lost_grants(node: Node) -> Iterator[str]:
    """By name too: a pod made again while the watch is behind has its predecessor's uid for a while."""
    try:
        known = grants(node)
    except StateError as error:
        known = ()
        if not _may_be_damaged(node):
            yield f"the grants cannot be read: {error}"
    for life in _living(node):
        if life.is_forgotten and node.was_damaged:
            continue  # both have lost what they knew: nobody can tell
        ref = PodRef(life.pod.namespace, life.pod.name, life.pod.uid)
        mine = [g for g in known if g.pod.uid == ref.uid or g.pod.key == ref.key]
        for (container, resource), ids in _held(node, life).items():
            if not any(frozenset(g.ids(resource)) == ids for g in mine) and not _may_be_damaged(
                node
            ):
                yield f"{life.pod.name}/{container} holds {sorted(ids)}, and no grant says so"


def _may_be_damaged(node: Node) -> bool:
    """Whether a file was damaged, and no agent has had time yet to find that out and mend it."""
    if node.damaged_at is not None and node.agent_since > node.damaged_at:
        since = max(node.agent_since, node.disturbed_until - 10.0)
        if node.agent is not None and node.machine.loop.now - since > _MENDING_SECONDS:
            node.damaged_at = None
    return node.damaged_at is not None


def _faulty_cards_offered(node: Node) -> Iterator[str]:
    """A card that is not sound is out before long, whatever else goes on."""
    now = node.machine.loop.now
    for card in node.driver.cards:
        if card.error:
            node.failed_at[card.uuid] = now
        if card.is_sound and node.driver.answers:
            node.bad_since.pop(card.uuid, None)
        elif now - node.bad_since.setdefault(card.uuid, now) > _NOTICED_SECONDS:
            offered = [
                unit
                for ids in node.kubelet.registry.book.healthy.values()
                for unit in ids
                if (parsed := parse_unit_id(unit)) and parsed.card == numbers(node).get(card.uuid)
            ]
            if offered and node.agent is not None and now - node.agent_since > _NOTICED_SECONDS:
                yield (
                    f"card {card.uuid} is offered ({len(offered)} units), and for "
                    f"{now - node.bad_since[card.uuid]:.0f} s it has not been sound: {card}"
                )


def _refusals_without_reason(node: Node) -> Iterator[str]:
    for life in node.pods.lives.values():
        if life.message and not _has_reason(life.message, was_disturbed=life.was_disturbed):
            yield f"{life.pod.name} was refused without a reason: {life.message}"


def _needless_refusals(node: Node) -> Iterator[str]:
    """On a node where nothing is wrong a pod that fits is not refused."""
    for life in node.pods.lives.values():
        if life.message and not life.was_disturbed and _fits(life):
            yield f"{life.pod.name} fits, nothing is wrong, and it was refused: {life.message}"


def _fits(life: Life) -> bool:
    """Whether some card had room for all of its containers together, when it was rejected."""
    if life.shape_never_fits or "TopologyAffinityError" in life.message:
        return False
    asked = [c.limits for c in life.pod.containers]
    mem, core = (sum(limits.get(r, 0) for limits in asked) for r in (MEM, CORE))
    cards = int(life.pod.labels.get(CARDS_LABEL, 1))
    roomy = [free for free in life.room if free[MEM] * cards >= mem and free[CORE] >= core]
    return len(roomy) >= cards


def _has_reason(message: str, *, was_disturbed: bool) -> bool:
    if any(words in message for words in _KUBELETS_OWN):
        return True
    found = _OURS.search(message)
    if found is None:
        return False
    code, text = found.groups()
    if code in ("Unavailable", "DeadlineExceeded", "Cancelled") and not text.startswith("pod "):
        return was_disturbed  # the call itself broke off
    return code not in ("Unknown", "Internal") and "node" in text


# -- after quiet


def _disagreements(node: Node) -> Iterator[str]:
    if node.agent is None:
        yield "the agent does not run"
    sound = sum(card.is_sound for card in node.driver.cards)
    waiting = sum(card.is_sound and _waits(node, card.uuid) for card in node.driver.cards)
    offered = [node.kubelet.allocatable(resource) for resource in (MEM, CORE, COUNT)]
    modes = _possible_modes(node)
    wanted = [
        [cards * n for n in _units(mode, unit)]
        for mode in modes
        for unit in _possible_units(node)
        for cards in range(sound - waiting, sound + 1)
    ]
    if offered not in wanted:
        yield f"{offered} units are offered, of {sound} sound cards in mode {' or '.join(modes)}"
    known = grants(node)
    yield from _untold_refusals(node)
    for life in _living(node):
        if life.is_forgotten:
            continue
        yield from _not_at_work(node, life)
        for grant in known:
            if grant.pod.uid == life.pod.uid and not grant.holder.is_handed_on:
                ids = {resource: grant.ids(resource) for resource in (MEM, CORE)}
                held = {r: _held(node, life).get((grant.container, r), ()) for r in ids}
                if any(set(ids[r]) != set(held[r]) for r in ids):
                    yield f"{life.pod.name}/{grant.container} was granted {ids}, and holds {held}"


def _untold_refusals(node: Node) -> Iterator[str]:
    """An Event on the pod has the reason, unless the agent that knew it has ended since."""
    events = [value for path, value in node.api.objects.items() if "/events/" in path]
    noted = {event["involvedObject"]["name"] for event in events}
    for life in node.pods.lives.values():
        is_ours = f"pod {life.pod.namespace}/{life.pod.name}" in life.message
        if (
            is_ours
            and node.agent
            and life.refused_by == node.agent.name
            and life.pod.name not in noted
        ):
            yield f"{life.pod.name} was refused, and no Event says why"


def _waits(node: Node, uuid: str) -> bool:
    """A card that has failed is seen again when NVML is opened again, at most every minute."""
    failed_at = node.failed_at.get(uuid, -math.inf)
    return node.machine.loop.now - failed_at < _REOPENED_SECONDS


def _possible_modes(node: Node) -> list[str]:
    """The label's mode; another one of before while pods hold slices, or where it names none."""
    mode = node.api.objects[NODE_PATH]["metadata"].get("labels", {}).get(MODE_LABEL)
    return [mode] if mode in OFFERED and _is_empty(node) else sorted(node.modes)


def _possible_units(node: Node) -> list[MemoryUnit]:
    """The settings' unit; another one of before while pods hold slices."""
    if _is_empty(node):
        return [node.settings.get("memory_unit", MemoryUnit.GIB)]
    return sorted(node.units, key=str)


def _is_empty(node: Node) -> bool:
    """Whether no pod holds a slice; a grant of a living pod that the kubelet forgot is kept."""
    living = _living(node)
    forgotten = [life.pod for life in living if life.is_forgotten]
    return not any(_held(node, life) for life in living) and not any(
        _is_of(grant, pod) for grant in grants(node) for pod in forgotten
    )


def _is_of(grant: Grant, pod: StandInPod) -> bool:
    """By name where the grant has no uid: it was made while the API server was away."""
    if grant.pod.uid:
        return grant.pod.uid == pod.uid
    return grant.pod.key == (pod.namespace, pod.name)


def _units(mode: str, unit: MemoryUnit) -> tuple[int, ...]:
    """Units a card."""
    memory, *others = OFFERED[mode]
    return (126 if memory and unit is MemoryUnit.MIB128 else memory, *others)


def _not_at_work(node: Node, life: Life) -> Iterator[str]:
    wanted = [c for c in life.pod.containers if c.kind is not ContainerKind.INIT]
    idle = [c.name for c in wanted if c.name not in life.running]
    if idle and not (life.shape_never_fits and life.start_errors):
        yield f"{life.pod.name} is not refused, and {idle} do not run: {life.start_errors}"
    lacking = [
        (c.name, r)
        for c in wanted
        for r in (MEM, CORE)
        if c.limits.get(r) and (c.name, r) not in _held(node, life)
    ]
    if lacking and not idle:
        yield f"{life.pod.name} runs without {lacking}"
    meta = node.api.objects.get(path_of(life.pod), {}).get("metadata", {})
    is_given = not life.shape_never_fits or not idle
    is_known = meta.get("annotations") or _against_the_rules(node, life)
    if is_given and any(c.limits.get(MEM) for c in wanted) and not is_known:
        yield f"{life.pod.name} has no annotations"


def _against_the_rules(node: Node, life: Life) -> bool:
    """A label that nobody could read at Allocate: the pod runs on one card, and an Event says so."""
    return CARDS_LABEL in life.pod.labels and any(
        value["reason"] == "CardCountUnknown" and value["involvedObject"]["name"] == life.pod.name
        for path, value in node.api.objects.items()
        if "/events/" in path
    )


def _leftovers(node: Node) -> Iterator[str]:
    alive = [life.pod for life in _living(node)]
    known = grants(node)
    # Where nothing is offered no list makes the kubelet write its checkpoint, and what that
    # names is kept.
    entries = read_checkpoint(node.kubelet.plugin_dir / CHECKPOINT_NAME)
    kept = {entry.pod_uid for entry in entries or ()}
    is_idle = not any(map(node.kubelet.allocatable, (MEM, CORE, COUNT)))
    for grant in known:
        if not any(_is_of(grant, pod) for pod in alive) and not (
            is_idle and (entries is None or grant.pod.uid in kept)
        ):
            yield f"a grant of {grant.pod} ({grant.pod.uid}) is left"
    run = node.machine.root / "run"
    if any(node.file("grants").parent.glob("grants*.bad-*")):
        return  # what the lost grants named may be in use, and stays
    slices = {grant.slice_id for grant in known}
    cdi = node.machine.root.glob("cdi/gpu-slice-*.json")
    for directory in (*run.glob("slices/*"), *run.glob("cards/*/*"), *cdi):
        if directory.stem.removeprefix("gpu-slice-") not in slices:
            yield f"{directory.relative_to(node.machine.root)} is left"
