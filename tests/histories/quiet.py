"""What holds a minute after the last thing that happened, and what is left some minutes later."""

import math
from collections.abc import Iterator
from itertools import product

from tests.histories.driver import SimulatedCard
from tests.histories.node import MODE_LABEL, NODE_PATH, Node
from tests.histories.pods import Life, path_of
from tests.histories.shapes import CORE, COUNT, GPU, INSTANCE, MEM, WHOLE
from tests.histories.truth import (
    against_the_rules,
    card_of_device,
    grants,
    held,
    holds,
    may_list_be_short,
)
from tools.harness.kubelet_pods import StandInPod
from tools.harness.kubelet_registry import CHECKPOINT_NAME

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.lifetime import ABSENT_SECONDS
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.kubelet.checkpoint import read_checkpoint

_RESOURCES = (MEM, CORE, COUNT, GPU, INSTANCE)
_NOTHING = (0, 0, 0, 0, 0)
OFFERED = {
    "core_mem": (15, 100, 1),
    "cgpu": (15, 0, 1),
    "share": (15, 0, 1),
    "disabled": (0, 0, 0),
    "default": (0, 0, 0),
}
"""Units a card, by mode: memory of 1 GiB, compute, count."""
_REOPENED_SECONDS = 120.0
_MOST_HELD = 8  # of one card, by NVIDIA's names
_Amounts = tuple[int, ...]


def disagreements(node: Node) -> Iterator[str]:
    """Between what is offered, what pods hold and what stands on the disk."""
    if node.agent is None:
        yield "the agent does not run"
    known = grants(node)
    # What a slice has grown into comes back once the driver is known to hold its container to less.
    living = {life.pod.uid for life in node.pods.living()}
    held = [g for g in known if g.pod.uid in living and not node.limits.may_shrink(g)]
    offered = tuple(map(node.kubelet.allocatable, _RESOURCES))
    modes = possible_modes(node)
    if offered not in _possible_offers(node, modes, held):
        cards = [card for card in node.driver.cards if card.is_well]
        yield f"{offered} units are offered, of {len(cards)} well cards in mode {' or '.join(modes)}"
    yield from _untold_refusals(node)
    for life in node.pods.living():
        if life.is_forgotten:
            continue
        yield from _not_at_work(node, life)
        mine = [grant for grant in known if _is_of(grant, life.pod)]
        yield from _not_granted(node, life, mine)


def _not_granted(node: Node, life: Life, mine: list[Grant]) -> Iterator[str]:
    has = held(node, life)
    # What a call that was cut off left of a grant ends in the second pass of a settled kubelet.
    is_early = may_list_be_short(node, 2 * ABSENT_SECONDS)
    for grant in mine:
        if not grant.holder.is_handed_on:
            ids = {r: set(grant.ids(r)) for r in {MEM, CORE, *grant.units}}
            its = {r: set(has.get((grant.container, r), ())) for r in ids}
            if ids != its and (any(its.values()) or not is_early):
                yield f"{life.pod.name}/{grant.container} was granted {ids}, and holds {its}"
    for (container, resource), units in has.items():
        if resource in WHOLE and may_be_given_twice(node):
            continue
        if not any(frozenset(grant.ids(resource)) == units for grant in mine):
            yield f"{life.pod.name}/{container} holds {sorted(units)}, and no grant says so"


def may_be_given_twice(node: Node) -> bool:
    """Of whole cards and instances: the kubelet has lost them, and the agent sees no cgroup of who has them."""
    return not node.pods.are_cgroups_seen and any(p.is_forgotten for p in node.pods.living())


# -- what is offered


def _possible_offers(node: Node, modes: list[str], grown: list[Grant]) -> set[_Amounts]:
    found = set()
    for mode, unit in product(modes, _possible_units(node)):
        by_card = [
            {_less(offer, _kept(card, grown)) for offer in _of_card(node, card, mode, unit)}
            for card in node.driver.cards
        ]
        found |= {tuple(map(sum, zip(*each, strict=True))) for each in product(*by_card)}
    return found


def _of_card(node: Node, card: SimulatedCard, mode: str, unit: MemoryUnit) -> set[_Amounts]:
    """What it may offer; while somebody holds any of it, it is as it was when that was given."""
    if not card.is_well:
        return {_NOTHING}
    devices = {hold.device for hold in holds(node)} | noted_devices(node)
    is_held = card.uuid in {card_of_device(node, device) for device in devices}
    configurations = node.past.configurations[0 if is_held else -1 :] or ["whole"]
    found = {_cut(node, card, mode, unit, name) for name in configurations}
    if waits(node, card.uuid) or (is_held and node.past.configurations):
        found.add(_NOTHING)  # one that was cut, or left MIG mode, under pods that hold it is out
    if is_held and len(node.past.configurations) > 1:  # it offers what is held of it, and no more
        found |= {(0, 0, 0, amount, 0) for amount in range(_MOST_HELD)}
        found |= {(0, 0, 0, 0, amount) for amount in range(_MOST_HELD)}
    return found


def _kept(card: SimulatedCard, grown: list[Grant]) -> _Amounts:
    """What slices have of a card beyond their requests."""
    extra = [
        (g.resized.extra, len(g.devices)) for g in grown if g.resized and card.uuid in g.devices
    ]
    return tuple(sum(len(ids.get(r, ())) // of for ids, of in extra) for r in _RESOURCES)


def _less(offer: _Amounts, kept: _Amounts) -> _Amounts:
    """Nothing of a card that is out, whatever slices have of it."""
    return tuple(max(0, amount - of) for amount, of in zip(offer, kept, strict=True))


def noted_grants(node: Node) -> list[Grant]:
    """Those that may still count: a pod rejected since holds them until List is whole, and the pass after it.

    And those of living pods that the kubelet has forgotten.
    """
    is_unsure = may_list_be_short(node, 2 * ABSENT_SECONDS)
    forgotten = {life.pod.uid for life in node.pods.living() if life.is_forgotten}
    return [grant for grant in grants(node) if is_unsure or grant.pod.uid in forgotten]


def noted_devices(node: Node) -> set[str]:
    """The devices of `noted_grants`."""
    return {device for grant in noted_grants(node) for device in grant.devices}


def _cut(
    node: Node, card: SimulatedCard, mode: str, unit: MemoryUnit, configuration: str
) -> _Amounts:
    if card.is_mig:
        is_offered = bool(node.past.configurations) and mode != "disabled"
        return (0, 0, 0, 0, card.instances if is_offered else 0)
    if mode == "default":
        replicas = 1 if configuration == "whole" else int(configuration.removeprefix("x"))
        return (0, 0, 0, replicas, 0)
    return (*_units(mode, unit, card.memory_mib), 0, 0)


def _untold_refusals(node: Node) -> Iterator[str]:
    """An Event on the pod has the reason, unless the agent that knew it has ended since."""
    events = [value for path, value in node.api.objects.items() if "/events/" in path]
    noted = {event["involvedObject"]["name"] for event in events}
    for life in node.pods.lives.values():
        is_ours = f"desc = pod {life.pod.namespace}/{life.pod.name}" in life.message
        if (
            is_ours
            and node.agent
            and life.refused_by == node.agent.name
            and life.pod.name not in noted
        ):
            yield f"{life.pod.name} was refused, and no Event says why"


def waits(node: Node, uuid: str) -> bool:
    """A card that has failed is seen again when NVML is opened again, at most every minute."""
    failed_at = node.past.failed_at.get(uuid, -math.inf)
    return node.machine.loop.now - failed_at < _REOPENED_SECONDS


def possible_modes(node: Node) -> list[str]:
    """The label's mode; another one of before while pods hold slices, or where it names none."""
    mode = node.api.objects[NODE_PATH]["metadata"].get("labels", {}).get(MODE_LABEL)
    return [mode] if mode in OFFERED and _is_empty(node) else sorted(node.past.modes)


def _possible_units(node: Node) -> list[MemoryUnit]:
    """The settings' unit; another one of before while pods hold slices."""
    if _is_empty(node):
        return [node.settings.get("memory_unit", MemoryUnit.GIB)]
    return sorted(node.past.units, key=str)


def _is_empty(node: Node) -> bool:
    """Whether no pod holds a slice; a grant of a living pod that the kubelet forgot is kept.

    So is each while List may be short and until the pass after it, for instance of a pod rejected after a reboot.
    """
    living = node.pods.living()
    forgotten = [life.pod for life in living if life.is_forgotten]
    is_unsure = may_list_be_short(node, ABSENT_SECONDS)
    return not any(held(node, life) for life in living) and not any(
        is_unsure or any(_is_of(grant, pod) for pod in forgotten) for grant in grants(node)
    )


def _is_of(grant: Grant, pod: StandInPod) -> bool:
    """By name where the grant has no uid: it was made while the API server was away."""
    if grant.pod.uid:
        return grant.pod.uid == pod.uid
    return grant.pod.key == (pod.namespace, pod.name)


def _units(mode: str, unit: MemoryUnit, memory_mib: int) -> tuple[int, ...]:
    """Units a card; of one that is smaller than a unit none, of no resource."""
    has_memory, *others = OFFERED[mode]
    units = memory_mib // unit.mib if has_memory else 0
    return (units, *others) if units else (0,) * len(OFFERED[mode])


def _not_at_work(node: Node, life: Life) -> Iterator[str]:
    wanted = [c for c in life.pod.containers if c.kind is not ContainerKind.INIT]
    idle = [c.name for c in wanted if c.name not in life.running]
    is_unread = any("while the API server was away" in text for text in life.start_errors)
    is_in_doubt = life.shape_never_fits or not life.was_known or is_unread
    if idle and not (is_in_doubt and life.start_errors):
        yield f"{life.pod.name} is not refused, and {idle} do not run: {life.start_errors}"
    lacking = [
        (c.name, r)
        for c in wanted
        for r in (MEM, CORE, GPU, INSTANCE)
        if c.limits.get(r) and (c.name, r) not in held(node, life)
    ]
    if lacking and not idle:
        yield f"{life.pod.name} runs without {lacking}"
    meta = node.api.objects.get(path_of(life.pod), {}).get("metadata", {})
    is_given = not life.shape_never_fits or not idle
    is_known = meta.get("annotations") or against_the_rules(node, life) or _is_cut(node, life)
    if is_given and any(c.limits.get(MEM) for c in wanted) and not is_known:
        yield f"{life.pod.name} has no annotations"


def _is_cut(node: Node, life: Life) -> bool:
    """Whether a card of which it holds a part is in MIG mode since: no card of that index is offered."""
    its = {card_of_device(node, hold.device) for hold in holds(node) if hold.life is life}
    return any(card.uuid in its and card.is_mig for card in node.driver.cards)


def leftovers(node: Node) -> Iterator[str]:
    """Of pods that are gone: grants and files."""
    alive = [life.pod for life in node.pods.living()]
    known = grants(node)
    # Where nothing is offered no list makes the kubelet write its checkpoint, and what that
    # names is kept.
    entries = read_checkpoint(node.kubelet.plugin_dir / CHECKPOINT_NAME)
    kept = {entry.pod_uid for entry in entries or ()}
    is_idle = not any(map(node.kubelet.allocatable, _RESOURCES))
    for grant in known:
        if not any(_is_of(grant, pod) for pod in alive) and not (
            is_idle and (entries is None or grant.pod.uid in kept)
        ):
            yield f"a grant of {grant.pod} ({grant.pod.uid}) is left"
    run, cdi = node.machine.root / "run", node.machine.root / "cdi"
    if any(node.file("grants").parent.glob("grants*.bad-*")) or (is_idle and entries is None):
        return  # what the lost grants named, or the lost checkpoint, may be in use, and stays
    slices = {grant.slice_id for grant in known}
    for directory in (*run.glob("slices/*"), *run.glob("cards/*/*"), *cdi.glob("gpu-slice-*.json")):
        if directory.stem.removeprefix("gpu-slice-") not in slices:
            yield f"{directory.relative_to(node.machine.root)} is left"
