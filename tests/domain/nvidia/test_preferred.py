"""The promise: replicas and instances go over the cards evenly or tightly.

Ties go to a card that the call has picked least, then to the lowest.
"""

import pytest
from tests.domain.nvidia.nodes import card, sevenths, whole

from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    AllocationPolicy,
    Configuration,
    MigStrategy,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.offers import Offered, choose_preferred, offers
from gpu_device_plugin.errors import DoesNotFitError, RequestError

DISTRIBUTED, PACKED = AllocationPolicy.DISTRIBUTED, AllocationPolicy.PACKED
SLICED = Configuration(sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(GPU, 3),)))
SINGLE = Configuration(mig_strategy=MigStrategy.SINGLE)


def replicas() -> tuple[Offered, ...]:
    """Three of each of three cards."""
    return offers(whole(3), SLICED).resources[GPU]


def ids(*places: str) -> set[str]:
    return {f"GPU-{place.replace(':', '::')}" for place in places}


@pytest.mark.parametrize(
    ("policy", "taken", "size", "wanted"),
    [
        (DISTRIBUTED, (), 1, ["0:0"]),
        (DISTRIBUTED, (), 4, ["0:0", "1:0", "2:0", "0:1"]),
        (DISTRIBUTED, ("0:0",), 1, ["1:0"]),
        (DISTRIBUTED, ("0:0", "1:1", "1:2", "2:0"), 1, ["0:1"]),
        (DISTRIBUTED, ("1:0", "2:0"), 4, ["0:0", "1:1", "2:1", "0:1"]),
        (PACKED, (), 2, ["0:0", "0:1"]),
        (PACKED, ("2:1",), 2, ["2:0", "2:2"]),
        (PACKED, ("2:1", "1:0", "1:1"), 2, ["1:2", "2:0"]),
    ],
)
def test_replicas_go_by_what_their_cards_have_given(
    policy: AllocationPolicy, taken: tuple[str, ...], size: int, wanted: list[str]
) -> None:
    """R-703."""
    free = {device.id for device in replicas()} - ids(*taken)

    chosen = choose_preferred(replicas(), free, (), size, policy)

    assert list(chosen) == [f"GPU-{each.replace(':', '::')}" for each in wanted]


def test_instances_are_counted_by_card() -> None:
    """NVIDIA's plugin counts each instance by itself, so all of them tie there."""
    offered = offers(sevenths(2), SINGLE).resources[GPU]
    free = {device.id for device in offered}

    assert choose_preferred(offered, free, (), 3, DISTRIBUTED) == ("MIG-0-0", "MIG-1-0", "MIG-0-1")
    assert choose_preferred(offered, free - {"MIG-1-4"}, (), 2, PACKED) == ("MIG-1-0", "MIG-1-1")


def test_what_the_container_has_already_comes_first_and_counts() -> None:
    """Units of an init container are reused."""
    free = {device.id for device in replicas()}

    assert choose_preferred(replicas(), free, ids("0:2"), 2, DISTRIBUTED) == (
        "GPU-0::2",
        "GPU-1::0",
    )
    others = free - ids("1:0", "2:0")
    assert choose_preferred(replicas(), others, ids("0:2"), 2, DISTRIBUTED)[1] == "GPU-1::1"


def test_whole_cards_go_by_their_links() -> None:
    """Without links the lowest."""
    offered = offers([card(2), card(5)], Configuration()).resources[GPU]

    assert choose_preferred(offered, {"GPU-5", "GPU-2"}, (), 1, DISTRIBUTED) == ("GPU-2",)


def test_an_unknown_device_is_named() -> None:
    """R-703: it was given to the container under an earlier configuration."""
    with pytest.raises(RequestError, match="unknown device: GPU-9"):
        choose_preferred(replicas(), ids("0:0"), ids("9:1"), 2, DISTRIBUTED)


def test_a_device_that_is_offered_no_longer_is_not_chosen() -> None:
    """The kubelet has not replaced its list yet; a pod that fits without that device gets its own."""
    assert choose_preferred(replicas(), ids("0:0", "9:1"), (), 1, DISTRIBUTED) == ("GPU-0::0",)


def test_too_few_are_refused() -> None:
    """With both numbers."""
    with pytest.raises(DoesNotFitError, match="2 asked, 1 free"):
        choose_preferred(replicas(), ids("0:0"), (), 2, DISTRIBUTED)
