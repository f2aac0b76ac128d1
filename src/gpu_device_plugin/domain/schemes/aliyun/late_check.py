"""The rules that need the pod spec, for a grant that was made without it."""

from dataclasses import replace

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.schemes.aliyun.fraction import fraction_of
from gpu_device_plugin.domain.schemes.aliyun.requests import demand
from gpu_device_plugin.domain.schemes.aliyun.units import Resource, cards_of
from gpu_device_plugin.domain.shares import Holder
from gpu_device_plugin.errors import RequestError


def checked(grant: Grant, spec: PodRequest, terms: NodeTerms) -> Grant:
    """Check the grant against the rules that need its pod spec, as far as that is known.

    Raises:
        RequestError: The pod asks for something that this node does not give.
    """
    container = spec.container(grant.container)
    if container is None:
        return grant
    needed = demand(spec, container, terms)
    if grant.ids(Resource.MEM) and len(cards_of(grant.all_ids)) != needed.cards:
        raise RequestError(
            f"pod {spec.ref}, container {container.name}, on node {terms.node}: its label asks for "
            f"{needed.cards} cards, the slice is on {len(cards_of(grant.all_ids))}, given while the API "
            f"server was away; create the pod again",
            reason="CardCountUnknown",
        )
    if needed.is_exclusive and not all(share.is_exclusive for share in grant.shares):
        raise RequestError(
            f"pod {spec.ref}, container {container.name}, on node {terms.node}: its label asks for a "
            f"card of its own, the slice was given while the API server was away; create the pod again",
            reason="CardCountUnknown",
        )
    pod = replace(spec.ref, uid=grant.pod.uid or spec.ref.uid)
    return replace(
        grant,
        holder=Holder(pod, container.name, container.kind, container.index),
        own=replace(fraction_of(grant), pod_units=spec.app_amount(Resource.MEM)),
        is_checked=True,
    )
