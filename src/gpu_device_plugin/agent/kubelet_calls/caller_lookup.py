"""Identity: which pod a call is for. The call does not say, so the kubelet's pod list has to.

During GetPreferredAllocation, PodResources List contains the pod that is being admitted, with
none of the asked resource yet (docs/architecture.md). Its pod spec comes from the API watch.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from gpu_device_plugin.agent.kubelet_calls.pod_specs import FetchSpec, PodSpecs
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.domain.grants.caller import Call, Caller, NobodyAsksError, Specs, find_caller
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import Witnesses, not_taken_back
from gpu_device_plugin.domain.node.pods import ListedPod, PodKey, PodRef
from gpu_device_plugin.domain.scheme_registry import OF_FRACTIONS
from gpu_device_plugin.errors import KubeletError, UnknownPodError


@dataclass(frozen=True, slots=True)
class Sources:
    """What the kubelet and the API know."""

    list_pods: Callable[[], Awaitable[Sequence[ListedPod]]]
    """PodResources List; never called while an Allocate is in flight."""
    specs: Callable[[], Specs]
    fetch_spec: FetchSpec  # one GET with a short deadline
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
        self.pods = PodSpecs(live)
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
        self.pods.keep(names)

    def specs(self) -> Specs:
        """As far as they are known without asking."""
        return self.pods.known(self.sources.specs())

    async def identify(
        self,
        call: Call,
        session: Caller | None,
        admitting: PodRef | None = None,
        offered: frozenset[str] | None = None,
    ) -> FoundCaller:
        """Who makes this call; the kubelet offers these units. UnknownPodError: nobody can tell safely."""
        listed = await self._listed()
        remembered = self._seen, self._holding
        try:
            caller, specs = await self._find(listed, call, session, admitting)
        except NobodyAsksError:  # perhaps the text known under its name is of the pod before
            self._seen, self._holding = remembered
            caller, specs = await self._find(listed, call, session, admitting, is_again=True)
        witnesses = self.sources.witnesses(listed, specs, self.pods.ended)
        self._over = witnesses.over(self._live.ledger)
        if offered is not None:
            ledger, over = self._live.ledger, self._over
            self._over -= not_taken_back(ledger, over, call.resource, offered, witnesses.ended)
        running = witnesses.left_running(self._live.ledger)
        self.left_running = frozenset(str(self._live.ledger.grants[key].pod) for key in running)
        living = self.living
        return FoundCaller(caller, OF_FRACTIONS.ledger(living), living, _held(caller, listed))

    async def _find(
        self,
        listed: Sequence[ListedPod],
        call: Call,
        session: Caller | None,
        admitting: PodRef | None,
        *,
        is_again: bool = False,
    ) -> tuple[Caller, Specs]:
        """Who asks, and the specs; `is_again`: a GET for each pod that may, also where it is known."""
        watched, fetch = self.sources.specs(), self.sources.fetch_spec
        specs, doubtful = await self.pods.read(
            watched, listed, call.resource, fetch, is_again=is_again
        )
        certain = {key: spec for key, spec in specs.items() if key not in doubtful}
        # One that held units, holds none and has no spec is another: a static pod's file was edited.
        empty = {entry.pod.key for entry in listed if not entry.resources}
        others = ((self._holding & empty) - certain.keys()) | self._replaced_since(certain)
        seen = self._seen.keys() - others
        self.remember(listed)
        self._seen |= {key: certain[key].ref.uid for key in self._seen.keys() & certain.keys()}
        if session is not None and session.pod.key not in self._seen:
            session = None
        own = OF_FRACTIONS.ledger(self._live.ledger)
        own_listed, own_specs = OF_FRACTIONS.pods(listed), OF_FRACTIONS.specs(certain)
        return find_caller(call, own_listed, own_specs, own, seen, session, admitting), specs

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


def _held(caller: Caller, listed: Iterable[ListedPod]) -> frozenset[str]:
    container = caller.container.name if caller.container else ""
    key = caller.pod.key
    by_container = [entry.held.get(container, {}) for entry in listed if entry.pod.key == key]
    return frozenset().union(*(ids for by_resource in by_container for ids in by_resource.values()))
