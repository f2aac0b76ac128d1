"""Which devices of a resource a container gets first (R-703)."""

from collections import Counter
from collections.abc import Collection, Sequence

from gpu_device_plugin.domain.schemes.nvidia.configuration import AllocationPolicy
from gpu_device_plugin.domain.schemes.nvidia.links import best_linked
from gpu_device_plugin.domain.schemes.nvidia.offers import Offered
from gpu_device_plugin.errors import DoesNotFitError, RequestError


def preferred(
    offered: Sequence[Offered],
    available: Collection[str],
    must_include: Collection[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Exactly `size` ids, those of `must_include` first.

    Whole cards are chosen by their links; replicas and instances one after the other from the
    card with the fewest taken (distributed) or with the most (packed).

    Args:
        offered: All devices of the resource, by card.
        available: Ids that are free; the order does not matter.
        must_include: Ids that the container has already.
        size: How many it gets in all.
        policy: For replicas and instances.

    Raises:
        RequestError: An id is not one of this resource.
        DoesNotFitError: There are too few.
    """
    known = {device.id for device in offered}
    unknown = sorted((set(available) | set(must_include)) - known)
    if unknown:
        raise RequestError(f"unknown device: {', '.join(unknown)}", reason="UnknownDevice")
    usable = set(available) | set(must_include)
    free = [device for device in offered if device.id in usable]
    if len(free) < size:
        raise DoesNotFitError(
            f"not enough available devices to satisfy allocation: {size} asked, {len(free)} free",
            reason="NoDevice",
        )
    if all(device.replicas == 1 and device.instance is None for device in free):
        return _linked(free, must_include, size)
    return _over_cards(offered, free, must_include, size, policy)


def _linked(free: Sequence[Offered], must_include: Collection[str], size: int) -> tuple[str, ...]:
    points = {device.id: device.card.hardware.links for device in free}
    ids = [device.id for device in free]
    return best_linked(points, ids, [each for each in ids if each in must_include], size)


def _over_cards(
    offered: Sequence[Offered],
    free: Sequence[Offered],
    must_include: Collection[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """One after the other; ties go to the lowest card and its lowest device."""
    candidates = [device for device in free if device.id not in must_include]
    taken = Counter(device.card.uuid for device in offered)
    taken.subtract(device.card.uuid for device in candidates)
    sign = 1 if policy is AllocationPolicy.DISTRIBUTED else -1
    chosen = [device.id for device in free if device.id in must_include]
    while len(chosen) < size:
        first = min(candidates, key=lambda device: sign * taken[device.card.uuid])
        candidates.remove(first)
        taken[first.card.uuid] += 1
        chosen.append(first.id)
    return tuple(chosen)
