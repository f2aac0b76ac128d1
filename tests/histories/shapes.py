"""Shapes of pods: what a history may ask for, good and bad."""

from collections.abc import Mapping

from tests.histories.driver import PROFILE
from tools.harness.kubelet_pods import StandInContainer, StandInPod

from gpu_device_plugin.domain.node.pods import ContainerKind

MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
GPU, INSTANCE = "nvidia.com/gpu", f"nvidia.com/mig-{PROFILE}"
FRACTIONS, WHOLE = (MEM, CORE, COUNT), (GPU, INSTANCE)
CARDS_LABEL = "aliyun.com/gpu-count"
ALONE = {"ack.gpushare.placement": "require-whole-device"}
_INIT, _SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def _asks(
    name: str, mem: int, core: int, kind: ContainerKind = ContainerKind.APP, count: int = 0
) -> StandInContainer:
    asked = {MEM: mem, CORE: core, COUNT: count}
    return StandInContainer(name, {key: n for key, n in asked.items() if n}, kind)


def _devices(name: str, resource: str, amount: int = 1) -> StandInContainer:
    return StandInContainer(name, {resource: amount})


_SHAPES: Mapping[str, tuple[StandInContainer, ...]] = {
    "small": (_asks("main", 1, 5),),
    "plain": (_asks("main", 2, 30),),
    "quarter": (_asks("main", 3, 20),),
    "half": (_asks("main", 7, 50),),
    "whole": (_asks("main", 15, 100),),
    "alone": (_asks("main", 4, 20),),
    "as alone": (_asks("main", 4, 20),),
    "alone, init": (_asks("prepare", 3, 20, _INIT), _asks("main", 3, 20)),
    "several": (_asks("one", 2, 20), _asks("two", 3, 10), _asks("none", 0, 0)),
    "init": (_asks("prepare", 4, 20, _INIT), _asks("main", 4, 20)),
    "bigger init": (_asks("prepare", 6, 40, _INIT), _asks("main", 2, 20), _asks("two", 2, 10)),
    "smaller init": (_asks("prepare", 1, 5, _INIT), _asks("main", 5, 25)),
    "sidecar": (_asks("helper", 1, 10, _SIDECAR), _asks("main", 3, 20)),
    "sidecar, init": (
        _asks("helper", 3, 20, _SIDECAR),
        _asks("prepare", 6, 30, _INIT),
        _asks("main", 2, 10),
    ),
    "init, sidecar": (
        _asks("prepare", 3, 20, _INIT),
        _asks("helper", 2, 10, _SIDECAR),
        _asks("main", 2, 10),
    ),
    "static": (_asks("main", 2, 15),),
    "static pair": (_asks("one", 1, 10), _asks("two", 2, 10)),
    "memory": (_asks("main", 3, 0),),
    "two cards": (_asks("main", 6, 0),),
    "nothing": (_asks("main", 0, 0),),
    "too big": (_asks("main", 16, 30),),
    "odd percentage": (_asks("main", 2, 7),),
    "compute only": (_asks("main", 0, 30),),
    "count": (_asks("main", 2, 30, count=1),),
    "card": (_devices("main", GPU),),
    "two whole cards": (_devices("main", GPU, 2),),
    "card each": (_devices("one", GPU), _devices("two", GPU)),
    "instance": (_devices("main", INSTANCE),),
    "two instances": (_devices("main", INSTANCE, 2),),
}
OF_NVIDIA = ("card", "card", "card each", "two whole cards")
OF_MIG = ("instance", "instance", "two instances")
SHAPES = tuple(name for name in _SHAPES if name not in {*OF_NVIDIA, *OF_MIG})
WARM = ("small", "small", "plain", "quarter", "quarter", "several", "sidecar", "static")
"""Those that a node has from the start: four of them fit one card."""
TIGHT = ("half", "half", "quarter", "several", "sidecar, init", "bigger init", "alone")
"""Those for which both cards together soon have room, and neither of them has."""
OF_EXCLUSIVE = ("alone", "alone, init", "alone, init", "small", "plain")
"""Where a card is for one pod alone, and soon for another."""
OF_REPLACED = ("alone", "as alone", "as alone", "half", "half", "too big")
"""Of equal amounts with and without that wish, and such as are refused and asked for again with less."""
FIT_WITHOUT_COMPUTE = frozenset({"memory", "two cards", "nothing"})
"""What modes cgpu and share give."""
FIT_WITH_COMPUTE = frozenset(SHAPES) - {
    "too big",
    "odd percentage",
    "compute only",
    "count",
    "memory",
    "two cards",
}
"""What mode core_mem gives."""
_LABELS = {"two cards": {CARDS_LABEL: "2"}, "alone": ALONE, "alone, init": ALONE}


def pod_of(name: str, uid: str, shape: str) -> StandInPod:
    """A pod of that shape."""
    return StandInPod("default", name, uid, _SHAPES[shape], _LABELS.get(shape, {}))


def is_static(shape: str) -> bool:
    """Whether its file lies on the node."""
    return shape.startswith("static")
