"""The openb trace: nodes and pods of one of Alibaba's clusters, and the published curves.

The files are test data beside the repository (`../shared/openb`), not part of it. They come from
hkust-adsl/kubernetes-scheduler-simulator (Apache-2.0) of "Beware of Fragmentation: Scheduling
GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
"""

import csv
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench.openb.workload import Shape

from gpu_device_plugin.domain.fractions.fragmentation import WHOLE_CARD_MILLI, NodeRoom

FOLDER = Path(__file__).parents[4] / "shared" / "openb"
_HALVES_SEED = 1
_ARRIVING = 1.3  # of the cluster's cards


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the trace."""

    room: NodeRoom
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the trace."""

    shape: Shape
    memory_mib: int

    @property
    def card_milli(self) -> int:
        """What it takes of all its cards."""
        return self.shape.cards * self.shape.card_milli


class Filled:
    """How much of a cluster is allocated, by how much has arrived."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._capacity = sum(sum(node.room.cards) for node in nodes)
        self._arrived = self._allocated = 0
        self._at: dict[int, list[int]] = {}

    def add(self, pod: Pod, *, is_placed: bool) -> None:
        """A pod has arrived, and was placed or dropped."""
        self._arrived += pod.card_milli
        self._allocated += pod.card_milli * is_placed
        percent = round(100 * self._arrived / self._capacity)
        self._at.setdefault(percent, []).append(self._allocated)

    def curve(self) -> list[float]:
        """Percent of the cluster's cards that are allocated, the mean at each arrived percent from 0 on."""
        return [100 * statistics.mean(each) / self._capacity for each in self._at.values()]


def nodes() -> list[Node]:
    """The nodes with cards, by name."""
    rows = sorted(_rows("openb_node_list_gpu_node.csv"), key=lambda row: row["sn"])
    return [
        Node(
            NodeRoom(int(row["cpu_milli"]), (WHOLE_CARD_MILLI,) * int(row["gpu"])),
            int(row["memory_mib"]),
        )
        for row in rows
    ]


def pods() -> list[Pod]:
    """The default list."""
    return [
        Pod(
            Shape(int(row["cpu_milli"]), int(row["num_gpu"]), int(row["gpu_milli"])),
            int(row["memory_mib"]),
        )
        for row in _rows("openb_pod_list_default.csv")
    ]


def fractional(pods: Sequence[Pod], seed: int) -> list[Pod]:
    """As much demand as `pods` have, drawn from those that ask for a part of one card."""
    parts = [pod for pod in pods if 0 < pod.card_milli < WHOLE_CARD_MILLI]
    drawn, wanted = random.Random(seed), sum(pod.card_milli for pod in pods)  # noqa: S311
    found: list[Pod] = []
    taken = 0
    while taken < wanted:
        found.append(drawn.choice(parts))
        taken += found[-1].card_milli
    return found


def halves(pods: Sequence[Pod]) -> tuple[list[Pod], list[Pod]]:
    """One half of the pods to choose constants on, the other one to judge them."""
    drawn = list(pods)
    random.Random(_HALVES_SEED).shuffle(drawn)  # noqa: S311
    return drawn[::2], drawn[1::2]


def arrivals(pods: Sequence[Pod], capacity_milli: int, seed: int) -> list[Pod]:
    """The list, filled up with draws from itself to 130 % of the cluster, shuffled."""
    drawn = random.Random(seed)  # noqa: S311
    found, asked = list(pods), sum(pod.card_milli for pod in pods)
    while True:
        pod = drawn.choice(pods)
        asked += pod.card_milli
        if asked > _ARRIVING * capacity_milli:
            drawn.shuffle(found)
            return found
        found.append(pod)


def published() -> dict[str, list[float]]:
    """Policy -> the published median of ten runs, allocated percent by arrived percent 0 to 130."""
    runs: dict[str, list[list[float]]] = {}
    for row in _rows("expected_alloc_curves.csv"):
        if row["workload"] == "openb_pod_list_default":
            curve = [float(row[str(percent)]) for percent in range(131)]
            runs.setdefault(row["sc_policy"].split("-")[-1], []).append(curve)
    return {
        name: [statistics.median(values) for values in zip(*curves, strict=True)]
        for name, curves in runs.items()
    }


def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
