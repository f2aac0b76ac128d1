"""Identity: the kubelet's calls do not name a pod; its own List and the pod specs identify it.

This relies on what a real kubelet was seen to do. The calls of a node are strictly serial. A
pod's containers are admitted in order, init containers first. The calls for one container come
together, its resources in random order; during them the pod is in List, and no pod that will be
admitted later is. So two equal pods that both wait are never confused: the second one enters
List only when the first one has all it asked for, was refused, or is gone. If this does not
hold, the answer is a refusal, never a guess.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_device_plugin.domain.grants.grant import Grant, Holder
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import is_over
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodKey,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.errors import UnknownPodError

Specs: TypeAlias = Mapping[PodKey, PodRequest]


class NobodyAsksError(UnknownPodError):
    """No pod that is known can be asking."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the kubelet asks for, in GetPreferredAllocation or in Allocate.

    The container gets `size` units in all, those of `must_include`, reused from init containers, in any case.
    """

    resource: str
    size: int
    must_include: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """`example.com/thing: 2`."""
        return f"{self.resource}: {self.size}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Which container asks; without the pod spec only which pod, and without uid if List names it."""

    pod: PodRef
    request: PodRequest | None = None
    container: ContainerRequest | None = None

    @property
    def holder(self) -> Holder:
        """The container as the holder of a grant, as far as it is known."""
        if self.container is None:
            return Holder(self.pod)
        return Holder(self.pod, self.container.name, self.container.kind, self.container.index)

    def __str__(self) -> str:
        """`namespace/name`, with the container where it is known."""
        return f"{self.pod} (container {self.container.name})" if self.container else str(self.pod)


def find_caller(  # noqa: PLR0913, PLR0917 - each argument is another source
    call: Call,
    listed: Sequence[ListedPod],
    specs: Specs,
    ledger: Ledger,
    seen: Collection[PodKey],
    session: Caller | None = None,
    admitting: PodRef | None = None,
) -> Caller:
    """The container behind a GetPreferredAllocation call.

    List is read inside this call; our grants show what ordinary init containers hold, which List does
    not. `seen` were in List at an earlier call, `session` was decided last, and `admitting` was
    granted something a moment ago.

    UnknownPodError: No pod can be asking, or several can; the text names them.
    """
    possible = _possible(call, listed, ledger)
    known = [(spec, pod) for pod in possible if (spec := specs.get(pod.pod.key)) is not None]
    asking = [c for spec, pod in known if (c := _asks(call, spec, pod, ledger)) is not None]
    asking = asking or [c for spec, pod in known if (c := _asks_again(call, spec, pod)) is not None]
    specless = (
        [] if len(known) == len(possible) else [p for p in possible if p.pod.key not in specs]
    )
    new = [caller for caller in asking if caller.pod.key not in seen] or [
        Caller(pod.pod) for pod in specless if pod.pod.key not in seen and not pod.resources
    ]
    last = _of_session(session, asking, specless)
    if last and all(caller.pod.is_same_name(last.pod) for caller in new):
        return last
    is_reuse = len(possible) < len(listed)
    # A static pod is in the API only when all its containers have been admitted.
    goes_on = [p.pod for p in specless if is_reuse or (admitting and admitting.is_same_name(p.pod))]
    candidates = new or [*asking, *map(Caller, goes_on)]
    likeliest = _next(candidates, call, ledger, admitting) or _only(call, candidates, listed)
    is_sure = not _is_forgotten(likeliest, call, ledger)
    rivals = [] if is_sure else [_rival(likeliest, pod, call, specs) for pod in possible]
    return _only(call, [likeliest, *filter(None, rivals)], listed)


def find_allocating_caller(
    call: Call, specs: Specs, ledger: Ledger, session: Caller | None = None
) -> Grant | Caller:
    """The container behind an Allocate call that no GetPreferredAllocation came before.

    The kubelet does not ask first if a container reuses an init container's units, if exactly as
    many are free as asked, or if it asks again for what it gave. List must not be read here
    (#137534), so the ledger and the pod specs have to identify the container.

    The call's `must_include` are the units that the kubelet gives; `session` was decided last. The
    answer is the grant that is asked for again, or else the container that asks for a new one.

    UnknownPodError: No pod can be asking, several can, or a living pod has the units.
    """
    ids = call.must_include
    # Without the API no pod is over.
    holders = [
        g for g in ledger.holders(ids) if not (specs and g.is_checked and is_over(g.pod, specs))
    ]
    same = [grant for grant in holders if frozenset(grant.ids(call.resource)) == ids]
    for grant in same:
        if not grant.holder.is_handed_on:
            return grant
    if holders:
        return _heir(call, holders, specs, ledger) or _repeat_or_refuse(call, same, holders)
    waiting = [_by_ledger(spec, call, ledger) for spec in specs.values() if not spec.is_finished]
    asking = [caller for caller in waiting if caller is not None]
    return _of_session(session, asking, ()) or _only(call, asking, ())


def _asks(call: Call, spec: PodRequest, entry: ListedPod, ledger: Ledger) -> Caller | None:
    """The first container that lacks something, if `call` is what it lacks."""
    if call.resource in entry.resources and len(spec.containers) == 1:
        return None  # as nearly all

    def held(container: ContainerRequest) -> Mapping[str, object]:
        if container.kind is ContainerKind.INIT:  # which List does not show
            later = spec.containers[spec.containers.index(container) + 1 :]
            is_past = any(any(entry.held.get(each.name, {}).values()) for each in later)
            return container.amounts if is_past else _granted(ledger, spec.ref, container)
        return entry.held.get(container.name, {})

    return _first_lacking(spec, call, held)


def _asks_again(call: Call, spec: PodRequest, entry: ListedPod) -> Caller | None:
    """An init container for which a restarted kubelet forgot what it gave.

    Only while no other container holds anything; after that init containers have ended.
    """
    if spec.is_finished or call.must_include or entry.resources:
        return None
    inits = (c for c in spec.containers if c.kind is ContainerKind.INIT)
    container = next((c for c in inits if c.amount(call.resource) == call.size), None)
    return Caller(spec.ref, spec, container) if container else None


def _first_lacking(
    spec: PodRequest, call: Call, held: Callable[[ContainerRequest], Mapping[str, object]]
) -> Caller | None:
    """The only container that can be asking, because they are admitted in order."""
    if spec.is_finished:
        return None
    for container in spec.containers:
        has = held(container)
        lacking = [r for r, n in container.amounts.items() if n and not has.get(r)]
        if lacking:
            is_it = call.resource in lacking and container.amount(call.resource) == call.size
            return Caller(spec.ref, spec, container) if is_it else None
    return None


def _by_ledger(spec: PodRequest, call: Call, ledger: Ledger) -> Caller | None:
    return _first_lacking(spec, call, lambda c: _granted(ledger, spec.ref, c))


def _granted(ledger: Ledger, pod: PodRef, container: ContainerRequest) -> Mapping[str, object]:
    """The units of the container's grant, by resource."""
    grant = ledger.of_container(pod, container.name)
    return grant.units if grant is not None else {}


def _next(
    candidates: Sequence[Caller], call: Call, ledger: Ledger, pod: PodRef | None
) -> Caller | None:
    """The next container of the pod that is being admitted, beside pods that may never ask."""
    certain = [caller for caller in candidates if not _is_forgotten(caller, call, ledger)]
    is_admitted = len(certain) == 1 and pod is not None and certain[0].pod.is_same_name(pod)
    return certain[0] if is_admitted else None


def _is_forgotten(caller: Caller, call: Call, ledger: Ledger) -> bool:
    """Whether the kubelet has lost what it gave this container: then it need not be the one."""
    container = caller.container
    return container is not None and call.resource in _granted(ledger, caller.pod, container)


def _rival(caller: Caller, entry: ListedPod, call: Call, specs: Specs) -> Caller | None:
    """Another pod that may make the call.

    A kubelet that admitted it before it knew our resources, or that lost what it gave, asks when it
    starts a container, whichever of the pod's others run.
    """
    if entry.resources or entry.pod.is_same_name(caller.pod):
        return None
    spec = specs.get(entry.pod.key)
    if spec is None:
        return Caller(entry.pod)
    container = next((c for c in spec.containers if c.amount(call.resource) == call.size), None)
    return Caller(spec.ref, spec, container) if container and not spec.is_finished else None


def _possible(call: Call, listed: Sequence[ListedPod], ledger: Ledger) -> Sequence[ListedPod]:
    """Only the pod whose units the call reuses, if there is one; else all."""
    owners = {grant.pod.key for grant in ledger.holders(call.must_include)}
    return [pod for pod in listed if pod.pod.key in owners] or listed


def _of_session(
    session: Caller | None, asking: Iterable[Caller], specless: Iterable[ListedPod]
) -> Caller | None:
    """The pod that was decided last, if it can still be asking: its calls come together."""
    if session is None:
        return None
    last = next((caller for caller in asking if caller.pod.is_same_name(session.pod)), None)
    is_there = last is not None or any(p.pod.is_same_name(session.pod) for p in specless)
    return session if session.container is None and is_there else last


def _heir(call: Call, holders: Sequence[Grant], specs: Specs, ledger: Ledger) -> Caller | None:
    """The container that reuses an ordinary init container's units: the next one of its pod."""
    pods = {grant.pod.key: grant.pod for grant in holders}
    if len(pods) > 1 or not all(grant.holder.is_handed_on for grant in holders):
        return None
    key, pod = pods.popitem()
    return _by_ledger(specs[key], call, ledger) if key in specs else Caller(pod)


def _repeat_or_refuse(call: Call, same: Sequence[Grant], holders: Sequence[Grant]) -> Grant:
    """The grant of an init container that is asked for again; else a refusal."""
    if same:
        return same[0]
    names = few(f"{g.pod} (container {g.container})" for g in holders)
    raise UnknownPodError(
        f"the kubelet gives away units of {call} that are held already, by {names}; "
        f"it refuses the pod instead of giving them away twice; create it again",
        reason="UnitsHeld",
    )


def _only(call: Call, candidates: Sequence[Caller], listed: Sequence[ListedPod]) -> Caller:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise UnknownPodError(
            f"{len(candidates)} pods may be asking for {call}, and the kubelet does not say which: "
            f"{few(map(str, candidates))}; refused rather than guessed, create them one after the other",
            reason="UnknownPod",
        )
    raise NobodyAsksError(
        f"no pod of this node is known to wait for {call}; the kubelet lists "
        f"{few(str(entry.pod) for entry in listed) or 'no pod'}; create the pod again, and see "
        f"whether the agent reaches the API server",
        reason="UnknownPod",
    )
