"""Who enforces the memory of slices: NVIDIA's driver where a probe has proved that it does, else the library."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MEMORY_ENFORCER_LABEL = "gpu-device-plugin/memory-enforcer"
"""The label of a node that stands over `--memory-enforcer`."""


class MemoryEnforcer(StrEnum):
    """Who refuses what is above a slice's memory; the library stays beside the driver for all else."""

    DRIVER = "driver"
    LIBRARY = "library"


class EnforcerChoice(StrEnum):
    """The operator's `--memory-enforcer`; `auto` is the driver on cards where it is proven."""

    AUTO = "auto"
    DRIVER = "driver"
    LIBRARY = "library"


class LimitBy(StrEnum):
    """What sets the driver's limit of a container that starts: gpu-limit-hook, or the hook of NVIDIA's toolkit."""

    HOOK = "hook"
    TOOLKIT = "toolkit"


_UNPROBED = "no probe has run"
_CHOSEN = f"--memory-enforcer {EnforcerChoice.LIBRARY}"
USUAL_ENFORCERS = frozenset({f"library ({_UNPROBED})", f"library ({_CHOSEN})"})
"""Who enforces memory where the driver is neither set up for it nor wanted; only metrics tell it."""
_HEAD_FIELDS = ("driver=", "reason=")


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """What a probe has proved.

    Attributes:
        backends: UUID -> how the driver counts on that card: dmem or misc.
        reasons: UUID -> why that card's memory cannot be limited.
        missing: Why nothing is proved of any card, or "".
    """

    backends: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    missing: str = _UNPROBED


def read_report(text: str, driver_version: str) -> DriverLimits:
    r"""The report of `gpu-limit-hook --probe`; one of another driver proves nothing ("": not known yet).

    >>> read_report("driver=615.71.09\ndevice=GPU-a backend=misc\n", "615.71.09").backends
    {'GPU-a': 'misc'}
    >>> read_report("reason=/sys/fs/cgroup is not cgroup v2\n", "615.71.09").missing
    '/sys/fs/cgroup is not cgroup v2'
    >>> read_report("driver=615.71.09\ndevice=GPU-a backend=misc\n", "620.10").missing
    'the probe was of driver 615.71.09'
    """
    head = dict(line.split("=", 1) for line in text.splitlines() if line.startswith(_HEAD_FIELDS))
    if "driver" not in head:
        return DriverLimits(missing=head.get("reason", _UNPROBED))
    if driver_version and head["driver"] != driver_version:
        return DriverLimits(missing=f"the probe was of driver {head['driver']}")
    by_field: dict[str, dict[str, str]] = {"backend": {}, "reason": {}}
    for line in text.splitlines():
        uuid, _, answer = line.removeprefix("device=").partition(" ")
        field_name, _, value = answer.partition("=")
        if line.startswith("device=") and field_name in by_field:
            by_field[field_name][uuid] = value
    return DriverLimits(by_field["backend"], by_field["reason"], "")


def unproven(limits: DriverLimits, cards: Iterable[str]) -> str:
    """Why the driver is not proven to limit the memory of each of these cards, or ""."""
    missing = [uuid for uuid in cards if uuid not in limits.backends]
    each = (f"{uuid}: {limits.reasons.get(uuid, 'not probed')}" for uuid in missing)
    return (limits.missing or "; ".join(each)) if missing else ""


def why_library(
    choice: EnforcerChoice, limits: DriverLimits, sizes: Mapping[str, int], *, is_shared: bool
) -> str:
    """Why the driver does not enforce the memory of a new slice, or ""; `sizes` are its bytes by card.

    The driver's variables, which keep NVIDIA's own hook from lifting the limit, have one size for
    all cards of a container; and the limit is of one container, `is_shared` among several or not.

    >>> proven = DriverLimits({"a": "misc", "b": "misc"}, {}, "")
    >>> why_library(EnforcerChoice.DRIVER, proven, {"a": 1, "b": 2}, is_shared=False)
    "its parts of the cards differ in size, and NVIDIA's hook has one size for all"
    """
    if choice is EnforcerChoice.LIBRARY:
        return _CHOSEN
    if why := unproven(limits, sizes):
        return why
    if len(set(sizes.values())) > 1:
        return "its parts of the cards differ in size, and NVIDIA's hook has one size for all"
    return "containers that run at once share it, and the limit is of one" if is_shared else ""


def unmet_choice(
    choice: EnforcerChoice, limits: DriverLimits, cards: Collection[str]
) -> str | None:
    """Why the node cannot do what was chosen: `driver` is never silently less."""
    why = unproven(limits, cards) if choice is EnforcerChoice.DRIVER else ""
    text = "--memory-enforcer driver: NVIDIA's driver is not proven to limit memory here"
    return f"{text}: {why}" if why else None
