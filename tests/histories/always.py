"""What holds at any time, looked at every two seconds."""

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator

from tests.histories import resizes
from tests.histories.driver import SimulatedCard
from tests.histories.explored import MANY
from tests.histories.node import Node
from tests.histories.pods import Life, looked_at
from tests.histories.refusals import is_api_wrong
from tests.histories.shapes import ALONE, CORE, MEM, WHOLE
from tests.histories.truth import (
    Hold,
    against_the_rules,
    card_of_device,
    grants,
    held,
    holds,
    numbers,
    offered_devices,
)

from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import StateError

_FRACTIONS = (MEM, CORE)
_NOTICED_SECONDS = 25.0  # 20, and the time until the next call
_MENDING_SECONDS = 15.0


def problems(node: Node) -> Iterator[str]:
    """What is so and must never be."""
    yield from (f"the agent crashed: {text}" for text in node.crashes)
    yield from (f"an error nobody caught: {text}" for text in node.machine.loop.failures)
    found = list(holds(node))
    _count_sharers(node, found)
    yield from _given_twice(node, found)
    yield from _given_under_a_process(node, found)
    yield from _spoilt_files(node)
    yield from _lost_grants(node)
    yield from _faulty_cards_offered(node)
    yield from _well_cards_withdrawn(node)
    for uuid in sorted(node.past.neighbours - offered_devices(node).keys()):
        yield f"{uuid} is not offered, and another instance of its card had the XID"
    yield from _starts_that_ask(node)
    yield from node.refusals.problems()
    yield from _uncapped(node)
    yield from resizes.problems(node)


def _count_sharers(node: Node, found: list[Hold]) -> None:
    sharing: dict[str, set[str]] = {}
    for hold in found:
        sharing.setdefault(hold.device, set()).add(hold.life.pod.uid)
    most = max(map(len, sharing.values()), default=0)
    node.explored[f"moments by holders of a card: {min(most, MANY)}"] += 1


# -- nothing is given twice


def _given_twice(node: Node, found: list[Hold]) -> Iterator[str]:
    owner: dict[str, str] = {}
    by_card: dict[str, list[Hold]] = {}
    noted = _noted(node)
    for hold in found:
        life = hold.life
        is_seen = node.pods.are_cgroups_seen and life.pod.uid in noted
        if life.is_forgotten and (node.past.was_damaged or not (hold.is_fraction or is_seen)):
            continue  # kubelet and agent have lost it, no reconcile pass had noted it, or no cgroup is seen
        if owner.setdefault(hold.unit, hold.life.pod.uid) != hold.life.pod.uid:
            yield f"unit {hold.unit} is held by {owner[hold.unit]} and by {hold.life.pod.uid}"
        by_card.setdefault(card_of_device(node, hold.device), []).append(hold)
    for card, its in by_card.items():
        if card and any(not hold.is_fraction for hold in its):
            yield from _kinds_mixed(card, its)
        alone = {hold.life.pod.uid: hold.life for hold in its if hold.life.pod.labels == ALONE}
        if card and len({hold.life.pod.uid for hold in its}) > 1:
            yield from _alone_and_shared(node, card, alone.values())


def _noted(node: Node) -> set[str]:
    """Uids of the pods that have a grant; none while a damaged file cannot be read."""
    with contextlib.suppress(StateError):
        return {grant.pod.uid for grant in grants(node)}
    return set()


def _kinds_mixed(card: str, its: list[Hold]) -> Iterator[str]:
    """Of a card that somebody holds by NVIDIA's names: nobody may hold it in another way."""
    for one in its:
        for other in its:
            if one.life is other.life:
                continue
            is_same = one.device == other.device
            if one.is_whole and (is_same or card in {one.device, other.device}):
                yield f"{_told(one)} and {_told(other)}: the first one has it whole"
            if one.is_fraction and not other.is_fraction:
                yield f"{_told(one)} and {_told(other)}: a fraction of a card that is given whole or in replicas"


def _alone_and_shared(node: Node, card: str, alone: Iterable[Life]) -> Iterator[str]:
    """But where nobody could read the label when it was placed."""
    for life in alone:
        if life.was_known and not against_the_rules(node, life):
            yield f"{life.pod.name} is to have {card} for itself, and shares it"


def _told(hold: Hold) -> str:
    return f"{hold.life.pod.name} holds {hold.unit} of {hold.device}"


def _given_under_a_process(node: Node, found: list[Hold]) -> Iterator[str]:
    """Its pod was deleted by force, but the agent can see that a process of it runs.

    Whole cards the kubelet chooses itself. While the API server does not answer, a pod that comes back under its name is taken for the same.
    """
    owners = {hold.unit: hold.life for hold in found if hold.life.was_known}
    for life, container, by_resource in node.pods.forced():
        node.explored["moments with a container whose pod is forgotten"] += 1
        is_seen = node.pods.shows_a_process(life, container)
        for unit in (u for r in _FRACTIONS if is_seen for u in by_resource.get(r, ())):
            if unit in owners:
                name = owners[unit].pod.name
                yield f"{life.pod.name}/{container} runs on, and {name} was given its {unit}"


def _spoilt_files(node: Node) -> Iterator[str]:
    for life in node.pods.lives.values():
        for container, files in life.mounted.items():
            if life.is_forced and not node.pods.shows_a_process(life, container):
                continue  # as after an end of which nobody told
            for path, before in files.items():
                now = looked_at(path)
                if now and now[0] == before[0] and resizes.is_resize(before[1], now[1]):
                    files[path] = now
                elif now != before:
                    short = path.removeprefix(f"{node.machine.root}/")
                    yield f"{life.pod.name}/{container} runs, and {short} was removed or changed"


# -- what is held is known


def _lost_grants(node: Node) -> Iterator[str]:
    """By name too: a pod made again while the watch is behind has its predecessor's uid for a while."""
    try:
        known = grants(node)
    except StateError as error:
        known = ()
        if not _may_be_damaged(node):
            yield f"the grants cannot be read: {error}"
    for life in node.pods.living():
        if life.is_forgotten and node.past.was_damaged:
            continue  # both have lost what they knew: nobody can tell
        ref = PodRef(life.pod.namespace, life.pod.name, life.pod.uid)
        mine = [g for g in known if g.pod.uid == ref.uid or g.pod.key == ref.key]
        for (container, resource), ids in held(node, life).items():
            is_decided = resource in (MEM, CORE)
            is_known = any(frozenset(g.ids(resource)) == ids for g in mine)
            if is_known or not is_decided or _may_be_damaged(node):
                continue
            if not _may_be_anothers(node, life, resource, ids):
                yield f"{life.pod.name}/{container} holds {sorted(ids)}, and no grant says so"


def _may_be_anothers(node: Node, life: Life, resource: str, ids: Collection[str]) -> bool:
    """Whether another pod that the kubelet has forgotten asks for as much: see docs/testing.md."""
    others = (other for other in node.pods.living() if other is not life and other.is_forgotten)
    return (life.is_forgotten or is_api_wrong(node)) and any(
        c.limits.get(resource) == len(ids) for other in others for c in other.pod.containers
    )


def _may_be_damaged(node: Node) -> bool:
    """Whether a file was damaged, and no agent has had time yet to find that out and mend it."""
    if node.past.damaged_at is not None and node.agent_since > node.past.damaged_at:
        since = max(node.agent_since, node.disturbed_until - 10.0)
        if node.agent is not None and node.machine.loop.now - since > _MENDING_SECONDS:
            node.past.damaged_at = None
    return node.past.damaged_at is not None


def _uncapped(node: Node) -> Iterator[str]:
    is_calm = not node.is_disturbed() and not any(card.is_slow for card in node.driver.cards)
    with contextlib.suppress(StateError):
        known = {grant.slice_id: grant for grant in grants(node)}
        yield from node.limits.problems(known, is_calm=is_calm)


# -- what is offered


def _faulty_cards_offered(node: Node) -> Iterator[str]:
    """A card that is not sound is out before long; the same of instances.

    The driver wakes its callers one by one: another card's call, and an opening, may delay it. A driver
    that answers again shows its cards anew.
    """
    now, answers, past = node.machine.loop.now, node.driver.answers, node.past
    if not answers:
        past.answers_since = math.inf
    elif past.answers_since == math.inf:
        past.answers_since = now
    for card in node.driver.cards:
        is_seen_late = not card.is_there and node.driver.init_seconds > 1
        if card.error or card.is_slow or is_seen_late:
            past.failed_at[card.uuid] = now
        kinds = {"card": card.is_sound, "instances": card.is_mig and card.is_well}
        for kind, is_sound in kinds.items():
            key = f"{kind} {card.uuid}"
            if is_sound and answers:
                past.bad_since.pop(key, None)
                past.delays.pop(key, None)
                continue
            since = past.bad_since.setdefault(key, now)
            delay = past.delays[key] = max(past.delays.get(key, 0.0), _delay(node, card))
            again = past.answers_since if answers else 0.0
            is_late = now - max(since, again, node.agent_since) > _NOTICED_SECONDS + delay
            offered = _offered(node, card, kind) if is_late and node.agent is not None else []
            if offered:
                yield (
                    f"{key} offered ({len(offered)} units), and for {now - since:.0f} s not sound: {card}"
                )


def _delay(node: Node, card: SimulatedCard) -> float:
    others = (other.call_seconds for other in node.driver.cards if other is not card)
    return node.driver.opening_seconds + max(others, default=0.0)


def _offered(node: Node, card: SimulatedCard, kind: str) -> list[str]:
    by_device = offered_devices(node)
    names = card.all_instances if kind == "instances" else _names(node, card)
    return [unit for name in names for unit in by_device.get(name, ())]


def _names(node: Node, card: SimulatedCard) -> tuple[str, ...]:
    """Under which `offered_devices` has the card, its replicas and its fractions."""
    return card.uuid, str(numbers(node).get(card.uuid))


def _starts_that_ask(node: Node) -> Iterator[str]:
    """A container of whole cards starts without the agent, which has nothing to check of it."""
    for life in node.pods.lives.values():
        asks = {resource for each in life.pod.containers for resource in each.limits}
        if asks <= set(WHOLE) and any("PreStartContainer" in text for text in life.start_errors):
            yield f"{life.pod.name} holds no slice, and its start waits for the agent"


def _well_cards_withdrawn(node: Node) -> Iterator[str]:
    """One card that answers slowly takes no other one out; that instances of it are held may do so."""
    is_plain = node.past.modes == {"core_mem"} and len(node.past.units) == 1
    is_other_wrong = node.is_disturbed() or not is_plain or not node.driver.answers
    if is_other_wrong or node.agent is None or not any(c.is_slow for c in node.driver.cards):
        return
    node.explored["moments with a slow card and nothing else wrong"] += 1
    held_devices = set[str]()
    with contextlib.suppress(StateError):
        held_devices = {device for grant in grants(node) for device in grant.devices}
    for card in node.driver.cards:
        if not held_devices.isdisjoint(card.all_instances):
            continue  # it has left MIG mode
        since = node.machine.loop.now - max(
            node.past.failed_at.get(card.uuid, 0.0), node.agent_since
        )
        has_units = card.memory_mib >= node.unit.mib
        if card.is_sound and has_units and since > 120.0 and not _offered(node, card, "card"):
            yield f"card {card.uuid} is well and not offered, while another one answers slowly"
