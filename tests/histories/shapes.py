"""Shapes of pods: what a history may ask for, good and bad."""

from collections.abc import Mapping

from tools.harness.kubelet_pods import StandInContainer, StandInPod

from gpu_device_plugin.domain.node.pods import ContainerKind

MEM, CORE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"
CARDS_LABEL = "aliyun.com/gpu-count"


def _asks(
    name: str, mem: int, core: int, kind: ContainerKind = ContainerKind.APP, count: int = 0
) -> StandInContainer:
    asked = {MEM: mem, CORE: core, COUNT: count}
    return StandInContainer(name, {key: n for key, n in asked.items() if n}, kind)


_SHAPES: Mapping[str, tuple[StandInContainer, ...]] = {
    "small": (_asks("main", 1, 5),),
    "plain": (_asks("main", 2, 30),),
    "half": (_asks("main", 7, 50),),
    "whole": (_asks("main", 15, 100),),
    "several": (_asks("one", 2, 20), _asks("two", 3, 10), _asks("none", 0, 0)),
    "init": (_asks("prepare", 4, 20, ContainerKind.INIT), _asks("main", 4, 20)),
    "bigger init": (
        _asks("prepare", 6, 40, ContainerKind.INIT),
        _asks("main", 2, 20),
        _asks("two", 2, 10),
    ),
    "smaller init": (_asks("prepare", 1, 5, ContainerKind.INIT), _asks("main", 5, 25)),
    "sidecar": (_asks("helper", 1, 10, ContainerKind.SIDECAR), _asks("main", 3, 20)),
    "memory": (_asks("main", 3, 0),),
    "two cards": (_asks("main", 6, 0),),
    "nothing": (_asks("main", 0, 0),),
    "too big": (_asks("main", 16, 30),),
    "odd percentage": (_asks("main", 2, 7),),
    "compute only": (_asks("main", 0, 30),),
    "count": (_asks("main", 2, 30, count=1),),
}
SHAPES = tuple(_SHAPES)
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


def pod_of(name: str, uid: str, shape: str) -> StandInPod:
    """A pod of that shape."""
    labels = {CARDS_LABEL: "2"} if shape == "two cards" else {}
    return StandInPod("default", name, uid, _SHAPES[shape], labels)
