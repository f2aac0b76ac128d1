"""What claims hold, for metrics: amounts as units are counted, and for which container."""

from collections.abc import Sequence

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.pods import ContainerKind, PodRequest
from gpu_device_plugin.domain.pools import UnitCount
from gpu_device_plugin.domain.schemes.aliyun.claim_names import parse_claim_name
from gpu_device_plugin.domain.schemes.aliyun.fraction import units_per_card
from gpu_device_plugin.domain.schemes.aliyun.units import Resource


def claiming_container(grant: Grant, spec: PodRequest) -> str:
    """Name of the container that a claim was asked for, or "".

    Args:
        grant: The claim's.
        spec: Its pod.
    """
    shape = parse_claim_name(grant.holder.claim_name)
    if shape is None:
        asking = [container.name for container in spec.containers if container.asks]
        return asking[0] if len(asking) == 1 else ""
    named = (
        container.name
        for container in spec.containers
        if (container.kind is ContainerKind.APP, container.index) == (shape.is_app, shape.index)
    )
    return next(named, "")


def with_claims(card: str, counts: Sequence[UnitCount], ledger: Ledger) -> tuple[UnitCount, ...]:
    """The counts of a card, with what claims hold of it moved from free to held.

    Args:
        card: Its UUID.
        counts: What its units' ids say.
        ledger: Who holds what.
    """
    claims = [g for g in ledger.grants.values() if g.holder.claim and card in g.devices]
    held = {
        str(Resource.MEM): sum(map(units_per_card, claims)),
        str(Resource.CORE): sum(grant.core_percent for grant in claims),
    }
    return tuple(
        UnitCount(each.resource, each.free - moved, each.held + moved)
        for each in counts
        for moved in (min(each.free, held.get(each.resource, 0)),)
    )
