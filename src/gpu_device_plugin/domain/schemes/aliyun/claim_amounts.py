"""Claims in this scheme's units: what of a card they may divide, and what one of them holds."""

from collections.abc import Sequence

from gpu_device_plugin.domain.claims import MAX_SLOTS, AllocatedDevice, Capacity
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.modes import NodeMode
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.schemes.aliyun.modes import most_pods, resources_of
from gpu_device_plugin.domain.schemes.aliyun.units import Resource
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import RequestError

CORE_STEP = 5


def capacity(card: Card, terms: NodeTerms) -> Capacity | None:
    """What claims may divide of a card; None in a mode that divides none, or where no pod may be on it."""
    resources = resources_of(terms.mode)
    most = most_pods(terms.mode, terms.max_pods)
    slots = MAX_SLOTS if most is None else min(most, MAX_SLOTS)
    units = card.capacity(terms.unit)
    if Resource.MEM not in resources or not units or not slots:
        return None
    core = 100 if Resource.CORE in resources else 0
    return Capacity(units * terms.unit.mib, terms.unit.mib, core, CORE_STEP, slots)


def claim_demand(devices: Sequence[AllocatedDevice], terms: NodeTerms) -> Demand:
    """What a claim needs, from what the scheduler has counted for it on each of its cards.

    Raises:
        RequestError: The amounts are none of this node's: it has changed its mode or unit since.
    """
    first, unit = devices[0], terms.unit.mib
    amounts = {(each.memory_mib, each.core_percent) for each in devices}
    divides_cores = terms.mode is NodeMode.CORE_MEM
    if (
        len(amounts) > 1
        or not first.memory_mib
        or first.memory_mib % unit
        or (first.core_percent > 0) is not divides_cores
    ):
        told = ", ".join(
            f"{each.memory_mib} MiB and {each.core_percent} % of {each.device}" for each in devices
        )
        raise RequestError(
            f"node {terms.node} (mode {terms.mode}, units of {unit} MiB) cannot give {told}: they "
            f"were allocated while it had another mode or unit; create the pod again",
            reason="OtherAmounts",
        )
    cards = len(devices)
    return Demand(first.memory_mib // unit * cards, first.core_percent, cards)
