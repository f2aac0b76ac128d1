"""Nodes and pods as the API server has them, for tests of the controller."""

import json
from collections.abc import Mapping
from typing import Any

from gpu_device_plugin.domain.fractions.pod_annotations import ALLOCATION, ASSIGNED, CORE_ALLOCATION

UNITS, _MIB = 15, 16160
Json = dict[str, Any]


def node(
    name: str,
    cards: int = 2,
    *,
    mode: str = "core_mem",
    sick: tuple[int, ...] = (),
    out: tuple[int, ...] = (),
    cpu: str | None = None,
    by_claims: tuple[int, ...] = (),
    claimed: Mapping[int, tuple[int, int]] | None = None,
) -> Json:
    """A node whose agent has told its cards; an operator takes those out that are `out`.

    Those `by_claims` have the allocation API `dra`.
    What one pod has `claimed` of each card are units and percent.
    """
    told = {
        "version": 1,
        "mode": mode,
        "unit_mib": 1024,
        "cards": [
            {
                "index": index,
                "uuid": f"GPU-{name}-{index}",
                "model": "Tesla-V100-SXM2-16GB",
                "memory_mib": _MIB,
                "units": UNITS,
                "healthy": index not in (*sick, *out),
                **({"fault": "TakenOut since 2026-11-24T02:51:07Z"} if index in out else {}),
                **({"fault": "XID79 since 2026-11-24T02:51:07Z"} if index in sick else {}),
                **({"allocation_api": "dra"} if index in by_claims else {}),
                **_claimed((claimed or {}).get(index)),
            }
            for index in range(cards)
        ],
    }
    return {
        "metadata": {"name": name, "annotations": {"gpu-device-plugin/cards": json.dumps(told)}},
        "status": {"allocatable": {"cpu": cpu} if cpu else {}},
    }


def _claimed(amounts: tuple[int, int] | None) -> Json:
    if amounts is None:
        return {}
    return {"claimed": {"pods": 1, "units": amounts[0], "percent": amounts[1]}}


def pod(
    name: str,
    units: int = 0,
    percent: int = 0,
    *,
    on: str = "",
    annotations: Mapping[str, str] | None = None,
    cpu: str | None = None,
) -> Json:
    """A pod of one container."""
    amounts = {"aliyun.com/gpu-mem": units, "aliyun.com/gpu-core.percentage": percent}
    limits = {key: str(value) for key, value in amounts.items() if value}
    resources = {"limits": limits, "requests": {"cpu": cpu} if cpu else {}}
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "annotations": dict(annotations or {}),
        },
        "spec": {"nodeName": on, "containers": [{"name": "a", "resources": resources}]},
    }


def claiming(
    name: str,
    units: int,
    percent: int = 0,
    *,
    on: str = "",
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pod of one container, as the chart's policy rewrites it."""
    made = pod(name, on=on, annotations=annotations)
    claim = f"slice-{units}-{percent}-c0"
    made["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimTemplateName": "gpu-slice"}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim}]}
    made["status"] = {"resourceClaimStatuses": [{"name": claim, "resourceClaimName": f"{name}-x"}]}
    return made


def held(card: int, units: int, percent: int, *, assigned: str = "true") -> dict[str, str]:
    """Annotations of a pod whose first container is on this card."""
    return {
        ALLOCATION: json.dumps({"0": {str(card): units}}),
        CORE_ALLOCATION: json.dumps({"0": {str(card): percent}}),
        ASSIGNED: assigned,
    }


def path(value: Json) -> str:
    """Where a pod lives."""
    return f"/api/v1/namespaces/ns/pods/{value['metadata']['name']}"
