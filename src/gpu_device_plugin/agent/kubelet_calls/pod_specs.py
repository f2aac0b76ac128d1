"""Which pod has a name now, and what it asks for: by the API watch, which may be behind, and by GETs."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice

import structlog

from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.domain.grants.caller import Caller, Specs
from gpu_device_plugin.domain.node.pods import ContainerKind, ListedPod, PodKey, PodRef, PodRequest
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.errors import ClusterError

_log = structlog.get_logger("identify")

_PAST = 1000
"""Of so many pods it is remembered that they are past: more than come and go while a watch is behind."""
FetchSpec = Callable[[str, str], Awaitable[PodRequest | None]]


class PodSpecs:
    """The specs of the watch, but for pods that are past, and those fetched of pods that it does not have yet."""

    def __init__(self, live: LiveLedger) -> None:
        self._live = live
        self._fetched: Specs = {}
        self._past: dict[PodRef, bool] = {}
        """Pods whose spec counts no more, the latest last: refused, or (True) ended, as a GET or their grants tell."""
        self._granted: frozenset[PodRef] = frozenset()

    def known(self, watched: Specs) -> Specs:
        """All of them; none where the watch has nothing: then a pod that is missing may well be there."""
        current = self._current(watched)
        return {**current, **self._ahead(current)} if watched else watched

    @property
    def ended(self) -> frozenset[PodRef]:
        """Those with grants that have ended."""
        return frozenset(pod for pod in self._granted if self._past.get(pod))

    def keep(self, names: Collection[PodKey]) -> None:
        """Drop what was fetched of other pods: new ones may come under their names, with other specs."""
        self._fetched = {key: spec for key, spec in self._fetched.items() if key in names}

    def granted(self, pod: PodRef) -> None:
        """It got units, so it is not past, also if a call of it was refused before."""
        self._past.pop(pod, None)

    def forget(self, refused: Caller | None) -> None:
        """A call was refused: another pod may come under its pod's name. None: it is not known whose call it was."""
        if refused:
            self._add([refused.pod], is_over=False)

        def is_it(spec: PodRequest) -> bool:
            if refused:
                return spec.ref.key == refused.pod.key
            return not (spec.is_finished or self._live.ledger.of_pod(spec.ref))

        self._fetched = {key: spec for key, spec in self._fetched.items() if not is_it(spec)}

    async def read(
        self,
        watched: Specs,
        listed: Sequence[ListedPod],
        resource: str,
        fetch_spec: FetchSpec,
        *,
        is_again: bool,
    ) -> tuple[Specs, frozenset[PodKey]]:
        """With one GET for a pod that the watch lacks, or may know only as the one before it.

        `is_again`: also for each that lacks the resource, whatever is known of it.
        Also the pods whose GET has failed: they need not be those that the watch knows by their names.

        A container is asked for once a resource, and only the first call sees it as a new one: so
        what was fetched is kept until the watch has it.
        """
        there = {entry.pod.key for entry in listed}
        self.keep(there)
        current = self._current(watched)
        ahead = self._ahead(current)
        specs = {**current, **ahead}
        # Of two pods of one name either may be the one before.
        unsure = ahead.keys() & current.keys()
        wanted = [
            entry.pod
            for entry in listed
            if entry.pod.key in unsure or self._is_wanted(entry, resource, specs)
        ]
        again = [entry.pod for entry in listed if is_again and resource not in entry.resources]
        before = [spec.ref for spec in (*watched.values(), *self._fetched.values())]
        fetched, failed = await _fetch([*dict.fromkeys([*wanted, *again])], fetch_spec)
        doubtful = failed & {pod.key for pod in wanted}  # the others are known as before
        specs.update((spec.ref.key, spec) for spec in fetched)
        uids = {spec.ref.key: spec.ref.uid for spec in fetched}
        self._add(r for r in before if r.uid and uids.get(r.key, r.uid) not in {"", r.uid})
        unwatched = (there - self._current(watched).keys()) | ahead.keys()
        self._fetched = {key: specs[key] for key in unwatched & specs.keys()}
        return specs, doubtful

    def _add(self, pods: Iterable[PodRef], *, is_over: bool = True) -> None:
        self._past.update({pod: is_over or self._past.get(pod, False) for pod in pods})
        for oldest in [*islice(self._past, max(0, len(self._past) - _PAST))]:
            del self._past[oldest]

    def _current(self, watched: Specs) -> Specs:
        """The watch's specs without pods that are past; a finished one stays, because it asks for nothing."""
        granted = frozenset(grant.pod for grant in self._live.ledger.grants.values())
        self._add(self._granted - granted)
        self._granted = granted
        if not self._past:
            return watched
        return {k: s for k, s in watched.items() if s.is_finished or s.ref not in self._past}

    def _ahead(self, current: Specs) -> Specs:
        """What was fetched of pods that the watch has not, or has others of the name of."""
        return {
            key: spec
            for key, spec in self._fetched.items()
            if (spec.is_finished or spec.ref not in self._past)
            and (key not in current or current[key].ref.uid != spec.ref.uid)
        }

    def _is_wanted(self, entry: ListedPod, resource: str, specs: Specs) -> bool:
        known = specs.get(entry.pod.key)
        if resource in entry.resources:
            # The watch leaves finished pods out, and kubelets before 1.34 list them.
            return bool(specs and known is None and self._live.ledger.of_pod(entry.pod))
        # Also where a pod of this name was seen: it may have been made again since.
        return known is None or self._is_stale(known, resource)

    def _is_stale(self, known: PodRequest, resource: str) -> bool:
        """A pod of the same name came after it: that uid has grants, this one holds nothing.

        It may have other containers. What ordinary init containers hold List does not show.
        """
        init = ContainerKind.INIT
        grants = self._live.ledger.of_pod(known.ref)
        return any(grant.ids(resource) and grant.holder.kind is not init for grant in grants)


async def _fetch(
    pods: Sequence[PodRef], fetch_spec: FetchSpec
) -> tuple[Sequence[PodRequest], frozenset[PodKey]]:
    """All at once: the call as a whole has to be answered within seconds. Also those that failed."""
    errors: dict[PodKey, ClusterError] = {}

    async def fetch(pod: PodRef) -> PodRequest | None:
        try:
            return await fetch_spec(pod.namespace, pod.name)
        except ClusterError as error:
            errors[pod.key] = error
            return None

    found = await asyncio.gather(*map(fetch, pods))
    if errors:
        asked, error = few(map(str, pods)), str(next(iter(errors.values())))
        _log.warning("pod specs cannot be fetched", pods=asked, error=error)
    return tuple(filter(None, found)), frozenset(errors)
