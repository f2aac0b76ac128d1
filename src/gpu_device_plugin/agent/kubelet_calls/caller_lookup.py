"""Identity: which pod a call is for. The call does not say, so the kubelet's pod list has to.

During GetPreferredAllocation, PodResources List contains the pod that is being admitted, with
none of the asked resource yet (docs/architecture.md). Its pod spec comes from the API watch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.domain.grants.caller import Call, Caller, Specs, find_caller
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import Witnesses, not_taken_back
from gpu_device_plugin.domain.node.pods import ContainerKind, ListedPod, PodKey, PodRef, PodRequest
from gpu_device_plugin.domain.scheme_registry import OF_FRACTIONS
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.errors import ClusterError, KubeletError, UnknownPodError

_log = structlog.get_logger("identify")


@dataclass(frozen=True, slots=True)
class Sources:
    """What the kubelet and the API know."""

    list_pods: Callable[[], Awaitable[Sequence[ListedPod]]]
    """PodResources List; never called while an Allocate is in flight."""
    specs: Callable[[], Specs]
    fetch_spec: Callable[[str, str], Awaitable[PodRequest | None]]  # one GET with a short deadline
    witnesses: Callable[[Sequence[ListedPod], Specs, frozenset[PodRef]], Witnesses]


@dataclass(frozen=True, slots=True)
class FoundCaller:
    """The pod that makes a call, and the grants that still count for the decision."""

    caller: Caller
    live: Ledger
    """Grants of fractions by units, but for those of pods that may be over."""
    all_live: Ledger  # such grants of whole devices and of claims too
    held: frozenset[str]  # unit ids that the container holds already, by the kubelet's List


class CallerLookup:
    """Finds the pod that asks. Remembers which pods it has seen, for when the API is away."""

    def __init__(self, sources: Sources, live: LiveLedger) -> None:
        self.sources = sources
        self._live = live
        self._seen: dict[PodKey, str] = {}  # and their uids, as far as a spec has told them
        self._holding: frozenset[PodKey] = frozenset()  # those of `_seen` that held units
        self._fetched: Specs = {}
        self._replaced: frozenset[PodRef] = frozenset()
        """Pods of whose end a GET has told: another has the name."""
        self._past: frozenset[PodRef] = frozenset()
        """Pods of the watch that ask no more: they were refused, or their grants are over."""
        self._granted: frozenset[PodRef] = frozenset()
        self._over: frozenset[str] = frozenset()
        self.left_running: frozenset[str] = frozenset()
        """Pods that were gone at the last call, but for a process."""

    def remember(self, listed: Sequence[ListedPod]) -> None:
        """Pods that the kubelet has had before; none of them can be the one that asks next."""
        self._seen = {entry.pod.key: self._seen.get(entry.pod.key, "") for entry in listed}
        self._holding = frozenset([entry.pod.key for entry in listed if entry.resources])

    def remember_too(self, listed: Iterable[PodRef], steady: Iterable[PodRef]) -> None:
        """Pods of a pass, and those of two passes in a row, of which none is just being admitted."""
        names = frozenset(pod.key for pod in steady)
        there = (self._seen.keys() & {pod.key for pod in listed}) | names
        self._seen = {key: self._seen.get(key, "") for key in there}
        known = {spec.ref for spec in self.sources.specs().values()}
        self._past = frozenset(pod for pod in self._past if pod in known or pod.key in there)
        # One that is gone may be made again under its name, with another spec.
        self._fetched = {key: spec for key, spec in self._fetched.items() if key in names}

    def forget(self, refused: Caller | None) -> None:
        """A call was refused, whoever made it: its pod may be made again under its name, with another spec."""
        self._past |= {refused.pod} if refused else set()
        self._fetched = {
            key: spec
            for key, spec in self._fetched.items()
            if self._live.ledger.of_pod(spec.ref) and not (refused and refused.pod.key == key)
        }

    def specs(self) -> Specs:
        """The pod specs of the watch, and those fetched of pods that it does not have yet.

        None at all where the watch has nothing: then a pod that is missing here may well be there.
        """
        watched = self.sources.specs()
        return {**self._fetched, **self._current(watched)} if watched else watched

    def _current(self, watched: Specs) -> Specs:
        """Those of the watch but for pods whose names others may have, or have as a GET has told."""
        granted = frozenset(grant.pod for grant in self._live.ledger.grants.values())
        self._past |= self._granted - granted
        self._granted = granted
        if not (self._past or self._replaced):
            return watched

        def is_other(spec: PodRequest) -> bool:
            is_past = spec.ref in self._past and not spec.is_finished
            return is_past or spec.ref in self._replaced

        return {key: spec for key, spec in watched.items() if not is_other(spec)}

    async def identify(
        self,
        call: Call,
        session: Caller | None,
        admitting: PodRef | None = None,
        offered: frozenset[str] | None = None,
    ) -> FoundCaller:
        """Who makes this call; the kubelet offers these units. UnknownPodError: nobody can tell safely."""
        listed = await self._listed()
        specs, doubtful = await self._specs_for(listed, call)
        sure = {key: spec for key, spec in specs.items() if key not in doubtful}
        # One that held units, holds none and has no spec is another: a static pod's file was edited.
        empty = {entry.pod.key for entry in listed if not entry.resources}
        others = ((self._holding & empty) - sure.keys()) | self._replaced_since(sure)
        seen = self._seen.keys() - others
        self.remember(listed)
        self._seen |= {key: sure[key].ref.uid for key in self._seen.keys() & sure.keys()}
        if session is not None and session.pod.key not in self._seen:
            session = None
        own = OF_FRACTIONS.ledger(self._live.ledger)
        mine, known = OF_FRACTIONS.pods(listed), OF_FRACTIONS.specs(sure)
        caller = find_caller(call, mine, known, own, seen, session, admitting)
        witnesses = self.sources.witnesses(listed, specs, self._replaced)
        self._over = witnesses.over(self._live.ledger)
        if offered is not None:
            ledger, over = self._live.ledger, self._over
            self._over -= not_taken_back(ledger, over, call.resource, offered, witnesses.ended)
        left = witnesses.left_running(self._live.ledger)
        self.left_running = frozenset(str(self._live.ledger.grants[key].pod) for key in left)
        living = self.living
        return FoundCaller(caller, OF_FRACTIONS.ledger(living), living, _held(caller, listed))

    def _replaced_since(self, specs: Specs) -> frozenset[PodKey]:
        """Names under which other pods were seen, by the uids."""
        known = ((key, uid, specs[key].ref.uid) for key, uid in self._seen.items() if key in specs)
        return frozenset(key for key, before, now in known if before and now and before != now)

    @property
    def living(self) -> Ledger:
        """The grants, but for those of pods that may be over by the last List."""
        return self._live.ledger.release(self._over)

    async def _listed(self) -> Sequence[ListedPod]:
        try:
            return await self.sources.list_pods()
        except KubeletError as error:
            raise UnknownPodError(
                f"the kubelet does not say which pod this is: {error}; create the pod again",
                reason="KubeletSilent",
            ) from error

    async def _specs_for(
        self, listed: Sequence[ListedPod], call: Call
    ) -> tuple[Specs, frozenset[PodKey]]:
        """The pod specs of the watch; for a pod that it lacks, or knows only under an old uid, one GET.

        Also the pods whose GET has failed: they need not be those that the watch knows by their names.

        A container is asked for once a resource, and only the first call sees it as a new one: so
        what was fetched is kept until the watch has it.
        """
        watched = self.sources.specs()
        specs = {**self._fetched, **self._current(watched)}
        # Nearly all hold what is asked for, and are known.
        asking = [e for e in listed if call.resource not in e.resources or e.pod.key not in specs]
        wanted = [entry.pod for entry in asking if self._needs_spec(entry, call, specs)]
        fetched, doubtful = await self._fetch(wanted)
        specs.update((spec.ref.key, spec) for spec in fetched)
        again = {spec.ref.key for spec in fetched}
        before = (spec for key, spec in self._fetched.items() if key in again)
        told = (spec.ref for spec in (*watched.values(), *before))
        over = {pod for pod in told if pod.uid and not _may_be(pod, specs.get(pod.key))}
        kept = {pod for pod in self._replaced if not _may_be(pod, watched.get(pod.key))}
        self._replaced = frozenset(over | {*filter(self._live.ledger.of_pod, kept)})
        there = {entry.pod.key for entry in listed} - self._current(watched).keys()
        self._fetched = {key: specs[key] for key in there & specs.keys()}
        return specs, doubtful

    def _needs_spec(self, entry: ListedPod, call: Call, specs: Specs) -> bool:
        known = specs.get(entry.pod.key)
        if call.resource in entry.resources:
            # The watch leaves finished pods out, and kubelets before 1.34 list them.
            return bool(specs and known is None and self._live.ledger.of_pod(entry.pod))
        # Also where a pod of this name was seen: it may have been made again since.
        return known is None or self._is_stale(known, call.resource)

    async def _fetch(
        self, pods: Sequence[PodRef]
    ) -> tuple[Sequence[PodRequest], frozenset[PodKey]]:
        """All at once: the call as a whole has to be answered within seconds. Also those that failed."""
        errors: dict[PodKey, ClusterError] = {}

        async def fetch(pod: PodRef) -> PodRequest | None:
            try:
                return await self.sources.fetch_spec(pod.namespace, pod.name)
            except ClusterError as error:
                errors[pod.key] = error
                return None

        found = await asyncio.gather(*map(fetch, pods))
        if errors:
            asked = few(map(str, pods))
            _log.warning(
                "pod specs cannot be fetched", pods=asked, error=str(next(iter(errors.values())))
            )
        return tuple(filter(None, found)), frozenset(errors)

    def _is_stale(self, known: PodRequest, resource: str) -> bool:
        """A pod of the same name came after it: that uid has grants, this one holds nothing.

        It may have other containers. What ordinary init containers hold List does not show.
        """
        init = ContainerKind.INIT
        grants = self._live.ledger.of_pod(known.ref)
        return any(grant.ids(resource) and grant.holder.kind is not init for grant in grants)


def _may_be(pod: PodRef, spec: PodRequest | None) -> bool:
    return spec is not None and spec.ref.uid in {"", pod.uid}


def _held(caller: Caller, listed: Iterable[ListedPod]) -> frozenset[str]:
    container = caller.container.name if caller.container else ""
    key = caller.pod.key
    mine = [entry.held.get(container, {}) for entry in listed if entry.pod.key == key]
    return frozenset().union(*(ids for by_resource in mine for ids in by_resource.values()))
