"""What a pod means that asks for whole devices by a name that no node offers, and what would offer that name."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from gpu_device_plugin.domain.grants.holdings_annotation import TOPOLOGY_GPU
from gpu_device_plugin.domain.wording import few
from gpu_device_plugin.kubernetes.objects.pod_spec import device_count
from gpu_device_plugin.kubernetes.objects.survey_objects import SurveyedNode

_GPU, _SHARED, _MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-"
_TYPO = re.compile(r"nvidia\.com/mig-?(\d+g\.\d+gb)")
_ALIKE = 0.85
_RENAME = (
    "`renameByDefault: {}` under sharing.timeSlicing or sharing.mps of the nodes' configuration"
)


def offered_devices(nodes: Iterable[SurveyedNode]) -> Mapping[str, int]:
    """Resource -> how many whole devices, replicas or instances all nodes offer."""
    found = Counter[str]()
    for node in nodes:
        for name, amount in (node.status.allocatable or {}).items():
            if name.startswith("nvidia.com/") or name == TOPOLOGY_GPU:
                found[name] += device_count(amount)
    return {name: amount for name, amount in found.items() if amount}


def other_names(asked: Collection[str], offered: Mapping[str, int]) -> tuple[str, ...]:
    """For each name what to ask instead, or what to set; empty where one is offered, or nothing is like them."""
    if any(name in offered for name in asked):
        return ()
    return tuple(filter(None, (_other_name(name, offered) for name in sorted(asked))))


def _other_name(asked: str, offered: Mapping[str, int]) -> str:
    instances = sorted(name for name in offered if name.startswith(_MIG))
    there = f"no node offers {asked}; nodes offer " + few(
        f"{n}: {offered[n]}" for n in sorted(offered)
    )
    if asked == _SHARED and _GPU in offered:
        return f"{there}: ask {_GPU}, or set {_RENAME.format('true')}, which is what offers {asked}"
    if asked == _GPU and _SHARED in offered:
        return f"{there}: ask {_SHARED}, or set {_RENAME.format('false')}"
    if asked == _GPU and instances:
        single = (
            "the MIG strategy single (chart: migStrategy), which offers equal instances as " + _GPU
        )
        return f"{there}: ask one of these instances, or set {single}"
    typo = _TYPO.fullmatch(asked)
    meant = [f"{_MIG}{typo[1]}"] if typo and asked != f"{_MIG}{typo[1]}" else []
    meant = meant or difflib.get_close_matches(asked, list(offered), 1, _ALIKE)
    return f"{there}: did you mean {meant[0]}?" if meant else ""
