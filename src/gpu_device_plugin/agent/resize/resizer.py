"""Resizes: what the pods of this node ask of slices that run, step by step (`domain.fractions.resize`).

Every step follows from the grant, what is asked and what is used, so an agent that was killed goes on
where it was. A step is durable before the container may use it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.publish.api_cluster import Cluster
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.reconcile.holders import Holders
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.disk.processes import holds_region
from gpu_device_plugin.disk.region import read_region
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.fraction import fraction_of, limit_of
from gpu_device_plugin.domain.fractions.pod_annotations import (
    GROWTH,
    RESIZE,
    RESIZED,
    PodHold,
    hold_of,
)
from gpu_device_plugin.domain.fractions.resize import (
    AskedSize,
    ContainerAnswer,
    ResizeAnswer,
    ResizedSlice,
    ResizeState,
    SliceSizes,
    asked_still,
    check_growth,
    check_resize,
    growth_room,
    kept_text,
    parse_growth,
    parse_resize,
    parse_resized,
    resize_text,
    resized_annotation,
    size_text,
    sizes_of,
    understood,
    why_fixed,
    with_sizes,
)
from gpu_device_plugin.domain.fractions.units import Resource, resources_of
from gpu_device_plugin.domain.grants.grant import Grant, UnitsAndPercent
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import is_over
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.domain.node.state import StateReader
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import (
    ClusterError,
    DoesNotFitError,
    RefusalError,
    RequestError,
    StorageError,
    clip,
)
from gpu_device_plugin.kubernetes.objects.events import time_stamp

LOOK_SECONDS = 1.0
_GROWTH_SECONDS = 2.0
_BYTES_PER_MIB = 1 << 20


@dataclass(eq=False)
class _Following:
    """A pod's resize: what it asks, and how far that is."""

    asked: str
    due: float  # by the loop's clock, as `begun`: the next decision
    begun: float
    answers: dict[str, ContainerAnswer] = field(default_factory=dict)
    is_open: bool = True
    has_written: bool = False  # the grants, by this decision


@dataclass(eq=False)
class Resizer:
    """Follows the annotations of the node's pods, each with one decision a second at most."""

    ledger_store: LedgerStore
    setup: ContainerSetup
    recorder: EventRecorder
    state: StateReader
    schemes: Schemes
    gate: CallGate
    holders: Holders
    cluster: Cluster
    limit_by_driver: Callable[[Grant], Awaitable[str]]
    wall_seconds: Callable[[], float]

    def __post_init__(self) -> None:
        self._pods: dict[PodRef, _Following] = {}
        self._woken = asyncio.Event()
        self._growth: dict[str, tuple[float, UnitsAndPercent | DoesNotFitError]] = {}

    def pod_synced(self, pod: PodRef) -> None:
        """The API server has this of a pod now."""
        annotations, known = self.cluster.annotations_of(pod), self._pods.get(pod)
        asked = annotations.get(RESIZE, "")
        is_left = known is None and any(map(_keeps_more, self._fractions(pod)))
        if is_left or asked != (known.asked if known else ""):
            due = known.due if known else 0.0
            self._pods[pod] = new = _Following(asked, due, _now())
            told = parse_resized(annotations.get(RESIZED, ""))
            if known is not None:  # what is asked of another container ends no answer
                same = asked_still(known.asked, asked)
                new.answers = {name: of for name, of in known.answers.items() if name in same}
            elif told and told.asked == asked:  # by an agent before this one
                new.answers = dict(told.containers)
            self._woken.set()

    def pod_gone(self, pod: PodRef) -> None:
        self._pods.pop(pod, None)

    async def run(self) -> None:
        """Follow them, until cancelled."""
        while True:
            due = [of.due for of in self._pods.values() if of.is_open]
            wait = max(0.0, min(due) - _now()) if due else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            self._woken.clear()
            for pod, of in tuple(self._pods.items()):
                if of.is_open and of.due <= _now() and self._pods.get(pod) is of:
                    of.due = _now() + LOOK_SECONDS
                    if self.holders.has_passed:
                        await self._follow(pod, of)

    async def _follow(self, pod: PodRef, of: _Following) -> None:
        spec, text = self.cluster.specs().get(pod.key), ""
        if spec is None or spec.ref != pod:  # it has finished
            self._pods.pop(pod, None)
            return
        before, asked = of.answers, dict[str, AskedSize]()
        of.is_open = of.has_written = False
        try:
            asked |= _named(of.asked, spec) if of.asked else self._nothing_asked(pod)
            of.answers = {name: before[name] for name in asked if name in before}
            for name in asked:
                if of.has_written:  # the others follow in later decisions
                    of.is_open = True
                    break
                answer = await self._answer(spec, name, asked[name], of)
                of.answers = {**of.answers, name: answer}
        except RequestError as error:
            text, of.answers = str(error), {}
        await self._return_kept(spec, of)
        # An annotation that nobody understands may be long.
        answered = of.asked if understood(of.asked) else ""
        told = ResizeAnswer(answered, self.state().unit.mib, of.answers, text)
        self.cluster.annotate_pod(pod, {RESIZED: resized_annotation(told)})
        for name, each in of.answers.items():
            if name not in before or before[name].state is not each.state:
                self._tell(pod, name, resize_text({name: asked[name]}), each)
        if text:
            self.recorder.resized(pod, clip(of.asked), text, reason="ResizeRefused")

    def _nothing_asked(self, pod: PodRef) -> Mapping[str, AskedSize]:
        """Where nothing is asked any more, slices keep their limits; what they have beyond goes back."""
        resized = (grant for grant in self._fractions(pod) if grant.resized)
        return {grant.container: AskedSize() for grant in resized}

    async def _return_kept(self, spec: PodRequest, of: _Following) -> None:
        """What slices keep beyond their limits goes back whatever is asked now, and cannot be."""
        for grant in self._fractions(spec.ref):
            answer = of.answers.get(grant.container)
            is_followed = answer is not None and answer.state is not ResizeState.REFUSED
            if of.has_written or is_followed or not _keeps_more(grant):
                continue
            of.is_open = True
            with suppress(RequestError, RefusalError, StorageError, ClusterError):
                slice_ = await self._slice(spec, grant.container)
                await self._move(grant, slice_, slice_.sizes.limit, of)

    def _tell(self, pod: PodRef, name: str, asked: str, of: ContainerAnswer) -> None:
        has = size_text(UnitsAndPercent(Units(of.mem), of.core), self.state().unit)
        text = of.text or f"container {name} has {has} now"
        reason = {
            ResizeState.DONE: "Resized",
            ResizeState.WAITS: "ResizeWaits",
            ResizeState.REFUSED: "ResizeRefused",
        }[of.state]
        self.recorder.resized(pod, asked, text, reason=reason)

    async def _answer(
        self, spec: PodRequest, name: str, asked: AskedSize, of: _Following
    ) -> ContainerAnswer:
        """One decision, and how far its container is then."""
        before, waited = of.answers.get(name), _now() - of.begun
        is_late = asked.within_seconds is not None and waited > asked.within_seconds
        waits = ResizeState.REFUSED if is_late else ResizeState.WAITS
        state, text = ResizeState.DONE, ""
        try:
            slice_ = await self._slice(spec, name)
            target = check_resize(slice_, asked)
            if before and before.state is ResizeState.REFUSED and slice_.sizes.limit != target:
                return before
            grant, unaware = await self._move(self._grant(spec, name), slice_, target, of)
            if unaware or sizes_of(grant).is_more_than(target):
                state, of.is_open = waits, True
                kept = kept_text(slice_, sizes_of(grant), self._used(grant))
                text = f"{slice_.subject} waits for {unaware}" if unaware else kept
        except RequestError as error:
            state, text = ResizeState.REFUSED, str(error)
        except (RefusalError, StorageError, ClusterError) as error:
            state, text = waits, str(error)
            of.is_open |= not is_late
        held = self._fractions(spec.ref, name)
        size = limit_of(held[0]) if held else UnitsAndPercent()
        is_new = before is None or before.state is not state
        since = time_stamp(self.wall_seconds()) if before is None or is_new else before.since
        return ContainerAnswer(size.units, size.percent, state, since, text)

    def _fractions(self, pod: PodRef, *name: str) -> Sequence[Grant]:
        """By name and uid: what says that it is a static pod's mirror has any uid that it likes."""
        found = self.ledger_store.ledger.of_pod(pod, *name)
        return [g for g in found if g.pod.key == pod.key and self.schemes.is_fraction(g)]

    def _grant(self, spec: PodRequest, name: str) -> Grant:
        held, container = self._fractions(spec.ref, name), spec.container(name)
        if held:
            return held[0]
        subject = f"pod {spec.ref}, container {name}, on node {self.state().node}"
        if container is None or not container.amount(Resource.MEM) or not spec.asks_units:
            why = "has no slice of its own; claims, whole cards and replicas keep their size"
            raise RequestError(f"{subject}, {why}", reason="NotResizable")
        raise DoesNotFitError(f"{subject}, has no slice yet", reason="NoGrant")

    async def _slice(self, spec: PodRequest, name: str) -> ResizedSlice:
        grant, state = self._grant(spec, name), self.state()
        fraction, version = fraction_of(grant), grant.library_version
        follows = bool(version) and await self.setup.library.follows_limits(version)
        units = [card.capacity(fraction.unit) for card in self._cards(grant)]
        return ResizedSlice(
            f"pod {spec.ref}, container {name}, on node {state.node}",
            sizes_of(grant),
            fraction.unit,
            len(grant.devices),
            Units(min(units)),
            Resource.CORE in resources_of(fraction.mode),
            why_fixed(grant, follows_limits=follows),
        )

    def _cards(self, grant: Grant) -> Sequence[Card]:
        cards = [card for card in map(self.state().card, grant.devices) if card is not None]
        if not cards or len(cards) < len(grant.devices):
            raise DoesNotFitError(f"{grant.holder}: a card of it is away", reason="CardGone")
        return cards

    async def _move(
        self, grant: Grant, slice_: ResizedSlice, target: UnitsAndPercent, of: _Following
    ) -> tuple[Grant, str]:
        """The next step; and who does not know of the limits yet, as `_tell_limits`.

        What a slice no longer may use is given back by a later decision: an allocation may have begun.
        """
        sizes, unaware = sizes_of(grant), await self._tell_limits(grant)
        following = sizes.towards(target, self._used(grant))
        gives_back = following != sizes and sizes.limit == target
        if following == sizes or (gives_back and unaware):
            return grant, unaware
        is_growing = sizes.missing(target) != UnitsAndPercent()
        allowed = await self._allowed(grant.pod.namespace) if is_growing else UnitsAndPercent()
        self._check_growth(grant, slice_, target, allowed)
        async with self.gate.quiet():  # no call of the kubelet is being decided
            self._check_growth(grant, slice_, target, allowed)
            after = self._sized(grant, following)
            of.has_written = True
            if not await self.ledger_store.exchange(grant, after):
                raise DoesNotFitError(f"{grant.holder}: its slice was changed", reason="NoGrant")
        return after, await self._tell_limits(after)

    async def _tell_limits(self, grant: Grant) -> str:
        """Who does not know of the slice's limits yet, for people; "" where all do."""
        if grant.resized is None:
            return ""
        await self.setup.make_files(grant)
        is_told = self.setup.files.tell(grant.slice_id, grant.resized.revision)
        if lack := await self.limit_by_driver(grant):
            return f"NVIDIA's driver: {lack}"
        return "" if is_told else "its processes, which cannot be told yet"

    def _sized(self, grant: Grant, sizes: SliceSizes) -> Grant:
        ledger, view = self._living(grant), self.schemes.dividing_view(self.state())
        others = ledger.ids() | ledger.extra_ids()
        after = with_sizes(grant, sizes, self._cards(grant), others)
        if after is None:
            raise DoesNotFitError(f"{grant.holder}: no units of its card are free", reason="NoRoom")
        return self.schemes.fractions.with_size(after, view)

    def _check_growth(
        self, grant: Grant, slice_: ResizedSlice, target: UnitsAndPercent, allowed: UnitsAndPercent
    ) -> None:
        ledger, state = self._living(grant), self.state()
        others = UnitsAndPercent()
        for each in ledger.grants.values():
            if each.pod.namespace == grant.pod.namespace and each.slice_id != grant.slice_id:
                others = others.plus(sizes_of(each).grown)
        free, holders = growth_room(grant, ledger, state, self._waiting())
        check_growth(slice_, target, allowed, others, free, holders)

    def _living(self, grant: Grant) -> Ledger:
        """Without what pods have that are over by the last pass, and by the API server now.

        The kubelet takes that back, and gives to nobody what a slice has grown into.
        """
        live, specs = self.ledger_store.live, self.cluster.specs()
        gone = live.ledger.grants.keys() & live.gone - {grant.slice_id}
        return live.ledger.release(k for k in gone if is_over(live.ledger.grants[k].pod, specs))

    def _waiting(self) -> Iterator[PodHold]:
        """What containers of pods that are bound here, and do not have it yet, have been promised."""
        for spec in tuple(self.cluster.specs().values()):
            # The kubelet has admitted a static pod before its mirror comes.
            if spec.is_mirror or not spec.asks_units:
                continue
            lacking = [c for c in spec.asking if not self._fractions(spec.ref, c.name)]
            if any(c.amount(Resource.MEM) for c in lacking):
                left = replace(spec, containers=tuple(lacking))
                yield hold_of(left, self.cluster.annotations_of(spec.ref))

    async def _allowed(self, namespace: str) -> UnitsAndPercent:
        """What the operator lets grown slices of a namespace have here; DoesNotFitError where it is not known."""
        until, known = self._growth.get(namespace, (0.0, UnitsAndPercent()))
        if until <= _now():
            try:
                known = parse_growth(await self.cluster.namespace_annotation(namespace, GROWTH))
            except (ClusterError, RequestError) as error:
                text = f"namespace {namespace}: {error}"
                known = DoesNotFitError(text, reason="GrowthNotAllowed")
            self._growth = {name: of for name, of in self._growth.items() if of[0] > _now()}
            self._growth[namespace] = _now() + _GROWTH_SECONDS, known
        if isinstance(known, DoesNotFitError):
            raise known
        return known

    def _used(self, grant: Grant) -> Units:
        """The units, over all its cards, that what it uses of one card takes."""
        region, unit, each = self.setup.files.region(grant.slice_id), fraction_of(grant).unit, [0]
        # What a process that was killed had used stands there until another one starts.
        used = read_region(region) if holds_region(region) else {}
        for card in self._cards(grant):
            mib = -(-used[card.uuid].memory_bytes // _BYTES_PER_MIB) if card.uuid in used else 0
            each.append(-(-mib * card.capacity(unit) // card.memory_mib))
        return Units(max(each) * len(grant.devices))


def _keeps_more(grant: Grant) -> bool:
    """Whether a slice keeps more than a slice of its limit needs."""
    return grant.resized is not None and sizes_of(grant).is_more_than(grant.resized.limit)


def _named(text: str, spec: PodRequest) -> Mapping[str, AskedSize]:
    """What is asked of each container; RequestError where it names more than can have a slice."""
    asked, most = parse_resize(text), sum(c.amount(Resource.MEM) > 0 for c in spec.containers)
    if len(asked) > max(1, most):
        text = f"annotation {RESIZE} names {len(asked)} containers, and {most} of pod {spec.ref} ask for a slice"
        raise RequestError(text, reason="BadResize")
    return asked


def _now() -> float:
    return asyncio.get_running_loop().time()
