"""The event recorder: one log line, metric, Event and line of `why` for what happens."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.health_values import Change, ChangeKind
from gpu_device_plugin.domain.grants.call_state import Reservation
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.claims import ClaimRef
from gpu_device_plugin.domain.grants.decision_log import NOTHING_DECIDED, Decision, DecisionLog
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.compute_policy import COMPUTE_POLICY_KEY
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import DoesNotFitError, GpuPluginError, NotKnownError, RefusalError
from gpu_device_plugin.kubernetes.objects.events import EventNote
from gpu_device_plugin.web.metrics.agent_metrics import AgentMetrics

_KEPT = 1000
_log = structlog.get_logger("agent")


@dataclass(eq=False)
class EventRecorder:
    """Takes what the parts of the agent report."""

    metrics: AgentMetrics
    post: Callable[[EventNote], None]
    node_store: NodeStore
    wall_seconds: Callable[[], float]
    schemes: Schemes
    _decisions: DecisionLog = field(default_factory=lambda: DecisionLog(_KEPT))

    def decided(self, caller: Caller, chosen: Reservation) -> None:
        """A holder has been given cards; units, where there are any, follow."""
        cards = ", ".join(f"card {card.index}" for card in chosen.cards)
        self._keep(caller, chosen.asked, outcome=f"{cards}: {chosen.why}", rooms=chosen.rooms)

    def reserved(self, grant: Grant) -> None:
        self.metrics.count("claims", "granted")
        _log.info("claim prepared", **_fields(grant), cards=list(grant.devices))

    def claim_refused(self, claim: ClaimRef, pod: PodRef | None, error: GpuPluginError) -> None:
        """A claim is not prepared; the kubelet writes the Event, and asks again."""
        reason = error.reason if isinstance(error, RefusalError) else type(error).__name__
        self.metrics.count("claims", "refused", reason)
        _log.warning(
            "claim refused", claim=claim.uid, name=str(claim), reason=reason, error=str(error)
        )
        outcome = f"refused: {error}"
        if pod and all(d.outcome != outcome for d in self._decisions.of_pod(str(pod))):
            rooms = error.rooms if isinstance(error, DoesNotFitError) else ()
            asked = f"claim {claim.name}"
            self._keep(Caller(pod), asked, outcome=outcome, reason=reason, rooms=rooms)

    def released(self, grant: Grant) -> None:
        _log.info("claim given back", **_fields(grant))

    def granted(self, grant: Grant, resource: str) -> None:
        self.metrics.count("allocations", resource, "granted")
        units, cards = len(grant.ids(resource)), list(grant.devices)
        _log.info("granted", **_fields(grant), resource=resource, units=units, cards=cards)

    def given(self, call: Call) -> None:
        """Units that the kubelet has chosen are given; who has them is recorded later."""
        self.metrics.count("allocations", call.resource, "granted")
        _log.info("chosen units given", resource=call.resource, units=sorted(call.must_include))

    def refused(self, caller: Caller | None, call: Call, asked: str, error: RefusalError) -> None:
        """A call is refused: the kubelet rejects the pod with this text."""
        self.metrics.count("allocations", call.resource, "refused", error.reason)
        pod = caller.pod if caller else None
        _log.warning(
            "refused",
            pod=str(pod or ""),
            container=_container(caller),
            asked=str(call),
            reason=error.reason,
            error=str(error),
        )
        rooms = error.rooms if isinstance(error, DoesNotFitError) else ()
        self._keep(caller, asked, outcome=f"refused: {error}", reason=error.reason, rooms=rooms)
        if pod is not None and pod.name:
            self.post(EventNote(pod, error.reason, str(error), owner=_owner(caller)))

    def start_refused(self, pod: PodRef | None, resource: str, error: RefusalError) -> None:
        self.metrics.count("allocations", resource, "start-refused", error.reason)
        _log.warning("start refused", pod=str(pod or ""), reason=error.reason, error=str(error))
        if pod is not None and pod.name:
            self.post(EventNote(pod, error.reason, str(error)))
            outcome = f"refused: {error}"
            # The kubelet tries again and again; `why` shows it once.
            if all(d.outcome != outcome for d in self._decisions.of_pod(str(pod))):
                asked = f"to start a container that holds {resource}"
                self._keep(Caller(pod), asked, outcome=outcome, reason=error.reason)

    def found_against_rules(self, grant: Grant, error: RefusalError) -> None:
        """A container runs that would have been refused, had its pod spec been known; told once."""
        outcome = f"against the rules: {error}"
        if any(d.outcome == outcome for d in self._decisions.of_pod(str(grant.pod))):
            return
        _log.warning("against the rules", **_fields(grant), reason=error.reason, error=str(error))
        self._keep(Caller(grant.pod), "", outcome=outcome, reason=error.reason)
        self.post(EventNote(grant.pod, error.reason, str(error)))

    def resized(self, pod: PodRef, asked: str, text: str, *, reason: str) -> None:
        """What a running pod asks to have: it has it, waits for it, or is refused."""
        _log.info("resize", pod=str(pod), asked=asked, reason=reason, text=text)
        self._keep(Caller(pod), f"to have {asked}", outcome=text, reason=reason)
        self.post(EventNote(pod, reason, text, is_warning=reason == "ResizeRefused"))

    def ignored_disable(self, caller: Caller) -> None:
        """A container asked for no isolation, and the operator does not allow that."""
        name = _container(caller)
        text = (
            f"container {name}: CGPU_DISABLE is ignored on node {self.node_store.read().node}; the operator "
            f"allows it with --honor-cgpu-disable"
        )
        _log.info("CGPU_DISABLE ignored", pod=str(caller.pod), container=name)
        self.post(EventNote(caller.pod, "IsolationKept", text))

    def ignored_policy(self, caller: Caller) -> None:
        """A pod's annotation asks for a compute policy, and the operator does not allow that."""
        state = self.node_store.read()
        text = (
            f"annotation {COMPUTE_POLICY_KEY} is ignored on node {state.node}: the policy is "
            f"{state.compute_policy}; the operator allows it with --honor-pod-compute-policy"
        )
        _log.info("compute policy of a pod ignored", pod=str(caller.pod))
        self.post(EventNote(caller.pod, "ComputePolicyKept", text))

    def card_changed(self, change: Change) -> None:
        """A card, or NVML as a whole, went out, came back, or reported something."""
        card = self.node_store.read().card(change.uuid) if change.uuid else None
        index = card.index if card and card.is_shown else None
        name = (change.uuid or "NVML") if index is None else f"card {index} ({change.uuid})"
        _log.warning(
            "card changed", card=change.uuid, index=index, reason=change.reason, text=change.text
        )
        self.metrics.count("card_changes", change.uuid or "", change.reason)
        is_bad = change.kind is ChangeKind.FAULT
        cure = f"; {change.cure}" if change.cure else ""
        self.post(EventNote(None, change.reason, f"{name}: {change.text}{cure}", is_warning=is_bad))

    def node_note(self, reason: str, text: str, *, is_warning: bool = True) -> None:
        (_log.warning if is_warning else _log.info)("node reported", reason=reason, text=text)
        self.post(EventNote(None, reason, text, is_warning=is_warning))

    def fault(self, reason: str, text: str | None) -> None:
        """A fault keeps the whole node from serving, or (None) has ended; each text is reported once."""
        if self.node_store.set_fault(reason, text):
            if text is None:
                self.node_over(reason)
            else:
                self.node_note(reason, text)

    def node_over(self, reason: str) -> None:
        self.node_note(f"{reason}Over", f"{reason} is over", is_warning=False)

    def file_set_aside(self, text: str) -> None:
        self.metrics.count("state_files_set_aside")
        self.node_note("StateFileBad", text)

    def adopted(self, grant: Grant) -> None:
        self.metrics.count("slice_repairs", "SliceAdopted")
        _log.warning("slice adopted", **_fields(grant))
        text = f"{grant.holder}: the grant of its slice {grant.slice_id} was lost, and was made again from what the kubelet holds"
        self.post(EventNote(grant.pod if grant.pod.name else None, "SliceAdopted", text))

    def left_running(self, grant: Grant) -> None:
        """A pod is gone by the kubelet, and a process of it is not."""
        text = (
            f"pod {grant.pod} is gone, and a process of {grant.holder} still runs on "
            f"{', '.join(grant.devices)}: its units are not given again until it ends. The pod was deleted "
            f"by force; end the process on the node"
        )
        self.node_note("ProcessLeft", text)

    def slice_broken(self, grant: Grant, error: RefusalError) -> None:
        """A slice lacks files that its container needs to start, and they cannot be made."""
        _log.error("slice broken", **_fields(grant), error=str(error))
        self.post(EventNote(grant.pod if grant.pod.name else None, error.reason, str(error)))

    def limit_set(self, grant: Grant) -> None:
        """A container ran without its driver's memory limit, which was set now."""
        text = f"{grant.holder}: ran without the driver's memory limit of slice {grant.slice_id}; the limit was set now"
        _log.warning("limit set again", **_fields(grant))
        self.metrics.count("slice_repairs", "DriverLimitSet")
        self.post(EventNote(grant.pod if grant.pod.name else None, "DriverLimitSet", text))

    def library_made_again(self, grant: Grant, installed: str) -> None:
        """The version that a slice mounts was missing from the node."""
        text = f"version {grant.library_version} of the isolation library was missing and was installed again"
        if grant.library_version != installed:
            text += f" with the content of {installed}"
        _log.warning("library made again", **_fields(grant), text=text)
        self.metrics.count("slice_repairs", "IsolationLibraryMadeAgain")
        self.post(EventNote(None, "IsolationLibraryMadeAgain", text))

    def file_grown(self, grant: Grant, file: str, size: int) -> None:
        text = f"{grant.holder}: its {file} had grown to {size} bytes and was cut back"
        _log.warning("a container enlarged its file", **_fields(grant), file=file, bytes=size)
        self.metrics.count("slice_repairs", "RegionGrown")
        self.post(EventNote(grant.pod, "RegionGrown", text))

    def why(self, namespace: str, name: str, ledger: Ledger) -> str:
        """What was decided about a pod and what it holds, for people; NotKnownError: nothing."""
        wanted = f"{namespace}/{name}"
        text = self._decisions.why(wanted)
        state = self.node_store.read()
        held = [g for g in ledger.grants.values() if str(g.pod) == wanted]
        lines = [_held_line(g, self.schemes.of_grant(g).held_text(g), state.card) for g in held]
        if not lines and not text:
            raise NotKnownError(f"pod {wanted}: {NOTHING_DECIDED}")
        text = text or f"{NOTHING_DECIDED}\n"
        return text + ("\nholds now\n" + "".join(lines) if lines else "\nholds nothing now\n")

    def _keep(
        self,
        caller: Caller | None,
        asked: str,
        *,
        outcome: str,
        reason: str = "",
        rooms: tuple[str, ...] = (),
    ) -> None:
        decision = Decision(
            pod=str(caller.pod) if caller else "",
            container=_container(caller),
            asked=asked,
            rooms=rooms,
            outcome=outcome,
            reason=reason,
            at_seconds=self.wall_seconds(),
            owner=_owner(caller),
        )
        self._decisions.add(decision)


def _fields(grant: Grant) -> dict[str, str]:
    """A grant in the log: its pod, its container or its claim, and its slice."""
    holder = {"claim": grant.holder.claim} if grant.holder.claim else {"container": grant.container}
    return {"pod": str(grant.pod), **holder, "slice": grant.slice_id}


def _container(caller: Caller | None) -> str:
    return caller.container.name if caller and caller.container else ""


def _owner(caller: Caller | None) -> str:
    return caller.request.owner if caller and caller.request else ""


def _held_line(grant: Grant, text: str, card_of: Callable[[str], Card | None]) -> str:
    """`  container main: 2 units, 30 % compute (fixed) on card 0 (GPU-…), slice 0a1b…`."""
    cards = ", ".join(_card_name(uuid, card_of(uuid)) for uuid in grant.devices)
    return f"  {grant.holder}: {text} on {cards}, slice {grant.slice_id}\n"


def _card_name(uuid: str, card: Card | None) -> str:
    if card is None or not card.is_shown:
        return f"a card that is not there now ({uuid})"
    return f"card {card.index} ({uuid})"
