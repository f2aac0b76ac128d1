"""What the cards of all nodes have free, as arrays: one pod is judged on thousands of nodes at once.

It decides as `domain.fractions.node_fit` does for one node; a test compares both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_device_plugin.domain.fractions.card_limits import most_pods
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
    OTHER_API_TEXT,
    CheckedRequest,
    Fit,
    Misfit,
    RequestChecks,
)
from gpu_device_plugin.domain.fractions.placement import scores_by_fullness
from gpu_device_plugin.domain.fractions.room import Room
from gpu_device_plugin.domain.fractions.units import CORE_UNITS_PER_CARD, Resource
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.node_annotations import NodeOffer
from gpu_device_plugin.domain.node.modes import PlacementPolicy
from gpu_device_plugin.domain.node.pods import ContainerKind

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_Floats = NDArray[np.float64]
_Names = NDArray[np.object_]
_NEVER, _NO_BOUND = np.iinfo(np.int64).max, 1 << 60
_MOST_UNITS = 1 << 31
"""More than any card has (node_annotations)."""
_NO_CARD = (0, 0, -1, 0, 0)
_FGD = PlacementPolicy.FGD
_LOST = np.array(LOST_OF_FREE, dtype=np.int64)


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
        is_other_api: 1 where all cards are given by the other allocation API, else 0.
        rules: Which mode and policy.
    """

    mem: _Ints
    core: _Ints
    size: _Ints
    pods: _Ints
    milli: _Ints
    cpu: _Ints
    most: _Ints
    is_other_api: _Ints
    rules: _Ints

    def where(self, mask: _Bools) -> "_Nodes":
        """Some of them."""
        return self if mask.all() else _Nodes(*(each.compress(mask, -1) for each in self))

    def fitting(self, demand: Demand, *, is_bounded: bool = True) -> _Bools:
        """The cards on which a container of this demand fits, as `Room.lack` says.

        Without `is_bounded`: if a card took any number of pods.
        """
        others = self.pods < (1 if demand.is_exclusive else _NO_BOUND)
        has_mem, has_core = self.mem >= demand.units_per_card, self.core >= demand.core_percent
        fits: _Bools = others & has_mem & has_core
        return fits & (self.pods < self.most) if is_bounded else fits

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

    def order(self, policy: PlacementPolicy, demand: Demand, left: _Ints) -> _Ints:
        """Which cards `place` would choose: the least, of equal ones the first."""
        match policy:
            case PlacementPolicy.BINPACK:
                return self.mem * (CORE_UNITS_PER_CARD + 1) + self.core
            case PlacementPolicy.SPREAD:
                return -(self.mem * (CORE_UNITS_PER_CARD + 1) + self.core)
            case PlacementPolicy.FGD:
                lost = _LOST[-1][0 if demand.is_exclusive else left] - _LOST[-1][self.milli]
                found: _Ints = lost * _MOST_UNITS + self.mem
                return found

    def placed(self, asked: CheckedRequest) -> tuple[_Bools, Mapping[PlacementPolicy, _Floats]]:
        """Where all containers fit, placed one after the other, and the score by each policy that counts.

        As if init containers handed nothing on.
        """
        is_fgd = _FGD in (asked.policy, asked.default)
        fits, now = np.ones(len(self.cpu), dtype=bool), self
        on = np.zeros(self.mem.shape, dtype=bool)
        for needed in (ask.needed for ask in asked.asking):
            may = now.fitting(needed)
            fits &= may.sum(0) >= needed.cards
            left = now.left_milli(needed) if is_fgd else now.milli
            order = now.order(asked.policy, needed, left)
            if on.any():
                order += np.where(on, 0, _NO_BOUND)
            chosen = _least(np.where(may, order, _NEVER), needed.cards)
            now = now._replace(
                mem=now.mem - chosen * needed.units_per_card,
                core=now.core - chosen * needed.core_percent,
                milli=np.where(chosen, left, now.milli),
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
        broken = (self.milli == WHOLE_CARD_MILLI).sum(0) - (left == WHOLE_CARD_MILLI).sum(0)
        found: _Floats = steps - np.rint(stranded / STRANDED_STEP_MILLI) - broken / 1000
        return found


def _least(order: _Ints, count: int) -> _Bools:
    """So many of the cards of each node."""
    found, node = np.zeros(order.shape, dtype=bool), np.arange(order.shape[1])
    for _ in range(count):
        best = order.argmin(axis=0)
        found[best, node], order[best, node] = True, _NEVER
    return found


def _fragmentation(milli: _Ints, cpu: _Ints) -> _Floats:
    level = np.clip(cpu // CPU_LEVEL_MILLI, 0, TENTHS)
    found: _Floats = _LOST[level, milli].sum(0) / TENTHS
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

    def add(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        """What the arrays say of nodes that break no rule."""
        may = np.ones(len(names), dtype=bool)
        for needed in {ask.needed for ask in asked.asking}:
            may &= nodes.fitting(needed).sum(0) >= needed.cards
        if not may.all():
            self._refuse(names[~may], nodes.where(~may), asked)
        names, nodes = names[may], nodes.where(may)
        if not len(names):
            return
        fits, by = nodes.placed(asked)
        if any(ask.container.kind is ContainerKind.INIT for ask in asked.asking):
            fits[:] = False  # what they hand on, only plain code counts
        if fits.any():
            own, common = by[asked.policy][fits].tolist(), by[asked.default][fits].tolist()
            self.fits.append((names[fits].tolist(), asked.policy, own, common))
        if not fits.all():
            self._leave(names[~fits], nodes.where(~fits), asked)

    def _leave(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        is_fgd = _FGD in (asked.policy, asked.default)
        left = np.vstack([*nodes[: len(_NO_CARD)], nodes.cpu * is_fgd, nodes.most]).T
        alike: dict[bytes, list[str]] = {}
        for name, row in zip(names, left, strict=True):
            alike.setdefault(row.tobytes(), []).append(name)
        self.left += alike.values()

    def _refuse(self, names: _Names, nodes: _Nodes, asked: CheckedRequest) -> None:
        is_other_api, is_final = nodes.is_other_api == 1, nodes.too_small(asked)
        is_full = (nodes.pods >= nodes.most).any(0)
        for needed in {ask.needed for ask in asked.asking}:
            is_full &= nodes.fitting(needed, is_bounded=False).sum(0) >= needed.cards
        self._refused(OTHER_API_TEXT, names, is_other_api, np.ones_like(is_final))
        self._refused(FULL_OF_PODS_TEXT, names, is_full & ~is_other_api, is_final)
        self._refused(NOT_ENOUGH_TEXT, names, ~is_full & ~is_other_api, is_final)

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

    def put(self, offer: NodeOffer, rooms: Sequence[Room], cpu_milli: int) -> None:
        """A node has this left now."""
        rules = self._rules.setdefault((offer.mode, offer.policy), len(self._examples))
        if rules == len(self._examples):
            self._examples.append(offer)
        at, cpu = self._place(offer.name, len(rooms)), min(cpu_milli, _NO_BOUND)
        most = most_pods(offer.mode, offer.max_pods)
        is_other_api = bool(rooms) and all(room.is_of_other_api for room in rooms)
        self._nodes[:, at] = cpu, _NO_BOUND if most is None else most, is_other_api, rules
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
        """Whether and how well a pod fits each of these nodes."""
        at = np.fromiter(map(self._at.get, names, repeat(-1)), np.intp, len(names))
        unknown = [name for name in names if name not in self._at] if (at < 0).any() else []
        found, asked_about = Judged([], [], [], unknown), np.zeros(len(self._names), dtype=bool)
        asked_about[at[at >= 0]] = True
        for number in np.unique(self._nodes[-1, asked_about]).tolist():
            here = np.flatnonzero(asked_about & (self._nodes[-1] == number))
            these, asked = self._names[here], checks.of(self._examples[number])
            if isinstance(asked, Misfit):
                found.misfits.append((asked, these.tolist()))
            else:
                cards, nodes = self._of(here)
                found.add(these, _Nodes(*cards, *nodes), asked)
        return found


def _card(room: Room) -> tuple[int, ...]:
    is_shut = room.is_closed or room.is_of_other_api
    size = room.card.capacity(room.unit) if room.is_healthy else -1
    free_mem = room.free_mem if room.is_healthy and not is_shut else 0
    return free_mem, room.free_core, size, room.pods, room.free_milli
