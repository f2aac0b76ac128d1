"""The promise: the ledger says who holds what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import CORE, INIT, MEM, SIDECAR, grant, listed
from tests.held import changed

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.grant import Grant, Hold, Holder, Share
from gpu_device_plugin.domain.grants.ledger import DeviceUse, Ledger, sum_holds
from gpu_device_plugin.domain.grants.snapshot_comparison import drift
from gpu_device_plugin.domain.node.pods import PodRef


def ledger(*grants: Grant) -> Ledger:
    """A ledger that holds them."""
    return Ledger({each.slice_id: each for each in grants})


def test_what_a_pods_containers_hand_on_counts_once() -> None:
    """Init containers hand their units on, so two grants of one pod hold them."""
    small, large = (
        replace(grant("a", ids, kind=INIT, on="GPU-0"), slice_id=ids)
        for ids in ("m00 m01", "m00 m01 m02")
    )
    side = replace(grant("a", "m02 m03", on="GPU-0"), slice_id="side")
    one, other = PodRef("default", "a", "uid-a"), PodRef("default", "b", "uid-b")

    assert ledger(small, large).use() == {"GPU-0": DeviceUse(MiB(3 * 1024), 0, (one,))}
    held = ledger(small, large, side, grant("a", "m00 m01", "c00", on="GPU-0"))
    assert held.use() == {"GPU-0": DeviceUse(MiB(4 * 1024), 1, (one,))}
    both = held.hold(grant("b", "m04", on="GPU-0")).hold(
        replace(grant("b", "m10", on="GPU-1"), slice_id="b1")
    )
    assert both.use() == {
        "GPU-0": DeviceUse(MiB(5 * 1024), 1, (one, other)),
        "GPU-1": DeviceUse(MiB(1024), 0, (other,)),
    }


@pytest.mark.parametrize(
    ("sidecar_at", "units"),
    [
        pytest.param(0, 11, id="before the init container"),
        pytest.param(1, 8, id="after it, reusing its units"),
    ],
)
def test_sidecars_count_in_the_order_of_the_spec(sidecar_at: int, units: int) -> None:
    """What a sidecar holds is kept while the init container runs, or is taken of what that leaves."""
    use = ledger(
        changed(grant("a", "m00 m01", on="GPU-0"), slice_id="app", mem_units=2),
        changed(
            grant("a", kind=SIDECAR, on="GPU-0"), slice_id="side", index=sidecar_at, mem_units=3
        ),
        changed(
            grant("a", kind=INIT, on="GPU-0"), slice_id="init", index=1 - sidecar_at, mem_units=8
        ),
    ).use()

    assert use["GPU-0"].memory_mib == units * 1024


def test_a_device_that_one_has_for_itself_is_known_as_such() -> None:
    """A whole card has no amounts that somebody could add to."""
    share = Share("GPU-0", is_exclusive=True, memory_mib=MiB(16160))
    (use,) = sum_holds([Hold(Holder(PodRef("default", "a")), share)]).values()

    assert use == DeviceUse(MiB(16160), 0, (PodRef("default", "a"),), is_exclusive=True)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 5))))
def test_release_returns_to_the_start(dealt: list[tuple[str, int, int]]) -> None:
    """Whatever was held and in whatever order it is given back, nothing stays."""
    start = ledger(grant("z", "m00"))
    held = start
    for number, (name, card, count) in enumerate(dealt):
        ids = unit_ids(Resource.MEM, card, count)
        held = held.hold(replace(grant(name), slice_id=f"s{number}").with_ids(MEM, ids))

    assert held.release(f"s{number}" for number in reversed(range(len(dealt)))) == start
    assert held.release(["unknown"]) == held


def test_the_rule_of_one_holder_is_asked_for() -> None:
    """The kubelet can give a unit away twice (#137534): that can be seen before."""
    one, other = grant("a", "m00 m01", "c00"), grant("b", "m01")

    assert ledger(one).rivals(other.pod, other.ids(Resource.MEM)) == (one,)
    assert ledger(one).rivals(one.pod, one.ids(Resource.MEM)) == ()


def test_a_pod_is_the_same_by_uid_where_both_know_it() -> None:
    """A pod that was created again under its old name inherits nothing."""
    held = grant("a", "m00")
    again, nameless = PodRef("default", "a", "uid-2"), PodRef("default", "a")

    assert ledger(held).of_pod(again) == ()
    assert ledger(held).of_container(nameless, "main") == held
    assert ledger(held).of_container(nameless, "other") is None


def test_units_of_init_containers_are_free_for_their_pod_only() -> None:
    """What a sidecar holds is not handed on, and what another pod's init container holds neither."""
    init, sidecar = grant("a", "m00", kind=INIT), grant("a", "m01", kind=SIDECAR)
    foreign = grant("b", "m02", kind=INIT)
    all_three = ledger(init, replace(sidecar, slice_id="sidecar"), foreign)

    assert all_three.before(init.pod).holders(["m00", "m01", "m02"]) == (
        replace(sidecar, slice_id="sidecar"),
        foreign,
    )


def test_drift_counts_the_places_that_disagree() -> None:
    """A resource of a container that only one side has, or of which the ids differ."""
    init = changed(grant("a", "m05", kind=INIT), slice_id="init", container="setup")
    book = ledger(grant("a", "m00", "c00"), grant("b", "m01"), init)
    same = listed("a", main={MEM: frozenset({"m00"}), CORE: frozenset({"c00"})}, proxy={})

    assert drift(book, [same, listed("b", main={MEM: frozenset({"m01"})})]) == 0
    assert drift(book, [same, listed("b", main={MEM: frozenset({"m02"})})]) == 1
    assert drift(book, [same]) == 1
    assert drift(Ledger(), [same]) == 2
