"""The rules that need the pod spec, for a grant that was made without it."""

from dataclasses import replace

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.fraction import fraction_of
from gpu_device_plugin.domain.schemes.aliyun.requests import demand
from gpu_device_plugin.domain.schemes.aliyun.rules import Ask, Known, check
from gpu_device_plugin.domain.schemes.aliyun.units import Resource, cards_of
from gpu_device_plugin.domain.shares import Holder


def checked(grant: Grant, spec: PodRequest, terms: NodeTerms) -> Grant:
    """Check the grant against the rules that need its pod spec, as far as that is known.

    Raises:
        RequestError: The pod asks for something that this node does not give.
    """
    container = spec.container(grant.container)
    if container is None:
        return grant
    demand(spec, container, terms)
    check(
        Ask(
            Known.LATE,
            f"pod {spec.ref}, container {container.name}, on node {terms.node}",
            terms.mode,
            {Resource.MEM: len(grant.ids(Resource.MEM))},
            spec.card_count_label,
            spec.card_label,
            cards_held=len(cards_of(grant.all_ids)),
            is_alone=all(share.is_exclusive for share in grant.shares),
        )
    )
    pod = replace(spec.ref, uid=grant.pod.uid or spec.ref.uid)
    return replace(
        grant,
        holder=Holder(pod, container.name, container.kind, container.index),
        own=replace(fraction_of(grant), pod_units=spec.app_amount(Resource.MEM)),
        is_checked=True,
    )
