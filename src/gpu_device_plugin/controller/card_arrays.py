"""What the cards of all nodes have free, as arrays: one pod is judged on thousands of nodes at once.

It decides as `domain.fractions.node_fit` does for one node; a test compares both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

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
_NEVER, _NO_BOUND = np.iinfo(np.int64).max, 1 << 60
_MOST_UNITS = 1 << 31
"""More than any card has (cluster_view)."""
_NO_CARD = (0, 0, -1, 0, 0)
_FGD = PlacementPolicy.FGD
_LOST = np.array(EVEN_MIX.by_free, dtype=np.int64)


class _Nodes(NamedTuple):
    """Nodes of one mode and policy.

    Attributes:
        mem: By card and node, as the next four: units free, 0 where the card may serve no pod. A node's
            cards are in the order of `Room.amounts`.
        core: Percent free.
        size: Units in all; -1 where the card is not healthy, or there is none.
        pods: Pods on it.
        milli: `Room.free_milli`.
        cpu: By node, as the next three: processor that is free, in thousandths of a core.
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
        (ask,), is_fgd = asked.asking, _FGD in (asked.policy, asked.default)
        left = self.left_milli(ask.needed) if is_fgd else self.milli
        on = self.chosen(asked.policy, ask.needed, left)
        units = np.where(on, self.mem - ask.needed.units_per_card, 0).sum(0)
        free = units / np.maximum(np.where(on, self.size, 0).sum(0), 1)
        found = {PlacementPolicy.BINPACK: 1.0 - free, PlacementPolicy.SPREAD: free}
        if is_fgd:
            found[_FGD] = self._grades(np.where(on, left, self.milli), asked.pod.cpu_milli) / 100
        return found

    def _grades(self, left: _Ints, cpu_milli: int) -> _Floats:
        """`grade_placement` of each node: what its cards have `left`, the pod's processor taken."""
        cpu = self.cpu - min(cpu_milli, _NO_BOUND)
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

    fits: list[tuple[list[str], PlacementPolicy, list[float], list[float]]]
    misfits: list[tuple[Misfit, list[str]]]
    left: list[list[str]]
    unknown: list[str]

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

    def add(self, names: NDArray[np.object_], nodes: _Nodes, asked: CheckedRequest) -> None:
        """What the arrays say of nodes that break no rule."""
        may = np.ones(len(names), dtype=bool)
        for needed in {ask.needed for ask in asked.asking}:
            may &= nodes.fitting(needed).sum(0) >= needed.cards
        if not may.all():
            self._refuse(names[~may], nodes.where(~may), asked)
        names, nodes = names[may], nodes.where(may)
        if len(names) and len(asked.asking) == 1:
            by = nodes.scores(asked)
            own, common = by[asked.policy].tolist(), by[asked.default].tolist()
            self.fits.append((names.tolist(), asked.policy, own, common))
        elif len(names):
            is_fgd = _FGD in (asked.policy, asked.default)
            left = np.vstack([*nodes[: len(_NO_CARD)], nodes.cpu * is_fgd, nodes.most]).T
            alike: dict[bytes, list[str]] = {}
            for name, row in zip(names, left, strict=True):
                alike.setdefault(row.tobytes(), []).append(name)
            self.left += alike.values()

    def _refuse(self, names: NDArray[np.object_], nodes: _Nodes, asked: CheckedRequest) -> None:
        is_other_door, is_final = nodes.is_other_door == 1, nodes.too_small(asked)
        for text, final, where in (
            (OTHER_DOOR_TEXT, True, is_other_door),
            (NOT_ENOUGH_TEXT, True, is_final & ~is_other_door),
            (NOT_ENOUGH_TEXT, False, ~is_final & ~is_other_door),
        ):
            self.misfits.append((Misfit(text, is_final=final), names[where].tolist()))


class CardArrays:
    """Nodes by name: each has a place in the arrays, and what changes of it is written there."""

    def __init__(self) -> None:
        self._cards = np.zeros((len(_NO_CARD), 0, 0), dtype=np.int64)
        self._nodes = np.zeros((len(_Nodes._fields) - len(_NO_CARD), 0), dtype=np.int64)
        self._at: dict[str, int] = {}
        self._unused: list[int] = []
        # Each mode and policy has a number; one node stands for all that have it.
        self._rules: dict[object, int] = {}
        self._examples: list[NodeOffer] = []

    def put(self, offer: NodeOffer, rooms: Sequence[Room], cpu_milli: int) -> None:
        """A node has this left now."""
        rules = self._rules.setdefault((offer.mode, offer.policy), len(self._examples))
        if rules == len(self._examples):
            self._examples.append(offer)
        at, cpu = self._place(offer.name, len(rooms)), min(cpu_milli, _NO_BOUND)
        most = most_pods(offer.mode, offer.max_pods)
        is_other_door = bool(rooms) and all(room.is_behind_other_door for room in rooms)
        self._nodes[:, at] = cpu, _NO_BOUND if most is None else most, is_other_door, rules
        cards = [_card(room) for room in sorted(rooms, key=lambda room: room.amounts)]
        cards += [_NO_CARD] * (self._cards.shape[1] - len(cards))
        self._cards[..., at] = np.array(cards, dtype=np.int64).reshape(-1, len(_NO_CARD)).T

    def drop(self, name: str) -> None:
        """A node is gone; one that is not known is no error."""
        if name in self._at:
            self._unused.append(self._at.pop(name))

    def _place(self, name: str, cards: int) -> int:
        """Where a node with so many cards stands; the arrays grow where they have to."""
        _, width, nodes = self._cards.shape
        if cards > width:
            more = np.array(_NO_CARD)[:, None, None].repeat(cards - width, 1).repeat(nodes, 2)
            self._cards = np.concatenate((self._cards, more), axis=1)
        if name not in self._at and not self._unused:
            spare = nodes // 4 + 1
            self._cards = np.pad(self._cards, ((0, 0), (0, 0), (0, spare)))
            self._nodes = np.pad(self._nodes, ((0, 0), (0, spare)))
            self._unused = list(range(nodes, nodes + spare))
        if name not in self._at:
            self._at[name] = self._unused.pop()
        return self._at[name]

    def judge(self, names: Sequence[str], checks: RequestChecks) -> Judged:
        """Whether and how well a pod fits each of these nodes."""
        every = np.array(names, dtype=object)
        at = np.fromiter(map(self._at.get, names, repeat(-1)), np.intp, len(names))
        found = Judged([], [], [], every[at < 0].tolist())
        every, at = every[at >= 0], at[at >= 0]
        rules = self._nodes[-1, at]
        for number in np.unique(rules).tolist():
            here, asked = rules == number, checks.of(self._examples[number])
            if isinstance(asked, Misfit):
                found.misfits.append((asked, every[here].tolist()))
            else:
                cards, nodes = self._cards[..., at[here]], self._nodes[:, at[here]]
                found.add(every[here], _Nodes(*cards, *nodes), asked)
        return found


def _card(room: Room) -> tuple[int, ...]:
    is_shut = room.is_closed or room.is_behind_other_door or room.is_full_of_pods
    size = room.card.capacity(room.unit) if room.is_healthy else -1
    free_mem = room.free_mem if room.is_healthy and not is_shut else 0
    return free_mem, room.free_core, size, room.pods, room.free_milli
