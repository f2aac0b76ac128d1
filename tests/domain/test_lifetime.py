"""The promise: nobody counts as gone while List, checkpoint or API server says that he may live."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.words import MEM, grant, listed, pod
from tests.held import changed

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.grants.grant import Grant, Share
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry, KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import (
    ABSENT_SECONDS,
    KUBELET_SETTLE_SECONDS,
    Witnesses,
    is_settled,
    not_taken_back,
    overdue,
)
from gpu_device_plugin.domain.node.pods import ListedPod, PodRef, PodRequest

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)
NOBODY: frozenset[str] = frozenset()


def ledger(*grants: Grant) -> Ledger:
    """A ledger that holds them."""
    return Ledger({each.slice_id: each for each in grants})


def has(name: str, *ids: str) -> ListedPod:
    """A pod that holds these units of memory, as List shows it."""
    return listed(name, main={MEM: frozenset(ids)})


def noted(uid: str, *ids: str) -> CheckpointEntry:
    """The same in the checkpoint."""
    return CheckpointEntry(uid, "main", MEM, frozenset(ids), ContainerEdits())


def say(
    pods: Iterable[ListedPod] = (),
    checkpoint: Iterable[CheckpointEntry] | None = (),
    api: Iterable[PodRequest] | None = None,
    *,
    is_settled: bool = True,
    ended: Iterable[PodRef] = (),
) -> Witnesses:
    """What they say; `api` is None while the API server was never reached."""
    entries = None if checkpoint is None else list(checkpoint)
    snapshot = KubeletSnapshot.of(list(pods), entries)
    specs = {spec.ref.key: spec for spec in api or ()}
    return Witnesses(snapshot, specs, api is not None, is_settled, frozenset(ended))


def test_a_pod_that_a_settled_kubelet_lacks_may_be_over() -> None:
    """Also while its checkpoint still names it; a guard waits for that as well.

    But the List of a kubelet without an API server stays short: what the API server has, and the checkpoint
    names, lives.
    """
    gone, there = grant("a", "m00"), grant("b", "m01")
    said = say([has("b", "m01")], [noted("uid-a", "m00")])

    assert said.over(ledger(gone, there)) == {"slice-a"}
    short = say([has("b", "m01")], [noted("uid-a", "m00")], [pod("a")])
    assert short.over(ledger(gone, there)) == NOBODY
    assert say([has("b", "m01")], (), [pod("a")]).over(ledger(gone, there)) == {"slice-a"}
    assert said.unshown(ledger(gone, there)) == NOBODY
    assert say([has("b", "m01")]).unshown(ledger(gone, there)) == {"slice-a"}


def test_a_pod_that_a_starting_kubelet_lacks_lives_until_the_api_server_tells_its_end() -> None:
    """One that has lost its checkpoint has written an empty one, and the watch may never have had the pod."""
    held = ledger(grant("a", "m00"))
    names, knows = [noted("uid-a", "m00")], [pod("a")]

    assert say((), names, knows, is_settled=False).over(held) == NOBODY
    assert say((), names, None, is_settled=False).over(held) == NOBODY
    told = [pod("a").ref]
    assert say((), names, [], is_settled=False, ended=told).over(held) == {"slice-a"}
    assert say((), names, knows, is_settled=False, ended=told).over(held) == NOBODY
    assert say((), (), knows, is_settled=False).over(held) == NOBODY
    assert say((), (), None, is_settled=False).over(held) == NOBODY
    assert say((), None, knows, is_settled=False).over(held) == NOBODY


def test_a_pod_that_a_starting_kubelet_lacks_lives_while_the_watch_is_behind() -> None:
    """The API server's view lacks it, or has the one before under its name; or its uid is not known yet."""
    held, names = ledger(grant("a", "m00")), [noted("uid-a", "m00")]
    nameless = ledger(changed(grant("a", "m00"), pod=PodRef("default", "a")))
    before = replace(pod("a"), ref=PodRef("default", "a", "uid-0"))

    assert say((), names, [], is_settled=False).over(held) == NOBODY
    assert say((), names, [], is_settled=False).over(nameless) == NOBODY
    assert say((), names, [before], is_settled=False, ended=[before.ref]).over(held) == NOBODY
    assert say((), (), [before], is_settled=False).over(held) == NOBODY
    told = say((), names, [], is_settled=False, ended=[PodRef("default", "a", "uid-a")])
    assert told.over(held) == {"slice-a"}, "a GET has told it"


def test_a_card_for_one_pod_alone_stays_its_own_until_the_api_server_tells_the_pods_end() -> None:
    """A kubelet without an API server lists it no more, and a watch that is behind may not have it."""
    share = Share("GPU-0", is_exclusive=True)
    held = ledger(replace(grant("a", "m00"), shares=(share,)))

    def kept(offered: str, *ended: PodRef) -> frozenset[str]:
        slices = frozenset({"slice-a"})
        return not_taken_back(held, slices, MEM, frozenset({offered}), frozenset(ended))

    assert kept("m01") == {"slice-a"}
    assert kept("m00") == kept("m01", pod("a").ref) == NOBODY


def test_a_pod_is_over_whose_name_a_finished_one_has_in_list() -> None:
    """Kubelets before 1.34 list those, and the watch leaves them out: the API server told of its end."""
    held, names = ledger(grant("a", "m00")), [has("a")]

    assert say(names, (), [], ended=[pod("a").ref]).over(held) == {"slice-a"}
    for lives in (
        say(names, (), []),
        say(names, (), [], ended=[pod("a").ref], is_settled=False),
        say(names, None, [], ended=[pod("a").ref]),
        say(names, [noted("uid-a", "m00")], [], ended=[pod("a").ref]),
    ):
        assert lives.over(held) == NOBODY


def test_a_pod_replaced_under_its_name_is_over() -> None:
    """A StatefulSet's pod comes back with the same name and another uid: by API server or checkpoint."""
    old, nameless = grant("a", "m00"), changed(grant("b", "m01"), pod=PodRef("default", "b"))
    by_uid = changed(grant("c", "m02"), pod=PodRef("", "", "uid-c"))
    there = [has("a", "m05"), has("b", "m01")]
    again = replace(pod("a"), ref=PodRef("default", "a", "uid-2"))
    kept = [noted("uid-c", "m02")]

    for said in (say(there, kept, [again]), say(there, [*kept, noted("uid-2", "m05")])):
        assert said.over(ledger(old, nameless, by_uid)) == {"slice-a"}
    late = say(there, [*kept, noted("uid-2", "m05")], [pod("a")])
    assert late.over(ledger(old)) == {"slice-a"}, "the API server's watch is late"


def test_a_finished_pod_is_over_although_an_old_kubelet_lists_it() -> None:
    """Before 1.34 they do so until it is deleted."""
    ended = replace(pod("a"), is_finished=True)

    assert say([has("a", "m00")], api=[ended]).over(ledger(grant("a", "m00"))) == {"slice-a"}


@pytest.mark.parametrize("heir", ["a", "b", "other"])
def test_units_that_another_pod_has_are_not_those_of_a_pod_that_is_gone(heir: str) -> None:
    """Whatever its name: pods of a StatefulSet come back swapped."""
    first, second = grant("a", "m00"), grant("b", "m01")
    swapped = {"a": "b", "b": "a"}.get(heir, "another")
    there = [has(heir, "m00"), has(swapped, "m01")]
    said = say(there, [noted("uid-2", "m00"), noted("uid-3", "m01")])

    assert said.displaced(ledger(first, second)) == {"slice-a", "slice-b"}
    assert say([has("a", "m00")]).displaced(ledger(first, second)) == NOBODY


def test_what_a_cut_off_call_left_of_a_container_that_holds_other_units_is_superseded() -> None:
    """The same pod was admitted again. It may be half a grant, of which no container is known."""
    half, whole = changed(grant("a", "m00"), container=""), grant("b", "m01")
    shown, kept = [has("a", "m05"), has("b", "m01")], [noted("uid-a", "m05"), noted("uid-b", "m01")]

    assert say(shown, kept).superseded(ledger(half, whole)) == {"slice-a"}
    assert say(shown, kept, is_settled=False).superseded(ledger(half)) == NOBODY
    assert say([has("a"), has("b", "m01")], kept[1:]).superseded(ledger(half, whole)) == NOBODY
    assert say([has("a", "m00", "m05")], ()).superseded(ledger(half)) == NOBODY
    another = say([has("a", "m05")], [noted("uid-new", "m05")])
    assert another.superseded(ledger(grant("a", "m00"))) == NOBODY


def test_what_the_checkpoint_alone_still_names_is_told_as_such() -> None:
    """So that an operator sees why a switch waits on an empty node."""
    held = ledger(grant("a", "m00"))
    lives = say([has("b", "m01")], [noted("uid-b", "m01"), noted("uid-a", "m00"), noted("x", "m2")])

    assert lives.holders(held) == {
        (MEM, "default/b"),
        (MEM, "default/a (ended, and still in the kubelet's checkpoint)"),
        (MEM, "uid x"),
    }


def rounds(
    held: Ledger, *looks: tuple[float, Iterable[str], Iterable[str] | None], since: float = -1000.0
) -> list[frozenset[str]]:
    """What each look ends: time, pods in List, pods in the checkpoint."""
    absent: Mapping[str, float] = {}
    ended = []
    for now, names, kept in looks:
        entries = None if kept is None else [noted(f"uid-{n}", f"unit-{n}") for n in kept]
        said = say([has(n) for n in names], entries, is_settled=is_settled(since, now))
        over, absent = overdue(said.unshown(held), absent, now, said)
        ended.append(over)
        held = held.release(over)
    return ended


def test_a_pod_known_by_uid_only_ends_with_the_checkpoint() -> None:
    """After a lost file the checkpoint is all that names it."""
    held = ledger(changed(grant("a", "m00"), pod=PodRef("", "", "uid-a")))

    assert rounds(held, (0, "", "a"), (30, "", ""), (60, "", "")) == [NOBODY, NOBODY, {"slice-a"}]


def test_nothing_ends_while_the_kubelet_has_no_checkpoint() -> None:
    """One of two witnesses is missing, so no absence counts, nor one of before."""
    nameless = ledger(changed(grant("a", "m00"), pod=PodRef("", "", "uid-a")))

    assert rounds(nameless, (0, "", ""), (30, "", None), (60, "", "")) == [NOBODY] * 3


def test_absence_counts_from_the_time_the_kubelet_has_settled() -> None:
    """60 s after kubelet.sock, and then 30 s more; a kubelet that is away has not settled."""
    held, up = ledger(grant("a", "m00")), KUBELET_SETTLE_SECONDS

    looks = rounds(held, *((at, "", "") for at in (1, 31, up - 1, up, up + 29, up + 30)), since=0.0)
    assert looks == [*[NOBODY] * 5, {"slice-a"}]
    assert not is_settled(None, 1000.0)


@given(NAMES, st.lists(st.tuples(NAMES, NAMES, st.integers(0, 40)), max_size=8))
def test_no_pod_that_is_known_anywhere_ever_ends(
    held: list[str], looks: list[tuple[list[str], list[str], int]]
) -> None:
    """Over any history: what ends was lacked by both, at two looks 30 s apart and all between."""
    now, missed, story, expected = 0.0, dict[str, float](), [], list[frozenset[str]]()
    left = set(held)
    for in_list, in_checkpoint, pause in looks:
        now += pause
        story.append((now, in_list, in_checkpoint))
        missed = {n: missed.get(n, now) for n in left - {*in_list, *in_checkpoint}}
        over = {n for n, first in missed.items() if now - first >= ABSENT_SECONDS}
        left -= over
        expected.append(frozenset(f"slice-{n}" for n in over))

    assert rounds(ledger(*(grant(name, f"unit-{name}") for name in held)), *story) == expected


def test_files_that_nobody_names_go_as_grants_do() -> None:
    """Twice, 30 s apart; one that is named in between starts again."""
    since: Mapping[str, float] = {}
    gone = []
    for now, missing in ((0.0, "ab"), (20.0, "b"), (30.0, "ab"), (50.0, "a"), (60.0, "a")):
        found: Collection[str] = frozenset(missing)
        over, since = overdue(found, since, now, say())
        gone.append(over)

    assert gone == [NOBODY, NOBODY, {"b"}, NOBODY, {"a"}]
