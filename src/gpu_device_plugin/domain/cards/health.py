"""Health: which cards may be given away, by NVML's reports and the operator's rules.

A card is healthy when it has no fault and NVML answers. A fault is named by its reason (`XID79`,
`Lost`, …) and ends in one of three ways:

* `probe`: probes of the card have been clean for `recovery_seconds` since its last XID;
* `reset`: the driver was loaded again, the node rebooted, NVML's recovery action says
  "none", or the operator says so. "None" counts at once if the action was something else
  after the fault, else only when it has stood as long as clean probes must: the driver may
  take a moment to ask for its reset, and a card must not come back in between;
* `inventory`: the driver shows the card without the cause, for instance no longer in MIG mode; or
  the operator's list of cards that are out names it no more.

While NVML asks for a recovery action the card is unhealthy, whatever faults end, and the
operator's `recover` is refused. Until NVML has shown its cards for the first time since the agent
started, none is healthy (`NVMLUnanswered`).

A fault belongs to one card and takes out that card only, or those of its MIG instances that an XID
names. An XID that names no card is
only reported, unless there is just one card. Taking out all cards, as other plugins do, would
turn one broken card into a broken node. If NVML as a whole does not answer (`NVMLStalled`,
`DriverMissing`), that is no fault of a card, but takes all out while it lasts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpu_device_plugin.domain.cards.fault_cures import fault_cure
from gpu_device_plugin.domain.cards.health_values import (
    TAKEN_OUT,
    CardHealth,
    Change,
    ChangeKind,
    Fault,
    Health,
    HealthRules,
    Outage,
    Recovery,
    XidAction,
)
from gpu_device_plugin.domain.cards.nvml_reports import (
    NO_ANSWER,
    Answered,
    CardReport,
    DriverMissing,
    Inventory,
    NvmlReport,
    Probe,
    Stalled,
    Xid,
)

# nvmlDeviceGpuRecoveryAction_t of nvml.h.
_ACTIONS = {
    1: "a reset of the card",
    2: "a reboot of the node",
    3: "its P2P traffic to be drained",
    4: "its P2P traffic to be drained and the card to be reset",
    5: "its IMEX domain to be recovered",
    6: "a reset of its bus",
    7: "a reboot of the system",
}


def recovery_action_text(card: CardHealth) -> str:
    """Why the card stays out even if the operator clears its faults; "" if it does not."""
    if card.recovery_action:
        asked = action_text(card.recovery_action)
        return f"NVML still asks for {asked}; after that the card comes back by itself"
    if any(fault.is_action_asked for fault in card.faults):
        return "NVML has asked for a recovery action, and has not said since that it is done"
    cause = next((f.text for f in card.faults if f.recovery is Recovery.INVENTORY), "")
    if cause:
        return cause
    if any(not fault.is_probed for fault in card.faults):
        return (
            "it has not answered since its fault, so it is not known what NVML asks for; try again in "
            "some seconds"
        )
    return ""


def unshareable(report: CardReport, now_seconds: float, rules: HealthRules) -> Fault | None:
    """Why a card that the driver shows cannot be shared; None if it can."""
    if report.uuid in rules.left_mig:
        text = (
            "the card has left MIG mode while pods hold instances of it; it is offered when they have "
            "ended"
        )
        return Fault("MigLeft", text, Recovery.INVENTORY, now_seconds, now_seconds)
    if report.is_mig and report.uuid not in rules.takes_mig:
        text = (
            "the card is in MIG mode, and its instances are not offered: pods hold what the card was "
            "before, or the MIG strategy is none; then set --mig-strategy mixed or single (chart: "
            f"migStrategy), or end MIG mode with `nvidia-smi -i {report.index} -mig 0`"
        )
        return Fault("MigEnabled", text, Recovery.INVENTORY, now_seconds, now_seconds)
    if report.memory_mib <= 0 and not report.hardware.is_unified:
        text = "NVML does not report the card's memory; the card is offered when NVML does"
        return Fault("MemoryUnknown", text, Recovery.INVENTORY, now_seconds, now_seconds)
    return None


def silent_fault(now_seconds: float) -> Fault:
    """Why a card is out whose calls take long."""
    text = "NVML's calls on it take 5 s or longer, or do not return"
    return Fault("ProbeHangs", text, Recovery.PROBE, now_seconds, now_seconds, is_probed=True)


def missing_fault(inventory: Inventory, uuid: str, now_seconds: float) -> Fault:
    """Why a card that was there is not shown: it does not answer, cannot be opened, or is gone."""
    own = [slot for slot in inventory.unreadable if slot.uuid == uuid]
    slots = own or [slot for slot in inventory.unreadable if not slot.uuid]
    if slots and all(slot.error == NO_ANSWER for slot in slots):
        return silent_fault(now_seconds)
    if slots:
        errors = ", ".join(f"card {slot.index}: {slot.error}" for slot in slots)
        text = f"NVML cannot open it ({errors})"
        return Fault("Lost", text, Recovery.PROBE, now_seconds, now_seconds)
    text = "NVML no longer shows the card"
    return Fault("Unplugged", text, Recovery.PROBE, now_seconds, now_seconds)


def apply_inventory(
    card: CardHealth, report: CardReport, now_seconds: float, rules: HealthRules
) -> CardHealth:
    """The card with exactly those faults of inventory and rules that these give it."""
    shown = unshareable(report, now_seconds, rules)
    reported = [] if shown is None else [shown]
    if report.uuid in rules.taken_out:
        text = (
            "an operator takes it out by the ConfigMap unhealthy-gpu-NODE of kube-system; it is offered "
            "again when no entry there names it"
        )
        reported.append(Fault(TAKEN_OUT, text, Recovery.INVENTORY, now_seconds, now_seconds))
    for fault in reported:
        card = with_fault(card, fault)
    reasons = {fault.reason for fault in reported}
    kept = (f for f in card.faults if f.recovery is not Recovery.INVENTORY or f.reason in reasons)
    there = {"", *(instance.uuid for instance in report.hardware.instances)}
    return replace(card, faults=tuple(fault for fault in kept if fault.instance in there))


class HealthStep(NamedTuple):
    """Health after a report or a request, and what that changed."""

    health: Health
    changes: tuple[Change, ...] = ()


def follow_rules(
    health: Health, inventory: Inventory, now_seconds: float, rules: HealthRules
) -> HealthStep:
    """Health after a change of the rules: what NVML last showed stays as old as it is."""
    reports = {report.uuid: report for report in inventory.cards}
    cards = tuple(
        apply_inventory(card, reports[card.uuid], now_seconds, rules)
        if card.is_shown and card.uuid in reports
        else card
        for card in health.cards
    )
    after = replace(health, cards=cards)
    return HealthStep(after, _changes(health, after))


def apply_probe(
    card: CardHealth, probe: Probe, now_seconds: float, recovery_seconds: float
) -> CardHealth:
    """The card after a clean probe."""
    if probe.recovery_action:
        card = _note_action(card, probe.recovery_action, now_seconds)
    clean_since = now_seconds if card.clean_since_seconds is None else card.clean_since_seconds
    quiet_since = max([clean_since, *(fault.last_seconds for fault in card.faults)])
    is_settled = now_seconds - quiet_since >= recovery_seconds
    is_asked = bool(probe.recovery_action)
    open_faults = (  # NVML's "none" means "done" once it has asked for an action
        replace(fault, is_action_asked=fault.is_action_asked or is_asked, is_probed=True)
        for fault in card.faults
    )
    faults = tuple(fault for fault in open_faults if not _closes(fault, probe, is_settled))
    return replace(
        card, faults=faults, clean_since_seconds=clean_since, recovery_action=probe.recovery_action
    )


def _note_action(card: CardHealth, action: int, now_seconds: float) -> CardHealth:
    """The card, out while NVML asks for an action, also where the XID before it was missed."""
    if any(fault.recovery is Recovery.RESET for fault in card.own_faults):
        return card
    text = f"NVML asks for {action_text(action)}"
    return with_fault(card, Fault("RecoveryAsked", text, Recovery.RESET, now_seconds, now_seconds))


def action_text(action: int) -> str:
    """What NVML asks for, in words."""
    return f"{_ACTIONS.get(action, 'a recovery')} (recovery action {action})"


def _closes(fault: Fault, probe: Probe, is_settled: bool) -> bool:  # noqa: FBT001
    match fault.recovery:
        case Recovery.PROBE:
            return is_settled
        case Recovery.RESET:
            return probe.recovery_action == 0 and (fault.is_action_asked or is_settled)
        case Recovery.INVENTORY:
            return False


def with_fault(card: CardHealth, fault: Fault) -> CardHealth:
    """The card with the fault open; one that is open already is seen again."""
    same = fault.reason, fault.instance
    again = next((old for old in card.faults if (old.reason, old.instance) == same), None)
    if again is None:
        return replace(card, faults=(*card.faults, fault))
    seen = replace(fault, since_seconds=again.since_seconds)
    return replace(card, faults=tuple(seen if old is again else old for old in card.faults))


def apply_reset(card: CardHealth) -> CardHealth:
    """The card after a fresh load of the driver."""
    kept = tuple(fault for fault in card.faults if fault.recovery is not Recovery.RESET)
    return replace(card, faults=kept, recovery_action=None)


_UNLOADED = "unloaded"


def observe(
    health: Health, report: NvmlReport, now_seconds: float, rules: HealthRules
) -> HealthStep:
    """Health after a report, and what that changed."""
    match report:
        case Inventory():
            after = _after_inventory(health, report, now_seconds, rules)
        case Probe():
            after = _after_probe(health, report, now_seconds, rules.recovery_seconds)
        case Xid():
            return _xid(health, report, now_seconds, rules)
        case Stalled():
            after = _away(health, Outage("NVMLStalled", f"no answer for {report.seconds:g} s"))
        case DriverMissing():
            after = _away(health, Outage("DriverMissing", report.reason))
            after = replace(after, driver=_UNLOADED if report.is_unloaded else after.driver)
        case Answered() if health.has_inventory and health.outage_reason == "NVMLStalled":
            after = replace(health, outage=None)
        case _:
            after = health
    return HealthStep(after, _changes(health, after))


def recovery_obstacle(health: Health, uuid: str) -> str:
    """Why the operator cannot clear the card's faults now; "" if he can."""
    card = health.card(uuid)
    if card is not None and not card.is_shown and health.reason(uuid) == "ProbeHangs":
        return (
            "it has not answered since NVML was opened; it is offered again some time after it does"
        )
    if card is None or not card.is_shown:
        return ""
    if health.outage is not None or not health.has_inventory:
        return (
            f"NVML does not answer ({health.reason(uuid)}), so it is not known what the card needs"
        )
    return recovery_action_text(card)


def recover(health: Health, uuid: str) -> HealthStep:
    """The operator clears the card's faults; one that is still there begins again.

    A card that NVML does not show is forgotten, because it can have no new fault. Nothing changes
    while `recovery_obstacle` names one.
    """
    if recovery_obstacle(health, uuid):
        return HealthStep(health)
    cards = tuple(
        replace(card, faults=(), clean_since_seconds=None) if card.uuid == uuid else card
        for card in health.cards
        if card.is_shown or card.uuid != uuid
    )
    after = replace(health, cards=cards)
    if after.card(uuid) is None:
        text = "the card is not there; what was known of it is forgotten"
        return HealthStep(after, (Change(ChangeKind.NOTICE, uuid, "Forgotten", text),))
    return HealthStep(after, _changes(health, after))


def restore_health(saved: Health, boot_id: str) -> Health:
    """What an earlier run of the agent stored, as far as it is still true.

    Clean probes count from zero, because there were none while the agent was away. A reboot resets
    every card, so earlier faults end with it; a card that is still lost fails its first probe.
    """
    if saved.boot_id == boot_id:
        cards = tuple(
            replace(card, clean_since_seconds=None, recovery_action=None) for card in saved.cards
        )
        return replace(saved, cards=cards, has_inventory=False)
    return Health(boot_id)


def _after_inventory(
    health: Health, inventory: Inventory, now_seconds: float, rules: HealthRules
) -> Health:
    """The driver shows these cards; a fresh load of it has reset them all."""
    driver = f"{inventory.driver_version}/{inventory.driver_load}"
    is_fresh = _is_fresh(health.driver, driver)
    known = {card.uuid: apply_reset(card) if is_fresh else card for card in health.cards}
    for report in inventory.cards:
        card = known.get(report.uuid, CardHealth(report.uuid))
        inventoried = apply_inventory(card, report, now_seconds, rules)
        if report.is_silent:
            inventoried = with_fault(inventoried, silent_fault(now_seconds))
        known[report.uuid] = replace(inventoried, is_shown=True)
    # One that has never answered has its faults too: an XID may stay when it answers.
    missing = known.keys() | {slot.uuid for slot in inventory.unreadable} - {""}
    for uuid in missing - {card.uuid for card in inventory.cards}:
        card = known.get(uuid, CardHealth(uuid))
        card = with_fault(card, missing_fault(inventory, uuid, now_seconds))
        known[uuid] = replace(card, clean_since_seconds=None, is_shown=False)
    cards = tuple(known[uuid] for uuid in sorted(known))
    return replace(health, driver=driver, outage=None, cards=cards, has_inventory=True)


def _is_fresh(before: str, now: str) -> bool:
    """Whether the driver was loaded again, which is certain only where both loads are known."""
    if before in {"", _UNLOADED}:
        return before == _UNLOADED
    (version, _, load), (version_now, _, load_now) = before.partition("/"), now.partition("/")
    return version != version_now or (load != load_now and bool(load and load_now))


def _after_probe(
    health: Health, probe: Probe, now_seconds: float, recovery_seconds: float
) -> Health:
    """A probe begins a fault, or brings one nearer to its end."""

    def change(card: CardHealth) -> CardHealth:
        if probe.error is None:
            return apply_probe(card, probe, now_seconds, recovery_seconds)
        if probe.error == NO_ANSWER:
            fault = silent_fault(now_seconds)
        else:
            reason = "Lost" if probe.error == "GPU_IS_LOST" else "ProbeFailed"
            text = f"NVML says {probe.error}"
            fault = Fault(reason, text, Recovery.PROBE, now_seconds, now_seconds)
        return replace(with_fault(card, fault), clean_since_seconds=None)

    return _with_card(health, probe.uuid, change)


def _xid(health: Health, xid: Xid, now_seconds: float, rules: HealthRules) -> HealthStep:
    """An XID does to its card what its rule says, and to no other."""
    rule = rules.rule(xid.code)
    uuid = _card_of(health, xid)
    reason = f"XID{xid.code}"
    text = f"XID {xid.code} ({rule.name})"
    if rule.action is XidAction.IGNORE:
        return HealthStep(health)
    if rule.action is XidAction.REPORT or uuid is None:
        whose = text if uuid is not None else f"{text} of card {xid.uuid or 'unknown'}"
        return HealthStep(health, (Change(ChangeKind.NOTICE, uuid, reason, whose),))
    after = health
    for instance in xid.instances or ("",):
        whose = f" of MIG instance {instance}" if instance else ""
        fault = Fault(
            reason, text + whose, rule.recovery, now_seconds, now_seconds, instance=instance
        )
        after = _with_card(after, uuid, partial(with_fault, fault=fault))
    return HealthStep(after, _changes(health, after))


def _card_of(health: Health, xid: Xid) -> str | None:
    """The card an XID belongs to; without a name it is the only card, if there is just one."""
    if xid.uuid is not None:
        return xid.uuid if health.card(xid.uuid) is not None else None
    return health.cards[0].uuid if len(health.cards) == 1 else None


def _away(health: Health, outage: Outage) -> Health:
    """NVML does not answer: there are no probes, so clean ones count from zero again."""
    cards = tuple(replace(card, clean_since_seconds=None) for card in health.cards)
    return replace(health, outage=outage, cards=cards)


def _with_card(health: Health, uuid: str, change: Callable[[CardHealth], CardHealth]) -> Health:
    cards = tuple(change(card) if card.uuid == uuid else card for card in health.cards)
    return replace(health, cards=cards)


def _changes(before: Health, after: Health) -> tuple[Change, ...]:
    """What Events report of the change from one health to the next."""
    if before == after:
        return ()
    changes, was, out = list[Change](), before.outage_reason, after.outage
    if was and was != after.outage_reason:
        changes.append(Change(ChangeKind.NOTICE, None, f"{was}Over", f"{was} is over"))
    if out and was != out.reason:
        changes.append(Change(ChangeKind.FAULT, None, out.reason, out.text, fault_cure(out.reason)))
    for card in after.cards if before.cards else ():
        changes += _card_changes(before.card(card.uuid), card)
    return tuple(changes)


def _card_changes(was: CardHealth | None, card: CardHealth) -> list[Change]:
    uuid, new = card.uuid, list[Change]()
    known = {(f.reason, f.instance) for f in was.faults} if was is not None else set()
    for fault in (f for f in card.faults if (f.reason, f.instance) not in known):
        cure = fault_cure(fault.reason, fault.recovery)
        new.append(Change(ChangeKind.FAULT, uuid, fault.reason, fault.text, cure))
    if was is None and not card.faults:
        new.append(Change(ChangeKind.NOTICE, uuid, "PluggedIn", "a card was plugged in"))
    elif was is not None and was.faults and not card.faults:
        text = f"the card is healthy again after {was.faults[0].reason}"
        new.append(Change(ChangeKind.RECOVERED, uuid, "Recovered", text))
    return new
