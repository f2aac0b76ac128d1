"""The wish for the cards of a pod that is about to be bound, as annotations."""

import json
from collections.abc import Collection, Mapping

from gpu_device_plugin.domain.schemes.aliyun.annotations import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CORE_ALLOCATION,
    INIT_ALLOCATION,
    V1_ASSIGNED,
    V1_ASSUME_TIME,
    V1_INDEX,
)
from gpu_device_plugin.domain.schemes.aliyun.cluster_view import PodHold
from gpu_device_plugin.domain.schemes.aliyun.pod_take import Shares


def wish_annotations(hold: PodHold, now_ns: int, before: Collection[str] = ()) -> dict[str, str]:
    """The wish for a pod that is about to be bound (R-540): version 2, and 1 where it can say it.

    Neither names sidecars and init containers: they have an annotation of ours.

    Args:
        hold: The cards for the pod.
        now_ns: Wall clock.
        before: Keys that the pod has already, for instance as the copy of another: a binding removes
            none, so those of which the wish says nothing are emptied.
    """
    values = {
        **{key: "{}" for key in (CORE_ALLOCATION, INIT_ALLOCATION) if key in before},
        # Of several cards version 1 cannot speak; an index that is none says nothing.
        **({V1_INDEX: "-1"} if V1_INDEX in before else {}),
        ALLOCATION: _amounts(hold.by_container, 0),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }
    by_card = hold.by_card()
    if any(percent for _, percent in by_card.values()):
        values[CORE_ALLOCATION] = _amounts(hold.by_container, 1)
    if hold.inits:
        values[INIT_ALLOCATION] = _amounts(hold.inits, 0)
    if len(by_card) == len(hold.by_container) == 1:
        values |= {V1_INDEX: str(next(iter(by_card))), V1_ASSIGNED: "false"}
        values[V1_ASSUME_TIME] = str(now_ns)
    return values


def _amounts(by_container: Mapping[int, Shares], position: int) -> str:
    plain = {
        str(container): {str(card): share[position] for card, share in shares.items()}
        for container, shares in sorted(by_container.items())
    }
    return json.dumps(plain, separators=(",", ":"))
