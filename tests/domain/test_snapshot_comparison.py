"""The promise: what the kubelet knows completes a grant, also where an init container came first."""

from tests.domain.words import CORE, INIT, MEM, grant, listed
from tests.held import changed

from gpu_device_plugin.domain.grants.container_edits import CONFIG_DIR, ContainerEdits, Mount
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.snapshot_comparison import (
    complete_holder,
    corrected_uid,
    fill_units,
    find_doubles,
    find_given_away,
    find_unknown,
    pass_on_units,
    rename_holder,
)
from gpu_device_plugin.domain.node.pods import HeldUnits, PodRef


def _init(mem: str, core: str = "") -> Grant:
    return changed(grant("a", mem, core, kind=INIT), slice_id="init", container="prepare")


def _ids(texts: str) -> frozenset[str]:
    return frozenset(texts.split())


def _ledger(*grants: Grant) -> Ledger:
    return Ledger({each.slice_id: each for each in grants})


def test_a_slice_that_an_init_container_had_first_is_its_heirs() -> None:
    """Both had it without the pod spec; List shows who has it now, and the rules are still due."""
    shared = _init("m00 m01", "c00")
    pods = [listed("a", main={MEM: _ids("m00 m01"), CORE: _ids("c00")})]

    found = pass_on_units(shared, pods, _ledger(shared), ())

    assert (found.container, found.is_checked) == ("main", False)
    assert found.slice_id == shared.slice_id


def test_a_slice_with_an_heir_of_its_own_stays_the_init_containers() -> None:
    """As it is with the pod spec: each of them has a grant."""
    init = _init("m00 m01", "c00")
    main = grant("a", "m00 m01", "c00")
    pods = [listed("a", main={MEM: _ids("m00 m01"), CORE: _ids("c00")})]

    assert pass_on_units(init, pods, _ledger(init, main), ()) is init
    assert pass_on_units(main, pods, _ledger(init, main), ()) is main


def test_units_taken_over_from_an_init_container_come_back_too() -> None:
    """The write before the last one had the init container's grant, and half of its heir's."""
    init = _init("m00", "c00")
    main = grant("a", "", "c00 c01")
    reported = [CheckpointEntry("uid-a", "main", MEM, _ids("m00 m01"), ContainerEdits())]

    assert fill_units(main, reported, _ledger(init, main)).ids(MEM) == ("m00", "m01")


def test_an_init_container_that_is_not_known_as_one_yet_keeps_no_units_from_its_heir() -> None:
    """Both were granted without the pod spec; units of another pod stay with that pod."""
    first = changed(grant("a", "m00", "c00"), slice_id="init", container="prepare")
    main = grant("a", "", "c00 c01")
    reported = [CheckpointEntry("uid-a", "main", MEM, _ids("m00 m01"), ContainerEdits())]

    assert fill_units(main, reported, _ledger(first, main)).ids(MEM) == ("m00", "m01")
    stranger = grant("b", "m01", "")
    assert fill_units(main, reported, _ledger(first, main, stranger)).ids(MEM) == ()


def test_what_an_init_container_handed_on_is_not_known_to_be_held() -> None:
    """Nobody has a grant for its heir; units that another pod holds are known."""
    init = _init("m00")
    pod = PodRef("", "", "uid-a")
    heir = HeldUnits(pod, "main", MEM, frozenset({"m00", "m01"}))
    itself = HeldUnits(pod, "prepare", MEM, frozenset({"m00"}))
    stranger = HeldUnits(PodRef("", "", "uid-b"), "main", MEM, frozenset({"m00", "m02"}))
    new = HeldUnits(pod, "two", MEM, frozenset({"m09"}))

    assert find_unknown(_ledger(init), [heir, itself, stranger, new]) == [heir, new]


def test_a_pod_made_again_on_the_same_units_has_no_second_grant() -> None:
    """Its own was made with its uid; the old pod's grant, of the same container and units, stays the old pod's."""
    old = changed(grant("a", "m00 m01"), slice_id="old", pod=PodRef("default", "a", "uid-old"))
    new = changed(grant("a", "m00 m01"), slice_id="new", pod=PodRef("default", "a", "uid-new"))
    reported = {(("default", "a"), "main", str(MEM), _ids("m00 m01")): "uid-new"}

    assert corrected_uid(old, reported, _ledger(old)) == "uid-new"
    assert corrected_uid(old, reported, _ledger(old, new)) == "uid-old"
    assert corrected_uid(new, reported, _ledger(old, new)) == "uid-new"
    unsure = changed(
        new, pod=PodRef("default", "a")
    )  # of a static pod, while the API server was away
    assert corrected_uid(old, reported, _ledger(old, unsure)) == "uid-old"
    assert corrected_uid(unsure, reported, _ledger(old, unsure)) == "uid-new"


def _mounting(uid: str, container: str, slice_id: str) -> CheckpointEntry:
    """An entry of the checkpoint whose answer mounts this slice."""
    mount = Mount(CONFIG_DIR, f"/run/x/slices/{slice_id}/config", is_read_only=True)
    return CheckpointEntry(uid, container, MEM, _ids("m00"), ContainerEdits(mounts=(mount,)))


def test_who_has_a_slice_mounted_holds_it_whatever_units_and_names_say() -> None:
    """A container made again under its name was answered with its predecessor's slice; its rules are due again."""
    before = changed(grant("a", "m00", "c00"), slice_id="old", container="prepare")
    snapshot = KubeletSnapshot((), [_mounting("uid-new", "main", "old")])

    now = rename_holder(before, *complete_holder(before, snapshot))

    assert (now.pod.uid, now.container, now.is_checked) == ("uid-new", "main", False)


def test_a_slice_taken_for_another_pods_has_the_name_of_who_has_mounted_it() -> None:
    """Else it were found by neither name, and no container started on it."""
    shown = listed("b", main={MEM: _ids("m00")})
    snapshot = KubeletSnapshot([shown], [_mounting("uid-b", "main", "old")])
    before = changed(grant("a", "m00", "c00"), slice_id="old")
    now = rename_holder(before, *complete_holder(before, snapshot))

    assert (now.pod, now.is_checked) == (PodRef("default", "b", "uid-b"), False)


def test_units_that_another_pod_has_end_a_grant_only_where_it_has_no_files() -> None:
    snapshot = KubeletSnapshot(
        [listed("b", main={MEM: _ids("m00")})],
        [CheckpointEntry("uid-b", "main", str(MEM), _ids("m00"), ContainerEdits())],
    )
    plain, isolated = (
        changed(grant("a", "m00"), slice_id=str(has), is_isolated=has) for has in (False, True)
    )

    assert find_given_away(_ledger(plain, isolated), snapshot) == {"False"}
    assert not find_given_away(
        _ledger(changed(plain, pod=PodRef("default", "b", "uid-b"))), snapshot
    )


def test_a_slice_that_two_have_mounted_is_nobodys_by_that() -> None:
    both = [_mounting("uid-a", name, "old") for name in ("prepare", "main")]

    assert KubeletSnapshot((), both).mounted_by == {}


def test_of_two_slices_of_one_container_the_mounted_one_stays() -> None:
    """While none is known to be mounted, both stay."""
    first, second = (changed(grant("a", "m00", "c00"), slice_id=name) for name in ("one", "two"))
    ledger = _ledger(first, second)

    assert find_doubles(ledger, {"two": ("uid-a", "main")}) == {"one"}
    assert find_doubles(ledger, ()) == frozenset()
    assert find_doubles(ledger, ("one", "two")) == frozenset()
