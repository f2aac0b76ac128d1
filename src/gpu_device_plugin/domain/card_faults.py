"""How the faults of one card begin and end; `health` says what follows for the node."""

from collections.abc import Collection
from dataclasses import replace

from gpu_device_plugin.domain.health_values import CardHealth, Fault, Recovery
from gpu_device_plugin.domain.reports import CardReport, Inventory, Probe

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


def still_asked(card: CardHealth) -> str:
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


def unshareable(report: CardReport, now_seconds: float, takes_mig: Collection[str]) -> Fault | None:
    """Why a card that the driver shows cannot be shared; None if it can."""
    if report.is_mig and report.uuid not in takes_mig:
        text = (
            "the card is in MIG mode, and its instances are not offered: the MIG strategy is none, "
            "or pods hold what the card was before"
        )
        return Fault("MigEnabled", text, Recovery.INVENTORY, now_seconds, now_seconds)
    if report.memory_mib <= 0:
        text = "NVML does not report how much memory the card has"
        return Fault("MemoryUnknown", text, Recovery.INVENTORY, now_seconds, now_seconds)
    return None


def missing_fault(inventory: Inventory, now_seconds: float) -> Fault:
    """Why a card that was there is not shown: it cannot be opened, or it is gone."""
    if inventory.unreadable:
        errors = ", ".join(f"card {slot.index}: {slot.error}" for slot in inventory.unreadable)
        text = f"NVML cannot open it ({errors})"
        return Fault("Lost", text, Recovery.PROBE, now_seconds, now_seconds)
    text = "NVML no longer shows the card"
    return Fault("Unplugged", text, Recovery.PROBE, now_seconds, now_seconds)


def shown(
    card: CardHealth, report: CardReport, now_seconds: float, takes_mig: Collection[str]
) -> CardHealth:
    """The card with exactly those faults of an inventory that this one has."""
    found = unshareable(report, now_seconds, takes_mig)
    if found is not None:
        card = with_fault(card, found)
    kept = (f for f in card.faults if f.recovery is not Recovery.INVENTORY or _is(f, found))
    return replace(card, faults=tuple(kept))


def _is(fault: Fault, other: Fault | None) -> bool:
    return other is not None and fault.reason == other.reason


def clean(
    card: CardHealth, probe: Probe, now_seconds: float, recovery_seconds: float
) -> CardHealth:
    """The card after a clean probe."""
    if probe.recovery_action:
        card = _action_asked(card, probe.recovery_action, now_seconds)
    clean_since = now_seconds if card.clean_since_seconds is None else card.clean_since_seconds
    quiet_since = max([clean_since, *(fault.last_seconds for fault in card.faults)])
    is_settled = now_seconds - quiet_since >= recovery_seconds
    open_faults = (_asked(fault, probe) for fault in card.faults)
    faults = tuple(fault for fault in open_faults if not _closes(fault, probe, is_settled))
    return replace(
        card,
        faults=faults,
        clean_since_seconds=clean_since,
        recovery_action=probe.recovery_action,
    )


def _action_asked(card: CardHealth, action: int, now_seconds: float) -> CardHealth:
    """The card, out while NVML asks for an action, also where the XID before it was missed."""
    if any(fault.recovery is Recovery.RESET for fault in card.faults):
        return card
    text = f"NVML asks for {action_text(action)}"
    return with_fault(card, Fault("RecoveryAsked", text, Recovery.RESET, now_seconds, now_seconds))


def action_text(action: int) -> str:
    """What NVML asks for, in words."""
    return f"{_ACTIONS.get(action, 'a recovery')} (recovery action {action})"


def _asked(fault: Fault, probe: Probe) -> Fault:
    """Remembers that NVML asks for a recovery action, so that its "none" means "done"."""
    is_asked = fault.is_action_asked or bool(probe.recovery_action)
    return replace(fault, is_action_asked=is_asked, is_probed=True)


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
    again = next((old for old in card.faults if old.reason == fault.reason), None)
    if again is None:
        return replace(card, faults=(*card.faults, fault))
    seen = replace(fault, since_seconds=again.since_seconds)
    return replace(card, faults=tuple(seen if old is again else old for old in card.faults))


def reset(card: CardHealth) -> CardHealth:
    """The card after a fresh load of the driver."""
    kept = tuple(fault for fault in card.faults if fault.recovery is not Recovery.RESET)
    return replace(card, faults=kept, recovery_action=None)
