"""The first call of a container decides for all of it; whatever comes later follows."""

from dataclasses import replace

import pytest
from tests.held import fraction

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.call_state import CallState, Offer
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, ContainerRequest, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import DoesNotFitError

SCHEME = AliyunScheme()
CARDS = tuple(
    Card(f"GPU-{n}", CardNumber(n), CardIndex(n), n, "Tesla-V100-SXM2-16GB", MiB(16160))
    for n in range(2)
)
STATE = NodeState("n1", mode=NodeMode.CORE_MEM, cards=CARDS)
POD = PodRef("default", "p", "u1")
OTHER = PodRef("default", "q", "u2")


def caller(mem: int = 2, core: int = 30) -> Caller:
    """Pod p's container main."""
    main = ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: mem, Resource.CORE: core})
    return Caller(POD, PodRequest(POD, (main,)), main)


def offer(resource: Resource, size: int, live: Ledger | None = None) -> Offer:
    """All units of both cards are free."""
    counts = {Resource.MEM: 15, Resource.CORE: 100}
    free = [i for card in CARDS for i in unit_ids(resource, card.number, counts[resource])]
    live = live or Ledger()
    return Offer(Call(resource, size), frozenset(free), live, live)


def test_the_card_must_have_room_for_the_resource_that_is_asked_later() -> None:
    """Memory is asked first; the card whose compute is taken is not chosen for it."""
    taken = fraction(
        "s1", OTHER, "main", units={Resource.CORE: unit_ids(Resource.CORE, 0, 80)}, cards=("GPU-0",)
    )

    pending = SCHEME.decide(caller(), offer(Resource.MEM, 2, Ledger().hold(taken)), STATE)

    assert [card.uuid for card in pending.chosen.cards] == ["GPU-1"]


def test_after_a_restart_between_two_resources_the_second_follows_the_first() -> None:
    """The grant on disk says where the container is, though packing would say otherwise."""
    mine = fraction(
        "s1", POD, "main", units={Resource.MEM: unit_ids(Resource.MEM, 1, 2)}, cards=("GPU-1",)
    )
    fuller = fraction(
        "s2", OTHER, "main", units={Resource.MEM: unit_ids(Resource.MEM, 0, 8)}, cards=("GPU-0",)
    )
    ledger = Ledger().hold(mine).hold(fuller)

    pending = SCHEME.decide(caller(), offer(Resource.CORE, 30, ledger), STATE)

    assert ([card.uuid for card in pending.chosen.cards], pending.slice_id) == (["GPU-1"], "s1")


def test_where_the_kubelet_still_counts_the_first_resource_the_second_one_follows_it_again() -> (
    None
):
    """It lost its checkpoint, gave memory again, and asks for compute of which the grant has old units."""
    units: dict[str, tuple[str, ...]] = {
        r: unit_ids(r, 1, 2) for r in (Resource.MEM, Resource.CORE)
    }
    ledger = Ledger().hold(fraction("s1", POD, "main", units=units, cards=("GPU-1",)))
    asked = offer(Resource.CORE, 30, ledger)

    kept = SCHEME.decide(caller(), replace(asked, held=frozenset(units[Resource.MEM])), STATE)
    again = SCHEME.decide(caller(), asked, STATE)

    assert (kept.slice_id, again.slice_id) == ("s1", "")


def test_what_the_container_held_before_is_not_in_its_way() -> None:
    """A kubelet that has lost its checkpoint asks for all again, on a node without room for twice as much."""
    held: dict[str, tuple[str, ...]] = {
        Resource.MEM: unit_ids(Resource.MEM, 0, 10),
        Resource.CORE: unit_ids(Resource.CORE, 0, 60),
    }
    full = fraction(
        "s2", OTHER, "main", units={Resource.MEM: unit_ids(Resource.MEM, 1, 15)}, cards=("GPU-1",)
    )
    ledger = Ledger().hold(fraction("s1", POD, "main", units=held, cards=("GPU-0",))).hold(full)

    pending = SCHEME.decide(caller(10, 60), offer(Resource.MEM, 10, ledger), STATE)

    assert [card.uuid for card in pending.chosen.cards] == ["GPU-0"]


def test_units_that_another_live_pod_holds_are_not_given_though_the_kubelet_offers_them() -> None:
    """Kubernetes issue 137534: the kubelet can offer a unit twice."""
    held = fraction(
        "s1", OTHER, "main", units={Resource.MEM: unit_ids(Resource.MEM, 0, 2)}, cards=("GPU-0",)
    )
    asked = offer(Resource.MEM, 2, Ledger().hold(held))

    chosen = SCHEME.choose(SCHEME.decide(caller(), asked, STATE), asked, STATE)

    assert set(chosen).isdisjoint(held.ids(Resource.MEM))


def test_no_more_is_promised_than_the_kubelet_has_free_itself() -> None:
    """A terminating pod's units are not in our ledger any more, but the kubelet still counts them."""
    few = replace(offer(Resource.MEM, 2), available=frozenset(unit_ids(Resource.MEM, 0, 1)))

    with pytest.raises(DoesNotFitError, match="largest free slice is 1 units"):
        SCHEME.decide(caller(), few, STATE)


@pytest.mark.parametrize(
    ("kind", "wish", "init_wish", "card"),
    [
        (ContainerKind.APP, ((0, (1,)),), ((0, (0,)),), "GPU-1"),
        (ContainerKind.SIDECAR, ((0, (1,)),), ((0, (0,)),), "GPU-0"),
        (ContainerKind.SIDECAR, ((0, (0,)),), ((0, (1,)),), "GPU-1"),
        (ContainerKind.SIDECAR, ((0, (1,)),), (), "GPU-0"),
        (ContainerKind.INIT, ((0, (0,)),), ((0, (1,)),), "GPU-1"),
        (ContainerKind.INIT, ((0, (1,)),), (), "GPU-1"),
    ],
)
def test_each_kind_of_container_follows_the_wish_for_its_own_kind(
    kind: ContainerKind,
    wish: tuple[tuple[int, tuple[CardIndex, ...]], ...],
    init_wish: tuple[tuple[int, tuple[CardIndex, ...]], ...],
    card: str,
) -> None:
    """The first of `initContainers` and the first of `containers` have the same index."""
    first = ContainerRequest("first", kind, 0, {Resource.MEM: 2, Resource.CORE: 30})
    request = PodRequest(POD, (first,), wish=wish, init_wish=init_wish)

    pending = SCHEME.decide(Caller(POD, request, first), offer(Resource.MEM, 2), STATE)

    assert [each.uuid for each in pending.chosen.cards] == [card]


def test_each_allocate_is_expected_once_and_a_refusal_ends_the_decision() -> None:
    """What the kubelet was told for one container is no answer for the next one."""
    ids = frozenset(unit_ids(Resource.MEM, 0, 2))
    call = Call(Resource.MEM, 2, ids)
    told = CallState().decide(SCHEME.decide(caller(), offer(Resource.MEM, 2), STATE))
    told = told.tell(Resource.MEM, ids)
    granted = told.grant(Resource.MEM, "s1")

    assert told.awaits(call)
    assert told.awaits_allocate
    assert not told.awaits(replace(call, must_include=frozenset(unit_ids(Resource.MEM, 1, 2))))
    assert not granted.awaits(call)
    assert granted.decided.slice_id == "s1"
    assert told.refuse().pending is None
