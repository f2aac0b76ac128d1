"""Publishes the node and its pods: metrics, labels, annotations. No admission waits for it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.publish.usage_reader import SliceUsage, UsageReader
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    HOLDINGS_ANNOTATION,
    Holding,
    held_devices,
    holding_of,
    holdings_annotation,
    is_complete,
)
from gpu_device_plugin.domain.grants.ledger import DeviceUse, Ledger
from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    WITHDRAWN_ANNOTATION,
    cards_annotation,
    withdrawn_annotation,
)
from gpu_device_plugin.domain.models.model_catalogue import (
    MODEL_LABEL,
    SERIES_ANNOTATION,
    withdrawn_series,
)
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.labels import NODE_LABELS, DriverVersions, node_labels
from gpu_device_plugin.domain.node.memory_enforcer import USUAL_ENFORCERS
from gpu_device_plugin.domain.node.modes import is_whole
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState, StateReader, UnitCount
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.kubernetes.objects.events import time_stamp
from gpu_device_plugin.web.metrics.agent_metrics import (
    AgentMetrics,
    CardSample,
    SliceSample,
    Snapshot,
)

_TOGETHER_SECONDS = 0.25
_BYTES_PER_MIB = 1024 * 1024
_WHOLE_CARD = 100


@dataclass(eq=False)
class Publisher:
    """Publishes soon after a change; many changes at once are published together."""

    metrics: AgentMetrics
    cluster: Cluster
    state: StateReader
    schemes: Schemes
    live: LiveLedger
    usage: UsageReader
    driver: Callable[[], DriverVersions]
    drift: Callable[[], int]
    wall_seconds: Callable[[], float]
    specs: Callable[[], Specs]

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        # What was told of a pod last, by which grants and with which numbers of cards; by its uid.
        self._published: dict[str, tuple[object, ...]] = {}
        self._holdings: dict[str, Holding[str]] = {}

    def changed(self, *_: object) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_TOGETHER_SECONDS)
            self._changed.clear()
            self._publish()

    def show(self) -> None:
        state, ledger = self.state(), self.live.living
        counts = self.schemes.counts(state, ledger)
        self.metrics.publish(
            Snapshot(
                cards=tuple(self._card_samples(state, counts, ledger)),
                slices=tuple(self._slice_samples(state, ledger)),
                drift=self.drift(),
                is_api_reachable=self.cluster.is_reachable,
                faults=tuple(state.faults),
            )
        )

    def _publish(self) -> None:
        state, ledger = self.state(), self.live.living
        self._describe(state, ledger)
        self._annotate(state, ledger)

    def _describe(self, state: NodeState, ledger: Ledger) -> None:
        """Labels and annotations of the node; of a withdrawn one only the answer to the mark."""
        if state.mark:
            self._drop_series()
            answer = None if state.kept is None else withdrawn_annotation(state.mark, state.kept)
            self.cluster.describe_node(
                labels=dict.fromkeys(NODE_LABELS),
                annotations={
                    CARDS_ANNOTATION: None,
                    HOLDINGS_ANNOTATION: None,
                    WITHDRAWN_ANNOTATION: answer,
                },
            )
            return
        self.cluster.describe_node(annotations={WITHDRAWN_ANNOTATION: None})
        shown, versions = tuple(card for card in state.cards if card.is_shown), self.driver()
        # None is an answer too: all may be in MIG mode now. Before the driver has one, the last counts.
        if state.mode is not None and (shown or versions.driver):
            found = node_labels(shown, *versions)
            is_by_claims, nvidia = state.allocation_api is AllocationApi.DRA, self.schemes.nvidia
            cards = cards_annotation(
                shown,
                state.healthy,
                state.terms,
                nvidia.replicas(self.schemes.view(nvidia, state)),
                ledger.use_by_claims() if is_by_claims else None,
                dict(_unusual_enforcers(state)),
                dict(_faults(state)),
                state.older_configuration,
            )
            self.cluster.describe_node(
                labels={key: found.get(key) for key in NODE_LABELS},
                annotations={CARDS_ANNOTATION: cards},
            )

    def _drop_series(self) -> None:
        """The series is the controller's to write, but it may be gone before the agents are."""
        node = self.cluster.node
        if node is not None:
            written = node.annotations.get(SERIES_ANNOTATION)
            change = withdrawn_series(node.labels.get(MODEL_LABEL), written)
            for label in change.labels:
                self.cluster.drop(label=label)
            for annotation in change.annotations:
                self.cluster.drop(annotation=annotation)

    def _annotate(self, state: NodeState, ledger: Ledger) -> None:
        by_pod: dict[PodRef, list[Grant]] = {}
        for grant in ledger.grants.values():
            # Without the pod spec the index of the container is not known.
            if grant.pod.uid and grant.pod.name and grant.is_checked:
                by_pod.setdefault(grant.pod, []).append(grant)
        shown = [card for card in state.cards if card.is_shown]
        numbers = {card.uuid: card.index for card in shown}
        for pod, grants in by_pod.items():
            published = (*grants, numbers)
            if self._published.get(pod.uid) != published:
                assume_time_ns = int(min(g.created_seconds for g in grants) * 1e9)
                assume_time_ns = assume_time_ns or int(self.wall_seconds() * 1e9)
                values = self.schemes.annotations(grants, state, assume_time_ns)
                if values:
                    self.cluster.annotate_pod(pod, values)
                    self._published[pod.uid] = published
                devices = held_devices(values.get(DEVICES_ANNOTATION, "{}")).values()
                holding = holding_of(grants, shown, state.unit, {*chain.from_iterable(devices)})
                # A pod whose init containers alone ask has no annotations, and holds all the same.
                if values or holding.by_card:
                    self._holdings[pod.uid] = holding
        known = {pod.uid for pod in by_pod}
        self._published = {uid: self._published[uid] for uid in known & self._published.keys()}
        self._holdings = {uid: self._holdings[uid] for uid in known & self._holdings.keys()}
        # Before cards and pods are known, what an agent before this one said still counts; none is known too.
        is_answered = bool(state.cards or self.driver().driver)
        if not state.mark and is_answered and self.cluster.is_synced():
            self._tell_holdings(by_pod)

    def _tell_holdings(self, by_pod: Mapping[PodRef, Sequence[Grant]]) -> None:
        specs = self.specs()
        told = {
            pod.uid: self._holdings[pod.uid]
            for pod, grants in by_pod.items()
            if pod.uid in self._holdings and is_complete(grants, specs.get(pod.key))
        }
        self.cluster.describe_node(annotations={HOLDINGS_ANNOTATION: holdings_annotation(told)})

    def _slice_samples(self, state: NodeState, ledger: Ledger) -> Iterable[SliceSample]:
        specs = self.specs()
        for grant in ledger.grants.values():
            if not grant.pod.name:
                continue  # adopted from the kubelet's checkpoint; its pod is not known yet
            container = self.schemes.container_of(grant, specs.get(grant.pod.key))
            for share in grant.shares:
                card = state.card(share.device)
                if card is not None and share.memory_bytes is not None:
                    sample = SliceSample(
                        namespace=grant.pod.namespace,
                        pod=grant.pod.name,
                        container=container,
                        card=_card_label(card),
                        memory_limit_bytes=share.memory_bytes,
                        core_percent=grant.limit_percent,
                        claim=grant.holder.claim_name,
                        enforcers=grant.enforcers,
                    )
                    usage = self.usage.of(grant.slice_id, share.device)
                    yield _add_usage(sample, usage, card)

    def _card_samples(
        self, state: NodeState, counts: Mapping[str, Sequence[UnitCount]], ledger: Ledger
    ) -> Iterable[CardSample]:
        healthy, use = state.healthy, ledger.use()
        for card in state.cards:
            fault = state.unhealthy.get(card.uuid, "")
            yield CardSample(
                _card_label(card),
                card.uuid,
                healthy[card.uuid],
                tuple(counts.get(card.uuid, ())),
                fault,
                self.usage.unexplained(card),
                _short_bytes(state, card, use),
                str(state.allocation_api),
                state.node,
                card.model,
                card.memory_mib,
                *_ack_mode(card, use, card.capacity(state.unit) * state.unit.mib),
                enforcer="" if is_whole(state.terms.mode) else state.memory_by(card.uuid),
            )


def _short_bytes(state: NodeState, card: Card, use: Mapping[str, DeviceUse]) -> int:
    held = use[card.uuid].memory_mib if card.uuid in use else 0
    return state.memory_short(card, held) * _BYTES_PER_MIB if held else 0


class _AckMode(NamedTuple):
    number: int
    held_ratio: float


def _ack_mode(card: Card, use: Mapping[str, DeviceUse], given_mib: int) -> _AckMode:
    """ACK's allocation mode of a card (R-580), and the held part of the memory that it gives away."""
    parts = {card.uuid: card.memory_mib}
    parts |= {each.uuid: each.memory_mib for each in card.hardware.instances}
    held = {uuid: use[uuid] for uuid in parts if uuid in use}
    # Who has a device for itself need not have asked for memory.
    mib = sum(u.memory_mib or u.is_exclusive * parts[uuid] for uuid, u in held.items())
    is_whole = card.uuid in held and held[card.uuid].is_exclusive
    return _AckMode((1 if is_whole else 2) if held else 0, min(1, mib / max(1, given_mib)))


def _faults(state: NodeState) -> Iterable[tuple[str, str]]:
    """Why cards are unhealthy, and since when: Events of it are gone after an hour."""
    for uuid, reason in state.unhealthy.items():
        since = state.unhealthy_since.get(uuid)
        yield uuid, reason if since is None else f"{reason} since {time_stamp(since)}"


def _unusual_enforcers(state: NodeState) -> Iterable[tuple[str, str]]:
    for card in () if is_whole(state.terms.mode) else state.cards:
        if (found := state.memory_by(card.uuid)) not in USUAL_ENFORCERS:
            yield card.uuid, found


def _card_label(card: Card) -> int | str:
    """NVML's index, or the UUID of a card that NVML does not show."""
    return card.index if card.is_shown else card.uuid


def _add_usage(sample: SliceSample, usage: SliceUsage | None, card: Card) -> SliceSample:
    """The container wrote these figures; one above what the card has is not believed."""
    if usage is None or usage.memory_bytes > card.memory_mib * _BYTES_PER_MIB:
        return sample
    # Without a compute cap the library does not measure time, so 0 would be wrong.
    is_measured = 0 < sample.core_percent < _WHOLE_CARD
    return replace(
        sample,
        memory_used_bytes=usage.memory_bytes,
        core_used_ratio=usage.core_ratio if is_measured else None,
        refused_total=usage.refused_total,
    )
