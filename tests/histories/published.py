"""Everything that the agent publishes, compared with the truth in a quiet moment.

Labels, annotations of the node and of pods, metrics, and what stands in the files and the environment of
containers that run. The truth is what the kubelet's book says that living pods hold, and the driver's cards.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.histories.driver import SimulatedCard
from tests.histories.node import NODE_PATH, Node
from tests.histories.pods import Life, path_of
from tests.histories.quiet import (
    may_be_given_twice,
    noted_devices,
    noted_grants,
    possible_modes,
    waits,
)
from tests.histories.shapes import CORE, COUNT, MEM
from tests.histories.truth import against_the_rules, card_of_device, grants, holds, numbers

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, CORE_ALLOCATION
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    HOLDINGS_ANNOTATION,
)
from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.domain.node.labels import COUNT_LABEL, MEMORY_LABEL
from gpu_device_plugin.domain.node.pods import ContainerKind

_SERIES = re.compile(r"^gpu_device_plugin_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_Shares = dict[str, tuple[int, int]]  # UUID of a card -> units, percent
_Series = dict[tuple[str, ...], float]


@dataclass(slots=True)
class Has:
    """What a pod, or one of its containers, holds: each unit counts once."""

    units: dict[str, dict[str, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    devices: set[str] = field(default_factory=set)
    chosen: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Units that the kubelet chose, by device and resource."""

    @property
    def shares(self) -> _Shares:
        """Of each card by fractions."""
        return {card: (len(by[MEM]), len(by[CORE])) for card, by in self.units.items()}


def untruths(node: Node) -> Iterator[str]:
    """What is told and is not so; nothing is compared of a pod whose units the kubelet has lost."""
    if node.agent is None or node.past.was_damaged:
        return
    pods: dict[str, Has] = defaultdict(Has)
    containers: dict[tuple[str, str], Has] = defaultdict(Has)
    for hold in holds(node):
        for has in (pods[hold.life.pod.uid], containers[hold.life.pod.uid, hold.container]):
            if hold.is_fraction:
                has.units[hold.device][hold.resource].add(hold.unit)
            else:
                has.devices.add(hold.device)
                has.chosen[hold.device, hold.resource].add(hold.unit)
    meta = node.api.objects[NODE_PATH]["metadata"]
    annotations = meta.get("annotations", {})
    yield from _cards(node, annotations.get(CARDS_ANNOTATION))
    yield from _labels(node, meta.get("labels", {}), annotations.get(CARDS_ANNOTATION))
    away = {c.uuid for c in node.driver.cards if not c.is_sound or waits(node, c.uuid)}
    noted = noted_grants(node)
    sure = [
        life
        for life in node.pods.living()
        if is_sure(life)
        and away.isdisjoint(pods[life.pod.uid].units)
        and not against_the_rules(node, life)
        and not (pods[life.pod.uid].devices and may_be_given_twice(node))
        and not _has_another_grant(noted, life, pods[life.pod.uid])
    ]
    yield from _of_pods(node, sure, pods, containers)


def _has_another_grant(noted: Iterable[Grant], life: Life, has: Has) -> bool:
    """Of a call that was cut off, by its name alone: the agent drops it when it knows that List is whole."""
    fractions = (ids for by_resource in has.units.values() for ids in by_resource.values())
    units = set[str]().union(*fractions, *has.chosen.values())
    mine = {"", life.pod.uid}
    its = [g for g in noted if g.pod.name == life.pod.name and g.pod.uid in mine]
    return any(units.isdisjoint(grant.all_ids) for grant in its)


def _of_pods(
    node: Node, sure: list[Life], pods: Mapping[str, Has], containers: Mapping[tuple[str, str], Has]
) -> Iterator[str]:
    annotations = node.api.objects[NODE_PATH]["metadata"].get("annotations", {})
    told = _holdings(node, annotations.get(HOLDINGS_ANNOTATION, "{}"))
    for life in sure:
        yield from _holding(node, life, pods[life.pod.uid], told)
        yield from _annotated(node, life, containers)
        yield from _inside(node, life, containers)
    alive = {uid for life in sure for uid in (life.pod.uid, f"mirror-{life.pod.uid}")}
    others = {grant.pod.uid for grant in noted_grants(node)} - alive
    if len(sure) == len(node.pods.living()) and not others:
        if gone := told.keys() - alive:
            yield f"the node's holdings name {sorted(gone)}, which are gone"
        yield from _metrics(node, pods)
        yield from _slices(node, sure, containers)


def is_sure(life: Life) -> bool:
    """Whether everybody knows what it holds: it is at work, and its cards are there."""
    apps = {c.name for c in life.pod.containers if c.kind is not ContainerKind.INIT}
    is_known = not (life.is_forgotten or life.is_terminating or life.shape_never_fits)
    return is_known and life.running.keys() >= apps and life.phase == "Running"


# -- the node


def _shown(node: Node) -> list[SimulatedCard]:
    return [card for card in node.driver.shown if not card.error]


def _index(node: Node, uuid: str) -> int:
    return next((i for i, card in enumerate(node.driver.shown) if card.uuid == uuid), -1)


def _cards(node: Node, text: str | None) -> Iterator[str]:
    if text is None:
        return
    told = json.loads(text)
    if told["mode"] not in possible_modes(node):
        yield f"the node tells mode {told['mode']}, and it is {possible_modes(node)}"
    by_uuid = {entry["uuid"]: entry for entry in told["cards"]}
    for card in _shown(node):
        # Instances need a strategy, which comes with a file of NVIDIA's (troubles.nvidia).
        has_instances = told["mode"] == "default" and "mig_strategy" in node.settings
        is_offered = card.is_well if has_instances else card.is_sound
        yield from _card(node, card, by_uuid.pop(card.uuid, None), is_offered=is_offered)
    for uuid, entry in by_uuid.items():
        if entry["healthy"]:
            yield f"card {uuid} is told as {entry}, and it is not there"


def _card(
    node: Node, card: SimulatedCard, entry: dict[str, Any] | None, *, is_offered: bool
) -> Iterator[str]:
    is_certain = _has_units(node) and not waits(node, card.uuid) and not _is_as_it_was(node, card)
    if entry is None:
        is_slow_only = replace(card, call_seconds=0.0).is_sound and card.uuid in numbers(node)
        if (is_offered or is_slow_only) and is_certain:
            yield f"card {card.uuid} is not told"
        return
    index = _index(node, card.uuid)
    if (entry["index"], entry["memory_mib"]) != (index, card.memory_mib):
        yield f"card {index} {card.uuid} is told as {entry}"
    if entry["healthy"] is not is_offered and is_certain:
        yield f"card {card.uuid} is told as {entry}, and that it is well is {is_offered}"


def _is_as_it_was(node: Node, card: SimulatedCard) -> bool:
    """Whether somebody may hold the card, or an instance of it, as it was when that was given."""
    devices = {hold.device for hold in holds(node) if not hold.is_fraction}
    return not (devices | noted_devices(node)).isdisjoint({card.uuid, *card.all_instances})


def _cut_while_held(node: Node) -> set[str]:
    return {card.uuid for card in node.driver.cards if card.is_mig and _is_as_it_was(node, card)}


def _has_units(node: Node) -> bool:
    """A node on which every card is smaller than a unit is unhealthy as a whole."""
    return any(card.is_sound and card.memory_mib >= node.unit.mib for card in node.driver.cards)


def _labels(node: Node, labels: Mapping[str, str], cards: str | None) -> Iterator[str]:
    """They count the largest group of equal cards that the annotation tells: not one that is cut under pods that hold it."""
    if cards is None or any(waits(node, card.uuid) for card in node.driver.cards):
        return
    told = labels.get(COUNT_LABEL), labels.get(MEMORY_LABEL)
    sizes = [card["memory_mib"] for card in json.loads(cards)["cards"]]
    largest = max(sizes, key=sizes.count, default=0)
    if sizes and told != (str(sizes.count(largest)), f"{largest}MiB"):
        yield f"labels tell {told}, and the annotation {cards}"


# -- pods


_Told = tuple[dict[str, tuple[int, ...]], set[str]]  # shares by card, and whole devices


def _holdings(node: Node, text: str) -> dict[str, _Told]:
    """By uid: cards are named once, then by their place."""
    plain = json.loads(text)
    cards = plain.get("cards", [card.uuid for card in node.driver.shown])
    return {
        uid: (
            {cards[int(place)]: tuple(share) for place, share in each.get("slices", {}).items()},
            {cards[d] if isinstance(d, int) else d for d in each.get("devices", ())},
        )
        for uid, each in plain.get("pods", {}).items()
    }


def _holding(node: Node, life: Life, has: Has, told: Mapping[str, _Told]) -> Iterator[str]:
    found = told.get(life.pod.uid) or told.get(f"mirror-{life.pod.uid}")
    if found is None and _lacks_an_init(node, life):
        return  # what it held is not known, and the pod counts by its own annotations
    shares, devices = found or ({}, set())
    if (shares != has.shares and not has.devices) or devices != has.devices:
        yield (
            f"the node tells that {life.pod.name} holds {shares} and {sorted(devices)}, and it "
            f"holds {has.shares} and {sorted(has.devices)}"
        )


def _lacks_an_init(node: Node, life: Life) -> bool:
    """Whether an init container has no grant of its own: nobody knew the pod spec when it asked."""
    granted = {grant.container for grant in grants(node) if grant.pod.uid == life.pod.uid}
    inits = {c.name for c in life.pod.containers if c.kind is ContainerKind.INIT and c.limits}
    return not inits <= granted


def _annotated(node: Node, life: Life, containers: Mapping[tuple[str, str], Has]) -> Iterator[str]:
    """App containers only, by their place in the pod spec."""
    found = node.api.objects.get(path_of(life.pod), {}).get("metadata", {}).get("annotations", {})
    apps = [c for c in life.pod.containers if c.kind is ContainerKind.APP]
    units: dict[str, dict[str, int]] = {}
    percents: dict[str, dict[str, int]] = {}
    devices: dict[str, list[str]] = {}
    for place, container in enumerate(apps):
        has = containers.get((life.pod.uid, container.name), Has())
        for card, (mem, core) in has.shares.items():
            index = str(_index(node, card))
            units.setdefault(str(place), {})[index] = mem
            if core:
                percents.setdefault(str(place), {})[index] = core
        if has.devices:
            devices[str(place)] = sorted(has.devices)
    wanted = {ALLOCATION: units, CORE_ALLOCATION: percents, DEVICES_ANNOTATION: devices}
    told = {key: json.loads(found.get(key, "{}")) for key in wanted}
    if told != wanted:
        yield f"the annotations of {life.pod.name} tell {told}, and it holds {wanted}"


def _inside(node: Node, life: Life, containers: Mapping[tuple[str, str], Has]) -> Iterator[str]:
    """The limits that a running container's library reads, and the cards that it sees."""
    for name, options in life.running.items():
        has = containers.get((life.pod.uid, name), Has())
        cards = sorted(has.devices or has.shares)
        visible = sorted(options.env.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
        if cards and visible != cards:
            yield f"{life.pod.name}/{name} sees {visible}, and it holds {cards}"
        configs = [source for source, _ in options.mounts.values() if source.endswith("/config")]
        if has.shares and configs:
            text = (Path(configs[0]) / "limits").read_text("utf-8")
            told = _limits(text)
            wanted = [
                {card: _size(node, card, unit, *share) for card, share in has.shares.items()}
                for unit in (node.unit, *node.past.units)
            ]
            if told not in wanted:
                yield f"{life.pod.name}/{name} is limited to {told}, and it holds {wanted[0]}"


def _limits(text: str) -> dict[str, tuple[int, int]]:
    found = {}
    for line in text.splitlines():
        if line.startswith("device="):
            words = dict(word.partition("=")[::2] for word in line.split())
            sizes = int(words.get("memory_bytes", "0")), int(words.get("core_percent", "0"))
            found[words["device"]] = sizes
    return found


def _size(node: Node, uuid: str, unit: MemoryUnit, units: int, percent: int) -> tuple[int, int]:
    """Bytes and percent of so many units: the card's memory in proportion."""
    card = next(card for card in node.driver.cards if card.uuid == uuid)
    all_units = max(1, card.memory_mib // unit.mib)
    return card.memory_mib * units // all_units << 20, percent


# -- metrics


def _metrics(node: Node, pods: Mapping[str, Has]) -> Iterator[str]:
    series = _read(node.past.page)
    yield from _held_units(node, series["units"], pods)
    for card in node.driver.cards:
        is_healthy = series["card_healthy"].get((card.uuid,))
        is_unsure = is_healthy is None or card.is_mig or _is_as_it_was(node, card)
        is_certain = not (is_unsure or waits(node, card.uuid))
        if is_certain and _has_units(node) and card.is_well is not bool(is_healthy):
            yield f"metrics tell of {card.uuid} that it is healthy: {is_healthy}"
    if series["reconcile_drift"].get((), 0):
        yield f"metrics tell a drift of {series['reconcile_drift']}"


def _held_units(node: Node, units: _Series, pods: Mapping[str, Has]) -> Iterator[str]:
    held: dict[tuple[str, str], int] = defaultdict(int)
    listed = node.kubelet.registry.book.healthy  # others were cut away
    for has in pods.values():
        for card, amounts in has.shares.items():
            for resource, amount in zip((MEM, CORE), amounts, strict=True):
                held[card, resource] += amount
        for (device, resource), ids in has.chosen.items():
            held[card_of_device(node, device), resource] += len(ids & listed.get(resource, set()))
    cut = _cut_while_held(node)
    told = {(uuid, r): n for (r, uuid, state), n in units.items() if state == "held" and r != COUNT}
    for uuid, resource in sorted({*told, *(key for key, amount in held.items() if amount)}):
        truth, found = held[uuid, resource], told.get((uuid, resource), 0)
        if found != truth and uuid not in cut:
            yield f"metrics tell {found:.0f} units of {resource} held of {uuid}, not {truth}"


def _slices(
    node: Node, lives: list[Life], containers: Mapping[tuple[str, str], Has]
) -> Iterator[str]:
    """Each container's limit on each card; of an init container nobody may have known what it asked."""
    told = _read(node.past.page)["slice_memory_limit_bytes"]
    wanted: _Series = {}
    unsure: set[tuple[str, ...]] = set()
    cut = _cut_while_held(node)
    for life in lives:
        pod = life.pod.namespace, life.pod.name
        for container in life.pod.containers:
            has = containers.get((life.pod.uid, container.name), Has())
            lacks = container.kind is ContainerKind.INIT and _lacks_an_init(node, life)
            for uuid, size in _sizes(node, has):
                key: tuple[str, ...] = (*pod, container.name, str(_index(node, uuid)))
                wanted[key] = size or 0
                if size is None or uuid in cut or (lacks and has.shares):
                    unsure |= {key, (*pod, container.name, uuid)}
    for key in sorted(({*told, *wanted}) - unsure):
        if told.get(key) != wanted.get(key):
            yield f"metrics limit {key} to {told.get(key)}, and it is {wanted.get(key)}"


def _sizes(node: Node, has: Has) -> Iterator[tuple[str, int | None]]:
    """Cards, and bytes of what a container holds there; None where it is an instance, which is not judged."""
    for uuid, share in has.shares.items():
        yield uuid, _size(node, uuid, node.unit, *share)[0]
    memory = {card.uuid: card.memory_mib << 20 for card in node.driver.cards}
    for device in has.devices:  # a whole card, or a part of its time, has all of its memory
        yield card_of_device(node, device), memory.get(device)


_KEYS = {
    "units": ("resource", "uuid", "state"),
    "card_healthy": ("uuid",),
    "slice_memory_limit_bytes": ("namespace", "pod", "container", "card"),
    "reconcile_drift": (),
}


def _read(page: str) -> dict[str, _Series]:
    found: dict[str, _Series] = {name: {} for name in _KEYS}
    for name, labels, value in _SERIES.findall(
        page.replace("reconcile_drift ", "reconcile_drift{} ")
    ):
        if name in _KEYS:
            by_name = dict(_LABEL.findall(labels))
            found[name][tuple(by_name[key] for key in _KEYS[name])] = float(value)
    return found
