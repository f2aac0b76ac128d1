"""What the cards of all nodes have free, as arrays: one pod is judged on thousands of nodes at once.

It decides as `domain.fractions.node_fit` does for one node; a test compares both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_device_plugin.domain.fractions.cluster_view import NodeOffer
from gpu_device_plugin.domain.fractions.fragmentation import (
    EVEN_MIX,
    SCORE_SCALE_MILLI,
    SCORE_STEPS,
    STRANDED_STEP_MILLI,
    WHOLE_CARD_MILLI,
)
from gpu_device_plugin.domain.fractions.mode_resources import most_pods
from gpu_device_plugin.domain.fractions.node_fit import (
    NOT_ENOUGH_TEXT,
    OTHER_DOOR_TEXT,
    CheckedRequest,
    Fit,
    Misfit,
    RequestChecks,
)
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.node.modes import PlacementPolicy

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_Floats = NDArray[np.float64]
_NEVER = np.iinfo(np.int64).max
_MOST_CPU_MILLI, _NO_BOUND = 1 << 60, 1 << 60
_MOST_UNITS = 1 << 31
"""More than any card has (cluster_view)."""
_CARD_FIELDS, _NODE_FIELDS = 5, 4
_NO_CARD = (0, 0, -1, 0, 0)
_FGD = PlacementPolicy.FGD
_LOST = np.array(EVEN_MIX.by_free, dtype=np.int64)


class _Nodes(NamedTuple):
    """Nodes of one mode and policy.

    Of each card, by card and node; cards in the order of `Room.amounts`:

    Attributes:
        mem: Units free; 0 where it may serve no pod.
        core: Percent free.
        size: Units in all; -1 where it is not healthy, or there is none.
        pods: Pods on it.
        milli: `Room.free_milli`.

    Of each node:
        cpu: Processor that is free, in thousandths of a core.
        most: Most pods a card.
        is_other_door: 1 where all cards are behind the other door, else 0.
        rules: Which mode and policy.
    """

    mem: _Ints
    core: _Ints
    size: _Ints
    pods: _Ints
    milli: _Ints
    cpu: _Ints
    most: _Ints
    is_other_door: _Ints
    rules: _Ints

    def where(self, mask: _Bools) -> "_Nodes":
        """Some of them."""
        return self if mask.all() else _Nodes(*(each[..., mask] for each in self))

    def fitting(self, demand: Demand) -> _Bools:
        """The cards on which a container of this demand fits, as `Room.lack` says."""
        most = 0 if demand.is_exclusive else _NO_BOUND
        has_mem, has_core = self.mem >= demand.units_per_card, self.core >= demand.core_percent
        fits: _Bools = has_mem & has_core & (self.pods <= most)
        return fits

    def too_small(self, asked: CheckedRequest) -> _Bools:
        """The nodes that could not serve the pod if they were empty."""
        is_healthy, pod = self.size >= 0, asked.pod
        total = np.where(is_healthy, self.size, 0).sum(0)
        found: _Bools = (self.most == 0) | (total < pod.app_amount(Resource.MEM))
        found |= CORE_UNITS_PER_CARD * is_healthy.sum(0) < pod.app_amount(Resource.CORE)
        for needed in {ask.needed for ask in asked.asking}:
            found |= (self.size >= needed.units_per_card).sum(0) < needed.cards
        return found

    def left_milli(self, demand: Demand) -> _Ints:
        """`Room.free_milli` of each card with a container of this demand on it."""
        units = np.maximum(self.mem - demand.units_per_card, 0)
        left = WHOLE_CARD_MILLI * units // np.maximum(self.size, 1)
        if demand.core_percent:  # always, and only, where the mode divides compute
            core = np.maximum(self.core - demand.core_percent, 0)
            left = np.minimum(left, WHOLE_CARD_MILLI * core // CORE_UNITS_PER_CARD)
        return np.where(self.pods + 1 >= self.most, 0, np.minimum(left, WHOLE_CARD_MILLI))

    def chosen(self, policy: PlacementPolicy, demand: Demand, left: _Ints) -> _Bools:
        """The cards that `place` would choose; on every node enough of them fit."""
        match policy:
            case PlacementPolicy.BINPACK:
                key = np.arange(len(self.mem), dtype=np.int64)[:, None]
            case PlacementPolicy.SPREAD:
                key = -(self.mem * (CORE_UNITS_PER_CARD + 1) + self.core)
            case PlacementPolicy.FGD:
                after = np.zeros_like(left) if demand.is_exclusive else left
                key = (_LOST[-1][after] - _LOST[-1][self.milli]) * _MOST_UNITS + self.mem
        key = np.where(self.fitting(demand), key, _NEVER)
        found, node = np.zeros(key.shape, dtype=bool), np.arange(key.shape[1])
        for _ in range(demand.cards):
            best = key.argmin(axis=0)
            found[best, node], key[best, node] = True, _NEVER
        return found

    def scores(self, asked: CheckedRequest) -> Mapping[PlacementPolicy, _Floats]:
        """By each policy that counts, of a pod of one container that fits on all of these nodes."""
        (ask,), policies = asked.asking, (asked.policy, asked.default)
        demand, left = ask.needed, self.milli
        if _FGD in policies:
            left = self.left_milli(demand)
        on = self.chosen(asked.policy, demand, left)
        units = np.where(on, self.mem - demand.units_per_card, 0).sum(0)
        free = units / np.maximum(np.where(on, self.size, 0).sum(0), 1)
        found = {PlacementPolicy.BINPACK: 1.0 - free, PlacementPolicy.SPREAD: free}
        if _FGD in policies:
            found[_FGD] = self._grades(np.where(on, left, self.milli), asked.pod.cpu_milli) / 100
        return found

    def _grades(self, left: _Ints, cpu_milli: int) -> _Floats:
        """`grade_placement` of each node: what its cards have `left`, the pod's processor taken."""
        cpu = self.cpu - min(cpu_milli, _MOST_CPU_MILLI)
        gain = _fragmentation(self.milli, self.cpu) - _fragmentation(left, cpu)
        steps = np.floor(SCORE_STEPS / (1.0 + np.exp(-gain / SCORE_SCALE_MILLI)))
        stranded = _stranded(left, cpu) - _stranded(self.milli, self.cpu)
        broken = (self.milli == WHOLE_CARD_MILLI).sum(0) - (left == WHOLE_CARD_MILLI).sum(0)
        found: _Floats = steps - np.rint(stranded / STRANDED_STEP_MILLI) - broken / 1000
        return found


def _fragmentation(milli: _Ints, cpu: _Ints) -> _Floats:
    level = np.searchsorted(EVEN_MIX.levels, cpu, side="right")
    found: _Floats = _LOST[level, milli].sum(0) / EVEN_MIX.pods
    return found


def _stranded(milli: _Ints, cpu: _Ints) -> _Floats:
    found: _Floats = np.maximum(milli.sum(0) - cpu / EVEN_MIX.cpu_per_card_milli, 0.0)
    return found


@dataclass(slots=True)
class Judged:
    """What became of the nodes of a question.

    Attributes:
        fits: Names, policy, own and common scores (see `Score`) of nodes that fit.
        misfits: Reasons, and the names that each is for.
        left: Nodes on which only the domain's plain code can tell; those together have the same left.
        unknown: Nodes that no agent has told of.
    """

    fits: list[tuple[list[str], PlacementPolicy, list[float], list[float]]] = field(
        default_factory=list
    )
    misfits: list[tuple[Misfit, list[str]]] = field(default_factory=list)
    left: list[list[str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def decide(self, names: list[str], answer: Fit | Misfit) -> None:
        """What plain code says of nodes that have the same left."""
        if isinstance(answer, Misfit):
            self.misfits.append((answer, names))
            return
        score, count = answer.score, len(names)
        self.fits.append((names, score.policy, [score.own] * count, [score.common] * count))

    def scores(self) -> dict[str, float]:
        """Of each node that fits: by its policy where that is the same for all, else by the default."""
        is_one = len({policy for _, policy, _, _ in self.fits}) == 1
        found: dict[str, float] = {}
        for names, _, own, common in self.fits:
            found.update(zip(names, own if is_one else common, strict=True))
        return found


class CardArrays:
    """Nodes by name; each is a row, and what changes is written to its row alone."""

    def __init__(self) -> None:
        self._cards = np.zeros((_CARD_FIELDS, 0, 0), dtype=np.int64)
        self._nodes = np.zeros((_NODE_FIELDS, 0), dtype=np.int64)
        self._rows: dict[str, int] = {}
        self._free_rows: list[int] = []
        # Each mode and policy has a number; one node stands for all that have it.
        self._rules: dict[object, int] = {}
        self._examples: list[NodeOffer] = []

    def put(self, offer: NodeOffer, rooms: Sequence[Room], cpu_milli: int) -> None:
        """A node has this left now."""
        rules = self._rules.setdefault((offer.mode, offer.policy), len(self._examples))
        if rules == len(self._examples):
            self._examples.append(offer)
        row = self._row(offer.name, len(rooms))
        most = most_pods(offer.mode, offer.max_pods)
        is_other_door = bool(rooms) and all(room.is_behind_other_door for room in rooms)
        cpu = min(cpu_milli, _MOST_CPU_MILLI)
        self._nodes[:, row] = cpu, _NO_BOUND if most is None else most, is_other_door, rules
        cards = [_card(room) for room in sorted(rooms, key=lambda room: room.amounts)]
        cards += [_NO_CARD] * (self._cards.shape[1] - len(cards))
        self._cards[..., row] = np.array(cards, dtype=np.int64).T.reshape(_CARD_FIELDS, -1)

    def drop(self, name: str) -> None:
        """A node is gone; one that is not known is no error."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._free_rows.append(row)

    def _row(self, name: str, cards: int) -> int:
        """The node's row, as wide as so many cards need."""
        _, width, rows = self._cards.shape
        if cards > width:
            more = np.array(_NO_CARD)[:, None, None].repeat(cards - width, 1).repeat(rows, 2)
            self._cards = np.concatenate((self._cards, more), axis=1)
        if name in self._rows:
            return self._rows[name]
        if not self._free_rows:
            more_rows = rows // 4 + 1
            self._cards = np.pad(self._cards, ((0, 0), (0, 0), (0, more_rows)))
            self._nodes = np.pad(self._nodes, ((0, 0), (0, more_rows)))
            self._free_rows = list(range(rows, rows + more_rows))
        row = self._rows[name] = self._free_rows.pop()
        return row

    def judge(self, names: Sequence[str], checks: RequestChecks) -> Judged:
        """Whether and how well a pod fits each of these nodes."""
        found = Judged()
        every = np.array(names, dtype=object)
        rows = np.fromiter(map(self._rows.get, names, repeat(-1)), np.intp, len(names))
        found.unknown = every[rows < 0].tolist()
        every, rows = every[rows >= 0], rows[rows >= 0]
        rules = self._nodes[-1, rows]
        for number in np.unique(rules).tolist():
            here = rules == number
            asked = checks.of(self._examples[number])
            if isinstance(asked, Misfit):
                found.misfits.append((asked, every[here].tolist()))
            else:
                at = rows[here]
                nodes = _Nodes(*self._cards.take(at, axis=2), *self._nodes.take(at, axis=1))
                _judge(every[here], nodes, asked, found)
        return found


def _judge(names: Any, nodes: _Nodes, asked: CheckedRequest, found: Judged) -> None:
    may = np.ones(len(names), dtype=bool)
    for needed in {ask.needed for ask in asked.asking}:
        may &= nodes.fitting(needed).sum(0) >= needed.cards
    _refuse(names[~may], nodes.where(~may), asked, found)
    names, nodes = names[may], nodes.where(may)
    if not len(names):
        return
    if len(asked.asking) == 1:
        by = nodes.scores(asked)
        own, common = by[asked.policy].tolist(), by[asked.default].tolist()
        found.fits.append((names.tolist(), asked.policy, own, common))
        return
    is_fgd = _FGD in (asked.policy, asked.default)
    left = np.vstack([*nodes[:_CARD_FIELDS], nodes.cpu * is_fgd, nodes.most]).T
    alike: dict[bytes, list[str]] = {}
    for name, row in zip(names, left, strict=True):
        alike.setdefault(row.tobytes(), []).append(name)
    found.left += alike.values()


def _refuse(names: Any, nodes: _Nodes, asked: CheckedRequest, found: Judged) -> None:
    is_other_door = nodes.is_other_door == 1
    is_final = nodes.too_small(asked)
    for misfit, where in (
        (Misfit(OTHER_DOOR_TEXT, is_final=True), is_other_door),
        (Misfit(NOT_ENOUGH_TEXT, is_final=True), is_final & ~is_other_door),
        (Misfit(NOT_ENOUGH_TEXT, is_final=False), ~is_final & ~is_other_door),
    ):
        if where.any():
            found.misfits.append((misfit, names[where].tolist()))


def _card(room: Room) -> tuple[int, ...]:
    serves = room.is_healthy and not (
        room.is_closed or room.is_behind_other_door or room.is_full_of_pods
    )
    size = room.card.capacity(room.unit) if room.is_healthy else -1
    return room.free_mem if serves else 0, room.free_core, size, room.pods, room.free_milli
