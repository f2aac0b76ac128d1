"""The decisions that `gpu-device-plugin why` shows, kept fairly between namespaces and owners.

A controller whose pod fits nowhere creates hundreds of pods a minute, and each is refused. So
decisions are kept by owner: when there are too many, the oldest of the owner with most is dropped.
The namespace with most goes first, because a tenant can name as many owners as it likes.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_device_plugin.domain.explain import Decision, refusals_text, why_text

_SHOWN = 3
_OF_ONE_POD = 100


class _Key(NamedTuple):
    """Whose decisions; `owner` is the pod where it has none."""

    namespace: str
    owner: str
    is_refusal: bool


@dataclass(slots=True)
class _Kept:
    """The decisions of one owner with the same outcome.

    Attributes:
        decisions: The last ones, oldest first.
        count: How many there were in all.
        since_seconds: Wall clock of the first.
    """

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
        key = _Key(namespace, decision.owner or decision.pod, decision.is_refusal)
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
        """What was decided about a pod, or about the pods of an owner, for people.

        Args:
            name: `namespace/name` of either.

        Returns:
            The text; empty if nothing is known.
        """
        found, namespace = self.of_pod(name), name.partition("/")[0]
        if found:
            owner = found[-1].owner
            return why_text(found[-_OF_ONE_POD:]) + self._refusals(owner or "", namespace, shown=0)
        owners = [key.owner for key in self._kept if key.owner.partition(" ")[2] == name]
        texts = [self._refusals(owner, namespace, _SHOWN) for owner in dict.fromkeys(owners)]
        return "\n".join(text for text in texts if text)

    def _refusals(self, owner: str, namespace: str, shown: int) -> str:
        kept = self._kept.get(_Key(namespace, owner, is_refusal=True))
        if kept is None or (kept.count == 1 and not shown):
            return ""
        last = list(kept.decisions)[-shown:] if shown else []
        return refusals_text(owner, kept.count, kept.since_seconds, last)
