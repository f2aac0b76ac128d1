"""The decisions that `gpu-device-plugin why` shows, kept fairly between namespaces and owners.

A controller whose pod fits nowhere creates hundreds of pods a minute, and each is refused. So
decisions are kept by owner: when there are too many, the oldest of the owner with most is dropped.
The namespace with most goes first, because a tenant can name as many owners as it likes.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one container, as `why` shows it.

    Attributes:
        pod: `namespace/name`.
        rooms: One line per card: what it had free at that moment.
        reason: One CamelCase word for refusals; empty otherwise.
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


NOTHING_DECIDED = (
    "nothing has been decided about it on this node since the agent started, or it was too long ago; "
    "where a controller makes one pod after the other, ask for its owner"
)


def why_text(decisions: Sequence[Decision]) -> str:
    """What `gpu-device-plugin why NAMESPACE/POD` prints: the decisions, oldest first."""
    return "\n".join(map(_paragraph, decisions))


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


_SHOWN = 3
_OF_ONE_POD = 100


class _Key(NamedTuple):
    """The owner that decisions are counted under; `owner` is the pod where it has none."""

    namespace: str
    owner: str
    is_refusal: bool


@dataclass(slots=True)
class _Kept:
    """The decisions of one owner with the same outcome."""

    since_seconds: float
    decisions: deque[Decision] = field(default_factory=deque)
    count: int = 0


class DecisionLog:
    """The last `limit` decisions."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[_Key, _Kept] = {}
        self._total = 0

    def add(self, decision: Decision) -> None:
        """Keep one more. A grant is never dropped for a refusal of the same owner."""
        namespace = decision.pod.partition("/")[0]
        key = _Key(namespace, decision.owner or decision.pod, bool(decision.reason))
        kept = self._kept.setdefault(key, _Kept(decision.at_seconds))
        kept.decisions.append(decision)
        kept.count += 1
        self._total += 1
        if self._total > self._limit:
            lengths = {one: len(kept.decisions) for one, kept in self._kept.items()}
            crowd = Counter[str]()
            for one, length in lengths.items():
                crowd[one.namespace] += length
            most = max(lengths, key=lambda one: (crowd[one.namespace], lengths[one]))
            self._kept[most].decisions.popleft()
            self._total -= 1
            if not self._kept[most].decisions:
                del self._kept[most]

    def of_pod(self, pod: str) -> list[Decision]:
        """What was decided about `namespace/name`, oldest first."""
        found = (d for kept in self._kept.values() for d in kept.decisions if d.pod == pod)
        return sorted(found, key=lambda decision: decision.at_seconds)

    def why(self, name: str) -> str:
        """What was decided about a pod, or about an owner's pods (`namespace/name` of either); empty if nothing is known."""
        found, namespace = self.of_pod(name), name.partition("/")[0]
        if found:
            owner = found[-1].owner
            return why_text(found[-_OF_ONE_POD:]) + self._refusals(owner or "", namespace, shown=0)
        owners = [key.owner for key in self._kept if key.owner.partition(" ")[2] == name]
        texts = [self._refusals(owner, namespace, _SHOWN) for owner in dict.fromkeys(owners)]
        return "\n".join(text for text in texts if text)

    def _refusals(self, owner: str, namespace: str, shown: int) -> str:
        """How often an owner's pods were refused, and the last of these refusals.

        A controller makes a new pod for each one that fails, so one cause makes many refusals.
        """
        kept = self._kept.get(_Key(namespace, owner, is_refusal=True))
        if kept is None or (kept.count == 1 and not shown):
            return ""
        times = "once" if kept.count == 1 else f"{kept.count} times"
        since = _time_of_day(kept.since_seconds)
        head = f"{owner}: pods of it were refused {times} since {since}\n"
        return "\n".join([head, *map(_paragraph, list(kept.decisions)[-shown:] if shown else ())])
