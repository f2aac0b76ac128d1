"""What a request may ask: every rule once, in the order in which they are checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple

from gpu_device_plugin.domain.cards.memory_unit import Units
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource, resources_of
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.errors import RequestError

WHOLE_CARD = "require-whole-device"
MOST_CONTAINERS = 64
"""Most containers of a pod that may ask for a slice, init containers too: what one pod costs to
place and to hold grows with them, on every node."""
CORE_STEP_PERCENT = 5
_PERCENTAGES = range(CORE_STEP_PERCENT, CORE_UNITS_PER_CARD + 1, CORE_STEP_PERCENT)
_MOST_DIGITS = 9
_COUNT_CURE = (
    'for M cards set the pod\'s label aliyun.com/gpu-count: "M" and nodeSelector '
    "ack.node.gpu.schedule: cgpu; for one card ask nothing but aliyun.com/gpu-mem"
)
_AWAY = "given while the API server was away; create the pod again"


class Known(Flag):
    """What is known of a request when it is checked."""

    SPEC = auto()
    """The pod spec."""
    SIZE = auto()
    """The size of one call, while the pod spec is not known."""
    UNITS = auto()
    """The units of a grant whose container starts."""
    LATE = auto()
    """Pod spec and units of a grant that was made without the pod spec."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as the rules see it; `subject` begins its refusal, `amounts` are units, percent or cards."""

    known: Known
    subject: str
    mode: NodeMode
    amounts: Mapping[str, int]
    label: str | None = None
    card_label: str | None = None
    containers: int = 1
    cards_held: int = 0
    is_alone: bool = False

    @property
    def mem(self) -> Units:
        return Units(self.amounts.get(Resource.MEM, 0))

    @property
    def core(self) -> int:
        return self.amounts.get(Resource.CORE, 0)

    @property
    def offered(self) -> tuple[Resource, ...]:
        return resources_of(self.mode)

    @property
    def label_count(self) -> int:
        """The label for several cards, once it is known to be a number; 0 without one."""
        return int(self.label) if self.label and _is_number(self.label) else 0

    @property
    def cards(self) -> int:
        return max(1, self.label_count)

    @property
    def units_per_card(self) -> float:
        """Memory units on each card; no whole number where they cannot be divided."""
        return self.mem / self.cards

    @property
    def fitting_mode(self) -> NodeMode:
        return NodeMode.CORE_MEM if self.core else NodeMode.CGPU

    @property
    def fitting_percent(self) -> int:
        """The next lower percentage that may be asked."""
        below = self.core // CORE_STEP_PERCENT * CORE_STEP_PERCENT
        return min(max(below, CORE_STEP_PERCENT), CORE_UNITS_PER_CARD)


class Rule(NamedTuple):
    """What is refused; `known` has to be known of the request, and `{ask.…}` in `text` is of it."""

    known: Known
    refuses: Callable[[Ask], object]
    reason: str
    text: str


# fmt: off
RULES = (
    Rule(Known.SPEC, lambda ask: ask.containers > MOST_CONTAINERS, "TooManyContainers",
         "{ask.containers} containers of the pod ask for a slice, init containers included; at most "
         f"{MOST_CONTAINERS} may: split it into several pods"),
    Rule(Known.SPEC | Known.SIZE, lambda ask: ask.amounts.get(Resource.COUNT), "CountRequested",
         f"aliyun.com/gpu-count is counted on nodes but cannot be asked for; {_COUNT_CURE}"),
    Rule(Known.SIZE, lambda ask: not ask.amounts.keys() <= set(ask.offered), "WrongMode",
         "this mode does not serve it"),
    Rule(Known.SPEC, lambda ask: not ask.offered, "WrongMode",
         "this mode serves no shared cards; choose a node with nodeSelector "
         "ack.node.gpu.schedule: {ask.fitting_mode}"),
    Rule(Known.SPEC, lambda ask: ask.mem < 0, "BadAmount",
         "memory cannot be negative; ask for 1 or more"),
    Rule(Known.SPEC, lambda ask: ask.core and Resource.CORE not in ask.offered, "ComputeNotServed",
         "this mode does not divide compute; set nodeSelector ack.node.gpu.schedule: core_mem, or "
         "ask nothing but aliyun.com/gpu-mem"),
    Rule(Known.SPEC, lambda ask: not ask.mem, "ComputeWithoutMemory",
         "compute goes with memory of the same card; ask aliyun.com/gpu-mem as well"),
    Rule(Known.SPEC, lambda ask: Resource.CORE in ask.offered and not ask.core, "MemoryOnly",
         "this mode takes no container without compute; ask aliyun.com/gpu-core.percentage "
         "(5, 10, ... 100) as well, or send the pod elsewhere with nodeSelector "
         "ack.node.gpu.schedule: cgpu (or share)"),
    Rule(Known.UNITS, lambda ask: Resource.CORE in ask.offered and not (ask.mem and ask.core),
         "MemoryOnly", "ask for both, or set nodeSelector ack.node.gpu.schedule: cgpu"),
    Rule(Known.SPEC | Known.SIZE, lambda ask: ask.core and ask.core not in _PERCENTAGES,
         "BadPercentage", "the percentage must be one of 5, 10, ... 100 (a multiple of 5, at most "
         "one card); ask for instance {ask.fitting_percent}"),
    Rule(Known.SPEC, lambda ask: ask.label is not None and not _is_number(ask.label),
         "BadCardCount", "failed to parse request device count from pod label "
         f'aliyun.com/gpu-count: "{{ask.label}}" is no whole number; {_COUNT_CURE}'),
    Rule(Known.SPEC, lambda ask: ask.label_count < 0, "BadCardCount",
         "request device count must be large than 0, label aliyun.com/gpu-count={ask.label}; "
         + _COUNT_CURE),
    Rule(Known.SPEC, lambda ask: ask.label_count and ask.mode is NodeMode.CORE_MEM,
         "SeveralCardsOfCompute", "label aliyun.com/gpu-count={ask.label} does not go with divided "
         "compute; set nodeSelector ack.node.gpu.schedule: cgpu, or remove the label"),
    Rule(Known.SPEC, lambda ask: ask.mem % ask.cards, "UnevenShare",
         "invalid replica for resource aliyun.com/gpu-mem,because {ask.mem} / {ask.cards} = "
         "{ask.units_per_card:.1f}; with label aliyun.com/gpu-count={ask.cards} ask a multiple of "
         "{ask.cards}"),
    Rule(Known.SPEC, lambda ask: ask.card_label not in (None, WHOLE_CARD), "UnknownPlacement",
         "label ack.gpushare.placement={ask.card_label} is not a known placement. Known: "
         + WHOLE_CARD),
    Rule(Known.LATE, lambda ask: ask.mem and ask.cards_held != ask.cards, "CardCountUnknown",
         f"its label asks for {{ask.cards}} cards, the slice is on {{ask.cards_held}}, {_AWAY}"),
    Rule(Known.LATE, lambda ask: ask.card_label == WHOLE_CARD and not ask.is_alone,
         "CardCountUnknown", f"its label asks for a card of its own, the slice was {_AWAY}"),
)
"""What no request may ask, in the order in which it is checked."""
# fmt: on


def check(ask: Ask) -> None:
    """Raise RequestError if a rule for which enough is known refuses the request."""
    for rule in RULES:
        if ask.known in rule.known and rule.refuses(ask):
            text = rule.text.format(ask=ask)
            raise RequestError(f"{ask.subject}: {text}", reason=rule.reason, rule=text)


def _is_number(label: str) -> bool:
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
