"""What to do about a fault of a card, as operators do it, by its reason: for Events, `doctor` and `why`."""

from gpu_device_plugin.domain.cards.health_values import Recovery

_AGAIN = "if it comes again, have the card replaced"
_RESET = "reboot the node, or end the agent and reset the card (nvidia-smi --gpu-reset -i CARD)"
_BUS = "reboot the node; if it comes again, check power and riser, then have the card replaced"
_GONE = "plug it in, or restart the agent, which then no longer counts it"
_GSP = f"{_RESET}; if it comes again, install another version of the driver"
_CURES = {
    "XID48": f"{_RESET}; {_AGAIN}",
    "XID64": f"{_RESET}; {_AGAIN}",
    "XID74": f"{_RESET}; if it comes again, check the NVLink bridges and the fabric manager",
    "XID79": _BUS,
    "XID94": f"only the program that met it is affected; {_AGAIN}",
    "XID95": f"{_RESET}; {_AGAIN}",
    "XID119": _GSP,
    "XID120": _GSP,
    "Lost": _BUS,
    "Unplugged": _GONE,
    "ProbeHangs": "look at `dmesg` for what hangs in the driver, and reset the card",
    "RecoveryAsked": _RESET,
    "NVMLStalled": "see `dmesg` for what hangs in the driver; no card is offered until NVML answers",
    "DriverMissing": "no card is offered until NVML answers",  # the text has what to do
}
_BACK = (
    "the card is offered again when its probes stay clean, or after `gpu-device-plugin recover` in "
    "the agent's container"
)


def fault_cure(reason: str, recovery: Recovery | None = None) -> str:
    """What to do; `recovery` is None where it is not known how the fault ends. "" where its text says it."""
    if recovery is Recovery.INVENTORY:
        return ""
    own = _CURES.get(reason, "" if recovery is Recovery.PROBE else _RESET)
    back = _BACK if recovery is Recovery.PROBE and reason != "Unplugged" else ""
    return "; ".join(filter(None, (own, back)))
