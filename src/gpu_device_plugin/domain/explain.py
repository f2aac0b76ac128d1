"""Refusals and decisions in words, for `kubectl describe` and `gpu-device-plugin why`."""

from collections.abc import Sequence
from dataclasses import dataclass

_DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one container, as `why` shows it.

    Attributes:
        pod: `namespace/name`.
        container: Name of the container, or empty if it is not known.
        asked: What it asked, for people.
        rooms: One line per card: what it had free at that moment.
        outcome: The result, for people.
        reason: One CamelCase word for refusals; empty otherwise.
        at_seconds: Wall clock.
        owner: The controller that made the pod, `ReplicaSet namespace/name`; empty where none is known.
    """

    pod: str
    container: str
    asked: str
    rooms: tuple[str, ...]
    outcome: str
    reason: str
    at_seconds: float
    owner: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether the container was refused."""
        return bool(self.reason)


NOTHING_DECIDED = (
    "nothing has been decided about it on this node since the agent started, or it was too long ago; "
    "where a controller makes one pod after the other, ask for its owner"
)


def why_text(decisions: Sequence[Decision]) -> str:
    """What `gpu-device-plugin why NAMESPACE/POD` prints: the decisions, oldest first."""
    return "\n".join(_paragraph(decision) for decision in decisions)


def refusals_text(owner: str, count: int, since_seconds: float, last: Sequence[Decision]) -> str:
    """How often an owner's pods were refused, and the last of these refusals.

    A controller makes a new pod for each one that fails, so one cause makes many refusals.
    """
    times = "once" if count == 1 else f"{count} times"
    head = f"{owner}: pods of it were refused {times} since {_time_of_day(since_seconds)}\n"
    return "\n".join([head, *map(_paragraph, last)])


def _paragraph(decision: Decision) -> str:
    where = f", container {decision.container}" if decision.container else ""
    reason = f" [{decision.reason}]" if decision.reason else ""
    rooms = "".join(f"  {line}\n" for line in decision.rooms)
    return (
        f"{_time_of_day(decision.at_seconds)} {decision.pod}{where}\n"
        f"  asked    {decision.asked}\n"
        f"  decided  {decision.outcome}{reason}\n{rooms}"
    )


def _time_of_day(at_seconds: float) -> str:
    """`HH:MM:SSZ`, without the day, because decisions are kept for hours."""
    seconds = int(at_seconds) % _DAY_SECONDS
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
