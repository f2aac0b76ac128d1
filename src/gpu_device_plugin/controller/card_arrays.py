"""What the cards of all nodes have free, as arrays: one pod is judged on thousands of nodes at once.

It decides as `domain.fractions.node_fit` does for one node; a test compares both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_device_plugin.domain.fractions.fragmentation import (
    CPU_LEVEL_MILLI,
    CPU_PER_CARD,
    LOST_OF_FREE,
    SCORE_SCALE_MILLI,
    SCORE_STEPS,
    STRANDED_STEP_MILLI,
    TENTHS,
    WHOLE_CARD_MILLI,
)
from gpu_device_plugin.domain.fractions.node_fit import (
    FULL_OF_PODS_TEXT,
    NOT_ENOUGH_TEXT,
    CheckedRequest,
    Fit,
    Misfit,
    RequestChecks,
    rules_of,
)
from gpu_device_plugin.domain.fractions.placement import scores_by_fullness
from gpu_device_plugin.domain.fractions.room import Room, most_pods
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer
from gpu_device_plugin.domain.node.modes import PlacementPolicy

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_Floats = NDArray[np.float64]
_Names = NDArray[np.object_]
_NEVER, _NO_BOUND, _OTHER_CARD = np.iinfo(np.int64).max, 1 << 60, 1 << 50
_MOST_UNITS = 1 << 31
"""More than any card has (node_annotations)."""
_NO_CARD = (0, 0, -1, 0, 0)
_FGD = PlacementPolicy.FGD
_LOST = np.array(LOST_OF_FREE, dtype=np.int64)
_LEVEL = _LOST.shape[1]


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
        rules: Which mode, policy and allocation API (`rules_of`).
    """

    mem: _Ints
    core: _Ints
    size: _Ints
    pods: _Ints
    milli: _Ints
    cpu: _Ints
    most: _Ints
    rules: _Ints

    def where(self, mask: _Bools) -> "_Nodes":
        return self if mask.all() else _Nodes(*(each.compress(mask, -1) for each in self))

    def fitting(self, demand: Demand, *, is_bounded: bool = True) -> _Bools:
        """The cards on which a container of this demand fits, as `Room.lack` says.

        Without `is_bounded`: if a card took any number of pods.
        """
        fits: _Bools = (self.mem >= demand.units_per_card) & (self.core >= demand.core_percent)
        if demand.is_exclusive:
            fits &= self.pods < 1
        if is_bounded:
            fits &= self.pods < self.most
        return fits

    def too_small(self, asked: CheckedRequest) -> _Bools:
        """The nodes that could not serve the pod if they were empty."""
        is_healthy, pod = self.size > 0, asked.pod
        total = np.where(is_healthy, self.size, 0).sum(0)
        found: _Bools = (self.most == 0) | (total < pod.app_amount(Resource.MEM))
        found |= CORE_UNITS_PER_CARD * _count(is_healthy) < pod.app_amount(Resource.CORE)
        for needed in {ask.needed for ask in asked.asking}:
            found |= _count(self.size >= needed.units_per_card) < needed.cards
        return found

    def left_milli(self, demand: Demand) -> _Ints:
        """`Room.free_milli` of each card with a container of this demand on it."""
        units = np.maximum(self.mem - demand.units_per_card, 0)
        # Of amounts this small the quotient is as exact as that of whole numbers, which take five times as long.
        left = (WHOLE_CARD_MILLI * units / np.maximum(self.size, 1)).astype(np.int64)
        if demand.core_percent:  # always, and only, where the mode divides compute
            core = np.maximum(self.core - demand.core_percent, 0)
            np.minimum(left, core * (WHOLE_CARD_MILLI // CORE_UNITS_PER_CARD), out=left)
        return np.where(self.pods + 1 >= self.most, 0, np.minimum(left, WHOLE_CARD_MILLI))

    def order(self, policy: PlacementPolicy, demand: Demand, left: _Ints) -> _Ints:
        """The sort key by which `place` chooses cards: the lowest, of equal ones the first. Below `_OTHER_CARD`."""
        match policy:
            case PlacementPolicy.BINPACK:
                return self.mem * (CORE_UNITS_PER_CARD + 1) + self.core
            case PlacementPolicy.SPREAD:
                return -(self.mem * (CORE_UNITS_PER_CARD + 1) + self.core)
            case PlacementPolicy.FGD:
                lost = 0 if demand.is_exclusive else _LOST[-1].take(left)
                found: _Ints = (lost - _LOST[-1].take(self.milli)) * _MOST_UNITS + self.mem
                return found

    def place_all(
        self, asked: CheckedRequest, fitting: Mapping[Demand, _Bools]
    ) -> tuple[_Bools, Mapping[PlacementPolicy, _Floats]]:
        """Where all containers fit, placed one after the other, and the score by each policy that counts.

        Those that reuse an init container's units are placed with it, on cards that have room for all of
        them; where none have, plain code tells. `fitting` has the cards for each demand alone.
        """
        is_fgd = _FGD in (asked.policy, asked.default)
        fits, now = np.ones(len(self.cpu), dtype=bool), self
        on = np.zeros(self.mem.shape, dtype=bool)
        for number, needed in enumerate(ask.ahead for ask in asked.asking if ask.ahead):
            is_known = not number and needed in fitting
            may = fitting[needed] if is_known else now.fitting(needed)
            fits &= _count(may) >= needed.cards
            left = now.left_milli(needed) if is_fgd else now.milli
            order = now.order(asked.policy, needed, left)
            if number:
                order += np.where(on, 0, _OTHER_CARD)
            chosen = _least(order, may, needed.cards)
            now = now._replace(
                mem=now.mem - chosen * needed.units_per_card,
                core=now.core - chosen * needed.core_percent,
                milli=np.where(chosen, left, now.milli) if is_fgd else left,
            )
            on |= chosen
        free = (now.mem * on).sum(0) / np.maximum((self.size * on).sum(0), 1)
        found: dict[PlacementPolicy, _Floats] = scores_by_fullness(free)
        if is_fgd:
            found[_FGD] = self._grades(now.milli, asked.pod.cpu_milli) / 100
        return fits, found

    def _grades(self, left: _Ints, cpu_milli: int) -> _Floats:
        """`grade_placement` of each node: what its cards have `left`, the pod's processor taken."""
        cpu = self.cpu - min(cpu_milli, _NO_BOUND)
        gain = _fragmentation(self.milli, self.cpu) - _fragmentation(left, cpu)
        steps = np.floor(SCORE_STEPS / (1.0 + np.exp(-gain / SCORE_SCALE_MILLI)))
        stranded = _stranded(left, cpu) - _stranded(self.milli, self.cpu)
        broken = _count(self.milli == WHOLE_CARD_MILLI) - _count(left == WHOLE_CARD_MILLI)
        found: _Floats = steps - np.rint(stranded / STRANDED_STEP_MILLI) - broken / 1000
        return found


def _count(of_cards: _Bools) -> _Ints:
    """How many of each node's cards; a node has a few dozen."""
    return np.asarray(of_cards.sum(0, dtype=np.int8), dtype=np.int64)


def _least(order: _Ints, may: _Bools, count: int) -> _Bools:
    """So many of the cards of each node that `may`: those of the least `order`, of equal ones the first."""
    cards = len(order)
    keys = np.where(may, order * cards + np.arange(cards)[:, None], _NEVER)
    found: _Bools = keys == keys.min(0)
    for _ in range(count - 1):
        keys[found] = _NEVER
        found |= keys == keys.min(0)
    return found


def _fragmentation(milli: _Ints, cpu: _Ints) -> _Floats:
    level = np.clip(cpu // CPU_LEVEL_MILLI, 0, TENTHS) * _LEVEL
    found: _Floats = _LOST.take(level + milli).sum(0) / TENTHS
    return found


def _stranded(milli: _Ints, cpu: _Ints) -> _Floats:
    found: _Floats = np.maximum(milli.sum(0) - cpu / CPU_PER_CARD, 0.0)
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

    fits: list[tuple[_Names, PlacementPolicy, _Floats, _Floats]]
    misfits: list[tuple[Misfit, list[str]]]
    left: list[list[str]]
    unknown: list[str]

    def decide(self, names: list[str], answer: Fit | Misfit) -> None:
        """What plain code says of nodes that have the same left."""
        if isinstance(answer, Misfit):
            self.misfits.append((answer, names))
            return
        score, count = answer.score, len(names)
        own, common = np.full(count, score.own), np.full(count, score.common)
        self.fits.append((np.array(names, dtype=object), score.policy, own, common))

    def scores(self) -> tuple[_Names, _Floats]:
        """The score of each node that fits: by the nodes' policy where all have the same, else by the default."""
        is_one = len({policy for _, policy, _, _ in self.fits}) == 1
        scores = [own if is_one else common for _, _, own, common in self.fits]
        names = [names for names, _, _, _ in self.fits]
        return np.concatenate([np.zeros(0, dtype=object), *names]), np.concatenate([(), *scores])

    def keep(self, most: int) -> list[str]:
        """The first of the best nodes; the others that fit become misfits that say so."""
        names, scores = self.scores()
        if not len(names):
            return []
        is_best = scores == scores.max()
        equal = sorted(names[is_best].tolist())
        others = {"fits better": names[~is_best].tolist(), "comes first": equal[most:]}
        for why, of_these in others.items():
            text = f"fits, but {equal[0]} {why}"
            self.misfits.append((Misfit(text, is_final=False), of_these))
        return equal[:most]

    def points(self, most: int) -> Iterator[tuple[int, list[str]]]:
        """The nodes that fit, by points: `most` for the first of the best, one at least less for the others.

        None for the worst. kube-scheduler adds scores of its own, which prefer empty nodes: points that
        are equal for equal nodes would leave the choice to these.
        """
        names, scores = self.scores()
        if not len(names):
            return
        worst, best = scores.min(), scores.max()
        points = ((most - 1) / (best - worst or 1.0) * (scores - worst)).astype(np.int64)
        points[names == min(names[scores == best])] = most
        for number in set(points.tolist()):
            yield number, names[points == number].tolist()

    def add(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        """What the arrays say of nodes that break no rule."""
        fitting = {needed: nodes.fitting(needed) for needed in {a.needed for a in asked.asking}}
        may = np.ones(len(names), dtype=bool)
        for needed, cards in fitting.items():
            may &= _count(cards) >= needed.cards
        if not may.all():
            self._refuse(names[~may], nodes.where(~may), asked)
        if not may.any():
            return
        fits, by = nodes.place_all(asked, fitting)
        fits &= may
        if fits.any():
            own, common = by[asked.policy][fits], by[asked.default][fits]
            self.fits.append((names[fits], asked.policy, own, common))
        left = may & ~fits
        if left.any():
            self._leave(names[left], nodes.where(left), asked)

    def _leave(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        is_fgd = _FGD in (asked.policy, asked.default)
        left = np.vstack([*nodes[: len(_NO_CARD)], nodes.cpu * is_fgd, nodes.most]).T
        alike: dict[bytes, list[str]] = {}
        for name, row in zip(names, left, strict=True):
            alike.setdefault(row.tobytes(), []).append(name)
        self.left += alike.values()

    def _refuse(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        is_final = nodes.too_small(asked)
        is_full: _Bools = _count(nodes.pods >= nodes.most) > 0
        for needed in {ask.needed for ask in asked.asking}:
            is_full &= _count(nodes.fitting(needed, is_bounded=False)) >= needed.cards
        self._refused(FULL_OF_PODS_TEXT, names, is_full, is_final)
        self._refused(NOT_ENOUGH_TEXT, names, ~is_full, is_final)

    def _refused(self, text: str, names: _Names, where: _Bools, is_final: _Bools) -> None:
        for final in (True, False):
            of_these = names[where & (is_final == final)].tolist()
            self.misfits.append((Misfit(text, is_final=final), of_these))


class CardArrays:
    """Nodes by name: each has a place in the arrays, and what changes of it is written there."""

    def __init__(self) -> None:
        self._cards = np.zeros((len(_NO_CARD), 0, 0), dtype=np.int64)
        self._nodes = np.zeros((len(_Nodes._fields) - len(_NO_CARD), 0), dtype=np.int64)
        self._names = np.zeros(0, dtype=object)
        self._at: dict[str, int] = {}
        self._unused: list[int] = []
        # Each mode and policy has a number; one node stands for all that have it.
        self._rules: dict[object, int] = {}
        self._examples: list[NodeOffer] = []

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def put(self, offer: NodeOffer, rooms: Sequence[Room], cpu_milli: int) -> None:
        rules = self._rules.setdefault(rules_of(offer), len(self._examples))
        if rules == len(self._examples):
            self._examples.append(offer)
        at, cpu = self._place(offer.name, len(rooms)), min(cpu_milli, _NO_BOUND)
        most = most_pods(offer.mode, offer.max_pods)
        self._nodes[:, at] = cpu, _NO_BOUND if most is None else most, rules
        cards = [_card(room) for room in sorted(rooms, key=lambda room: room.amounts)]
        cards += [_NO_CARD] * (self._cards.shape[1] - len(cards))
        self._cards[..., at] = np.array(cards, dtype=np.int64).reshape(-1, len(_NO_CARD)).T

    def drop(self, name: str) -> None:
        """A node is gone; one that is not known is no error."""
        if name in self._at:
            self._unused.append(self._at.pop(name))

    def _place(self, name: str, cards: int) -> int:
        """The column of a node with so many cards; the arrays grow where they have to."""
        _, width, nodes = self._cards.shape
        if cards > width:
            more = np.array(_NO_CARD)[:, None, None].repeat(cards - width, 1).repeat(nodes, 2)
            self._cards = np.concatenate((self._cards, more), axis=1)
        if name not in self._at and not self._unused:
            spare = nodes // 4 + 1
            self._cards = np.pad(self._cards, ((0, 0), (0, 0), (0, spare)))
            self._nodes = np.pad(self._nodes, ((0, 0), (0, spare)))
            self._names = np.pad(self._names, (0, spare))
            self._unused = [*reversed(range(nodes, nodes + spare))]
        if name not in self._at:
            at = self._at[name] = self._unused.pop()
            self._names[at] = name
        return self._at[name]

    def _of(self, at: NDArray[np.intp]) -> tuple[_Ints, _Ints]:
        """The arrays of these places, which ascend; of the first so many without a copy."""
        if len(at) and at[-1] == len(at) - 1:
            return self._cards[..., : len(at)], self._nodes[..., : len(at)]
        return self._cards.take(at, -1), self._nodes.take(at, -1)

    def judge(self, names: Sequence[str], checks: RequestChecks) -> Judged:
        at = np.fromiter(map(self._at.get, names, repeat(-1)), np.intp, len(names))
        unknown = (
            [name for name in dict.fromkeys(names) if name not in self._at]
            if (at < 0).any()
            else []
        )
        found, asked_about = Judged([], [], [], unknown), np.zeros(len(self._names), dtype=bool)
        asked_about[at[at >= 0]] = True
        every = np.flatnonzero(asked_about)
        rules = self._nodes[-1].take(every)
        for number in set(rules.tolist()):
            here = every.compress(rules == number)
            these, asked = self._names.take(here), checks.of(self._examples[number])
            if isinstance(asked, Misfit):
                found.misfits.append((asked, these.tolist()))
            else:
                cards, nodes = self._of(here)
                found.add(these, _Nodes(*cards, *nodes), asked)
        return found


def _card(room: Room) -> tuple[int, ...]:
    size = room.card.capacity(room.unit) if room.is_healthy else -1
    free_mem = room.free_mem if room.is_healthy and not room.is_closed else 0
    return free_mem, room.free_core, size, room.pods, room.free_milli
