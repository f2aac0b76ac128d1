"""A claim becomes a grant with a CDI file, and ends with its containers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from gpu_device_plugin.agent.admission.admission import Admission
from gpu_device_plugin.agent.admission.container_setup import ContainerSetup
from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
from gpu_device_plugin.agent.card_watch.mode_follower import ModeFollower
from gpu_device_plugin.agent.publish.api_cluster import ResourceClaims
from gpu_device_plugin.agent.reconcile.call_gate import CallGate
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.cdi_files import CdiFiles
from gpu_device_plugin.disk.failpoints import failpoint
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.cdi_spec import cdi_spec, claim_of_spec, prepare_devices
from gpu_device_plugin.domain.grants.claims import (
    DRIVER,
    AllocatedDevice,
    Claim,
    ClaimRef,
    PreparedDevice,
    cards_by_name,
    claim_uid,
    parts_of,
)
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant, Holder
from gpu_device_plugin.domain.node.pods import ContainerKind, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import (
    DoesNotFitError,
    GpuPluginError,
    NodeError,
    RequestError,
    StorageError,
)

_log = structlog.get_logger("claims")


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """What claims are prepared with."""

    admission: Admission
    setup: ContainerSetup
    cdi: CdiFiles
    claims: ResourceClaims
    node_store: NodeStore
    schemes: Schemes
    recorder: EventRecorder
    gate: CallGate  # keeps the device plugin's calls away meanwhile
    cards: CardInventory  # which version the NVIDIA driver has
    specs: Callable[[], Specs]
    fetch_spec: Callable[[str, str], Awaitable[PodRequest | None]]
    mode: ModeFollower
    """Chooses the allocation API, also where the API server takes none of our offers."""
    has_passed: Callable[[], bool]  # whether the kubelet has said who holds units

    @property
    def is_served(self) -> bool:
        """Whether this agent can prepare claims and give them back at all."""
        return bool(self.mode.settings.cdi_dir) and not self.mode.settings.without_claims


class Preparation:
    """Prepares claims and gives them back; each call of the kubelet's is about one of them."""

    def __init__(self, parts: ClaimParts) -> None:
        self._parts = parts
        self._state = parts.node_store.read
        self._one_at_a_time = asyncio.Lock()  # a grant with its CDI file is made or ended

    async def prepare(self, ref: ClaimRef) -> Sequence[PreparedDevice]:
        """A durable grant of exactly the cards that the scheduler chose, and its CDI file.

        Asked again, for instance after a restart of the kubelet, it is the same slice.

        Raises:
            RequestError: The claim is gone, is another one, or holds nothing of this node.
            DoesNotFitError: Another claim still has that part of the card.
        """
        pod: PodRef | None = None
        try:
            claim = await self._parts.claims.fetch(ref.namespace, ref.name)
            if claim is None or claim.ref.uid != ref.uid:
                found = "is gone" if claim is None else f"has another uid now, {claim.ref.uid}"
                raise RequestError(f"claim {ref} (uid {ref.uid}) {found}", reason="ClaimGone")
            pod = claim.pod
            return await self._prepare_claim(claim)
        except GpuPluginError as error:
            self._parts.recorder.claim_refused(ref, pod, error)
            raise

    async def _prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        _check_owner(claim)
        own = self._own_cards(claim)
        # The gate: the device plugin's calls decide on the same ledger.
        async with self._parts.gate.lock, self._one_at_a_time:
            prepared: list[PreparedDevice] = []
            for part in await self._parts_of(claim, own):
                grant = await self._reserve(part)
                prepared += prepare_devices(part, self._write(part.ref, grant))
        failpoint("prepare.before-answer")
        return prepared

    async def unprepare(self, ref: ClaimRef) -> None:
        """End the grant, and remove what it left. NodeError: the claim holds its slice as before."""
        failpoint("unprepare.before-release")
        async with self._one_at_a_time:
            for uid in {ref.uid, *self._held(), *self._parts.cdi.present()}:
                if claim_uid(uid) == ref.uid:
                    holder = Holder(PodRef(ref.namespace, ""), claim=uid)
                    await self._parts.admission.release(holder)
                    self._parts.cdi.remove(uid)

    def restore(self) -> None:
        """After a start: each claim's file is there as its grant says, and no other one.

        Files without a grant stay where grants may have been lost. A claim whose file cannot be
        restored leaves the others alone: the kubelet prepares it again, or it ends.
        """
        held = self._held()
        for uid, grant in held.items():
            known = claim_of_spec(uid, self._parts.cdi.read(uid))
            with _only_this_claim(uid, "restore its CDI file"):
                self._write(known[0] if known else ClaimRef(grant.pod.namespace, "", uid), grant)
        if not self._parts.admission.may_lack_grants:
            for uid in self._parts.cdi.present() - held.keys():
                with _only_this_claim(uid, "remove its CDI file"):
                    self._parts.cdi.remove(uid)

    @property
    def lost(self) -> frozenset[str]:
        """Uids of the claims that have a CDI file, and whose grant may have been lost."""
        if not self._parts.admission.may_lack_grants:
            return frozenset()
        return self._parts.cdi.present() - self._held().keys()

    async def rebuild(self) -> None:
        """Make lost grants again from the CDI files that are left, as far as their claims live.

        Each gets the slice that its containers have mounted. A file whose claim is over stays until
        the kubelet gives the claim back. A claim that cannot be had now is tried at the next call.
        """
        await asyncio.gather(*map(self._rebuild, self.lost))

    async def _rebuild(self, uid: str) -> None:
        """Also one that several pods have now: their containers run, so its cards are held."""
        known = claim_of_spec(uid, self._parts.cdi.read(uid))
        with _only_this_claim(uid, "make its lost grant again"):
            claim = (
                await self._parts.claims.fetch(known[0].namespace, known[0].name) if known else None
            )
            if known is None or claim is None or claim.pod is None:
                return
            async with self._parts.gate.lock, self._one_at_a_time:
                for part in parts_of(claim, self._own_cards(claim)):
                    # Not given back meanwhile, and no other claim of that name.
                    if part.ref.uid == uid and self._parts.cdi.read(uid):
                        await self._reserve(part, known[1])

    def _write(self, ref: ClaimRef, grant: Grant) -> ContainerEdits:
        """The CDI file of a claim that holds a grant; what stands in it."""
        edits = self._parts.setup.edits(grant, self._state())
        try:
            self._parts.cdi.write(ref.uid, cdi_spec(ref, grant.slice_id, edits))
        except StorageError as error:
            raise NodeError(str(error), reason="CdiDirNotWritable") from error
        return edits

    def _held(self) -> dict[str, Grant]:
        """Claim's uid -> its grant."""
        grants = self._parts.admission.ledger.grants.values()
        return {grant.holder.claim: grant for grant in grants if grant.holder.claim}

    async def _reserve(self, claim: Claim, slice_id: str = "") -> Grant:
        pod = claim.pod or PodRef(claim.ref.namespace, "")
        name = claim.name_in_pod or claim.ref.name
        holder = Holder(pod, claim=claim.ref.uid, claim_name=name)
        held = self._parts.admission.ledger.of_holder(holder)
        if held:  # also where the node has changed its mode since
            return await self._parts.admission.answer_again(held[0])
        state = self._state()
        by_name = cards_by_name(state)
        uuids = [by_name[each.device].uuid for each in claim.devices]
        self._check_known(state)
        view = self._parts.schemes.dividing_view(state)
        needed = self._parts.schemes.fractions.claim_demand(claim.devices, view)
        is_shared = False
        if not slice_id:  # containers that run already keep what they have
            others = {g.holder.claim_name for g in self._parts.admission.ledger.of_pod(pod)}
            cards = [by_name[each.device] for each in claim.devices]
            is_part = any(needed.units_per_card < card.capacity(state.unit) for card in cards)
            is_enforced = is_part or 0 < needed.core_percent < 100  # a whole card needs no enforcer
            may_be_by_driver = bool(state.driver_limits.backends)
            is_asked = others or is_enforced or may_be_by_driver
            spec = await self._spec(pod) if is_asked else None
            _check_alone(holder, others, spec)
            if is_enforced:
                state.check_runtime(spec)
            is_shared = may_be_by_driver and _is_shared(spec, name)
        return await self._parts.admission.reserve(
            holder, needed, uuids, slice_id, is_shared=is_shared
        )

    def _check_known(self, state: NodeState) -> None:
        """DoesNotFitError where another might hold the cards: the agent's own grants may be lost."""
        if not self._parts.has_passed():
            raise DoesNotFitError(
                f"who holds the cards of node {state.node} is not known yet: the kubelet's PodResources List "
                f"has not answered since the agent's start",
                reason="OtherAllocationApi",
            )

    def _own_cards(self, claim: Claim) -> Sequence[AllocatedDevice]:
        """The claim's cards of this node. RequestError: none, one twice, or an unknown one."""
        state = self._state()
        own = [each for each in claim.devices if each.driver == DRIVER and each.pool == state.node]
        if not own:
            told = ", ".join(f"{d.driver} {d.pool}/{d.device}" for d in claim.devices) or "nothing"
            raise _refused(
                f"claim {claim.ref} holds no device of {DRIVER} on node {state.node}, but {told}"
            )
        names, known = [each.device for each in own], cards_by_name(state)
        if unknown := [name for name in names if name not in known]:
            raise _refused(f"claim {claim.ref}: node {state.node} has no {', '.join(unknown)}")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise _refused(
                f"claim {claim.ref} has {', '.join(twice)} of node {state.node} more than once"
            )
        return own

    async def _parts_of(self, claim: Claim, own: Sequence[AllocatedDevice]) -> Sequence[Claim]:
        """Its requests, each of one container alone: of two, the second card would hide the first."""
        parts, pod = parts_of(claim, own), claim.pod
        if len(parts) == 1 or pod is None or self._held().keys() >= {p.ref.uid for p in parts}:
            return parts
        spec = await self._spec(pod)
        has_init = spec and any(c.asks for c in spec.containers if c.kind is ContainerKind.INIT)
        if claim.name_in_pod or not spec or has_init:
            why = "an init container asks as well" if has_init else "its pod is not known yet"
            why = "containers that name it get all of them" if claim.name_in_pod else why
            names = ", ".join(part.devices[0].request for part in parts)
            raise _refused(
                f"claim {claim.ref} has the requests {names}, and {why}: a container gets the cards of "
                f"one request",
                reason="SeveralRequests",
            )
        return parts

    async def _spec(self, pod: PodRef) -> PodRequest | None:
        known = self._parts.specs().get(pod.key)
        if known is None or known.ref.uid != pod.uid:  # the watch is late
            known = await self._parts.fetch_spec(*pod.key)
        return known if known and known.ref.uid == pod.uid else None


_refused = partial(RequestError, reason="ForeignClaim")


def _is_shared(spec: PodRequest | None, claim: str) -> bool:
    """Whether containers that may run at once name the claim; not known is yes."""
    if spec is None:
        return True
    kinds = [each.kind for each in spec.containers if claim in each.claims]
    has_sidecar = ContainerKind.SIDECAR in kinds and len(kinds) > 1
    return has_sidecar or kinds.count(ContainerKind.APP) > 1


def _check_owner(claim: Claim) -> None:
    """RequestError unless the claim was made for the pod that has it, and for no other."""
    if claim.pod is None or claim.is_shared:
        raise _refused(f"claim {claim.ref} is not reserved for one pod")
    if claim.owners != {claim.pod.uid}:
        owners = ", ".join(sorted(claim.owners)[:3]) or "no pod"
        raise _refused(
            f"claim {claim.ref} is reserved for pod {claim.pod} (uid {claim.pod.uid}), but is "
            f"owned by {owners}"
        )


def _check_alone(holder: Holder, others: set[str], spec: PodRequest | None) -> None:
    """RequestError where a container names another claim of cards: it would see the cards of one."""
    for container in spec.containers if spec else ():
        if holder.claim_name in container.claims and others.intersection(container.claims):
            raise _refused(
                f"container {container.name} of pod {holder.pod} names several claims of cards "
                f"({', '.join(container.claims)}), and would get the cards of one; name one",
                reason="SeveralClaims",
            )


@contextmanager
def _only_this_claim(uid: str, step: str) -> Iterator[None]:
    """What goes wrong with one claim leaves the others alone."""
    try:
        yield
    except GpuPluginError as error:
        _log.warning("claim waits", claim=uid, step=step, error=str(error))
