"""The promise: a call is taken for the pod that makes it, or refused with the candidates' names."""

from dataclasses import replace
from itertools import permutations

import pytest
from tests.domain.words import APP, CORE, INIT, MEM, SIDECAR, container, grant, listed, pod
from tests.held import changed

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.caller import (
    Call,
    Caller,
    Specs,
    find_allocating_caller,
    find_caller,
)
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import ListedPod, PodKey, PodRef, PodRequest
from gpu_device_plugin.errors import UnknownPodError

NOBODY: frozenset[PodKey] = frozenset()
M0, M1, M2 = (frozenset({text}) for text in ("m00", "m01", "m02"))
C0 = frozenset({"c00"})


def specs(*requests: PodRequest) -> dict[tuple[str, str], PodRequest]:
    """What the API knows."""
    return {request.ref.key: request for request in requests}


def ledger(*grants: Grant) -> Ledger:
    """Our grants."""
    return Ledger({each.slice_id: each for each in grants})


def seen(*names: str) -> frozenset[PodKey]:
    """Pods that were in List before."""
    return frozenset(("default", name) for name in names)


def told(caller: Caller) -> tuple[str, str]:
    """Pod and container, short."""
    return caller.pod.name, caller.container.name if caller.container else ""


A = pod("a", container("main", 2, 30))
TWIN = pod("b", container("main", 2, 30))
BYSTANDER = pod("proxy", container("main"))


@pytest.mark.parametrize("resource", [MEM, CORE])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_pod_that_lacks_what_is_asked_is_the_one(
    resource: Resource, order: tuple[int, ...]
) -> None:
    """Whichever resource comes first and however List is ordered; bystanders are out."""
    held = {MEM: M0, CORE: C0}
    entries = [listed("b", main=held), listed("proxy", main={}), listed("a", main={})]
    shown = [entries[index] for index in order]
    call = Call(resource, A.containers[0].amount(resource))

    caller = find_caller(call, shown, specs(A, TWIN, BYSTANDER), Ledger(), seen("b"))

    assert told(caller) == ("a", "main")
    assert (caller.pod.uid, caller.request) == ("uid-a", A)


def test_the_second_resource_follows_the_session() -> None:
    """One pod holds the first resource and lacks the second."""
    entry = listed("a", main={CORE: C0})
    session = Caller(A.ref, A, A.containers[0])

    caller = find_caller(Call(MEM, 2), [entry], specs(A), Ledger(), seen("a"), session)

    assert caller == session


def test_the_session_wins_over_a_pod_that_was_passed_by() -> None:
    """A pod admitted while a resource was not registered lacks it for ever."""
    entries = [listed("b", main={MEM: M1}), listed("a", main={MEM: M0})]
    session = Caller(A.ref, A, A.containers[0])

    caller = find_caller(Call(CORE, 30), entries, specs(A, TWIN), Ledger(), seen("a", "b"), session)

    assert told(caller) == ("a", "main")


def test_a_new_pod_ends_the_session() -> None:
    """It enters List only when the one before it is done, even if that one still lacks something."""
    entries = [listed("a", main={MEM: M0}), listed("b", main={})]
    session = Caller(A.ref, A, A.containers[0])

    caller = find_caller(Call(CORE, 30), entries, specs(A, TWIN), Ledger(), seen("a"), session)

    assert told(caller) == ("b", "main")


def test_a_new_pod_goes_before_an_old_one_that_lacks_the_same() -> None:
    """The old one was passed by; the new one is being admitted."""
    entries = [listed("a", main={}), listed("b", main={})]

    assert told(find_caller(Call(MEM, 2), entries, specs(A, TWIN), Ledger(), seen("a"))) == (
        "b",
        "main",
    )


def test_an_old_pod_that_alone_lacks_it_is_the_one() -> None:
    """The kubelet restarted and admits it again."""
    caller = find_caller(Call(MEM, 2), [listed("a", main={})], specs(A), Ledger(), seen("a"))

    assert told(caller) == ("a", "main")


def test_two_that_may_be_asking_are_refused_by_name() -> None:
    """Twins never meet in List; should they ever, nobody gets the other one's slice."""
    entries = [listed("a", main={}), listed("b", main={})]

    with pytest.raises(UnknownPodError, match=r"2 pods .*gpu-mem: 2.*default/a.*default/b") as e:
        find_caller(Call(MEM, 2), entries, specs(A, TWIN), Ledger(), NOBODY)
    assert e.value.reason == "UnknownPod"


@pytest.mark.parametrize("size", [1, 3, 30])
def test_another_amount_is_another_pod(size: int) -> None:
    """The text says what the kubelet lists."""
    with pytest.raises(UnknownPodError, match=rf"gpu-mem: {size}; the kubelet lists default/a"):
        find_caller(Call(MEM, size), [listed("a", main={})], specs(A), Ledger(), NOBODY)


def test_a_finished_pod_asks_nothing() -> None:
    """It is still in List for a moment."""
    done = replace(A, is_finished=True)

    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 2), [listed("a", main={})], specs(done), Ledger(), NOBODY)


ROW = pod(
    "row",
    container("setup", 1, kind=INIT),
    container("agent", 1, kind=SIDECAR, index=1),
    container("first", 1),
    container("quiet", index=1),
    container("second", 2, index=2),
)


@pytest.mark.parametrize(
    ("granted", "held", "size", "expected"),
    [
        pytest.param("", {}, 1, "setup", id="init first"),
        pytest.param("setup", {}, 1, "agent", id="then the sidecar"),
        pytest.param("setup", {"agent": M0}, 1, "first", id="then the apps in order"),
        pytest.param("setup", {"agent": M0, "first": M1}, 2, "second", id="skipping the quiet"),
    ],
)
def test_containers_ask_in_the_order_of_the_spec(
    granted: str, held: dict[str, frozenset[str]], size: int, expected: str
) -> None:
    """What init containers hold only our grants tell; of the others List tells it."""
    mine = changed(grant("row", "m05", kind=INIT), container=granted) if granted else None
    entry = listed("row", **{name: {MEM: ids} for name, ids in held.items()})

    caller = find_caller(
        Call(MEM, size), [entry], specs(ROW), ledger(*([mine] if mine else [])), NOBODY
    )

    assert told(caller) == ("row", expected)


def test_a_later_container_cannot_ask_before_an_earlier_one() -> None:
    """`second` wants 2, but `setup` has not been admitted."""
    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 2), [listed("row")], specs(ROW), Ledger(), NOBODY)


def test_a_container_that_lacks_its_other_resource_holds_up_the_next() -> None:
    """Containers are admitted whole: `second` cannot ask while `first` lacks compute."""
    request = pod("a", container("first", 1, 5), container("second", 2, 30, index=1))
    entry = listed("a", first={MEM: M0}, second={})

    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 2), [entry], specs(request), Ledger(), NOBODY)
    assert told(find_caller(Call(CORE, 5), [entry], specs(request), Ledger(), NOBODY)) == (
        "a",
        "first",
    )


def test_handed_on_units_name_their_pod() -> None:
    """Of two pods that lack the same, the one whose init container held the units is asking."""
    rows = [replace(ROW, ref=PodRef("default", name, f"uid-{name}")) for name in ("row", "row-2")]
    book = ledger(
        *(
            changed(grant(name, unit, kind=INIT), container="setup")
            for name, unit in (("row", "m05"), ("row-2", "m06"))
        )
    )
    entries = [listed(name, agent={MEM: M0}, first={MEM: M1}) for name in ("row", "row-2")]

    caller = find_caller(Call(MEM, 2, frozenset({"m06"})), entries, specs(*rows), book, NOBODY)

    assert told(caller) == ("row-2", "second")


def test_an_init_container_may_be_admitted_again() -> None:
    """The kubelet restarted between its containers and forgot what it had given."""
    mine = changed(grant("row", "m05", kind=INIT), container="setup")
    bare = replace(ROW, containers=(ROW.containers[0], container("main", 4)))

    caller = find_caller(
        Call(MEM, 1), [listed("row", main={})], specs(bare), ledger(mine), seen("row")
    )

    assert told(caller) == ("row", "setup")


def test_init_containers_are_history_once_others_hold_units() -> None:
    """Then a call of their size is somebody else's."""
    mine = changed(grant("row", "m05", kind=INIT), container="setup")
    bare = replace(ROW, containers=(ROW.containers[0], container("main", 4)))
    entry = listed("row", main={MEM: M0})

    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 1), [entry], specs(bare), ledger(mine), seen("row"))


def test_a_pod_created_again_inherits_no_grants() -> None:
    """Its init container has to ask again, though one of the same name once held units."""
    mine = changed(grant("row", "m05", kind=INIT), container="setup")
    again = replace(ROW, ref=PodRef("default", "row", "uid-2"))

    caller = find_caller(Call(MEM, 1), [listed("row")], specs(again), ledger(mine), NOBODY)

    assert told(caller) == ("row", "setup")


OLD = listed("old", main={MEM: M0})


def test_without_texts_the_one_new_pod_is_the_one() -> None:
    """The API server is away: only names are known, and no container."""
    caller = find_caller(Call(MEM, 2), [OLD, listed("a", main={})], {}, Ledger(), seen("old"))

    assert caller == Caller(PodRef("default", "a"))


@pytest.mark.parametrize("names", [["a", "b"], []])
def test_without_texts_several_or_none_are_refused(names: list[str]) -> None:
    """A pod that never asks may be new as well: nobody can tell."""
    entries: list[ListedPod] = [OLD, *(listed(name, main={}) for name in names)]

    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 2), entries, {}, Ledger(), seen("old"))


def test_without_texts_the_session_goes_on_while_no_new_pod_shows() -> None:
    """The second resource, or a further container, of the same pod."""
    session = Caller(PodRef("default", "a"))
    entry = listed("a", main={MEM: M1})

    assert (
        find_caller(Call(CORE, 5), [OLD, entry], {}, Ledger(), seen("old", "a"), session) == session
    )
    newer = find_caller(
        Call(CORE, 5), [OLD, entry, listed("b")], {}, Ledger(), seen("old", "a"), session
    )
    assert told(newer) == ("b", "")


def test_without_texts_a_further_container_is_of_the_pod_that_is_being_admitted() -> None:
    """The kubelet admits no other pod before it; beside a pod that may be asking too nobody can tell."""
    entry, pod_a = listed("a", main={MEM: M0, CORE: frozenset({"c00"})}), PodRef("default", "a")
    waiting = listed("b", main={})

    def found(*entries: ListedPod, texts: Specs) -> Caller:
        return find_caller(
            Call(MEM, 2), entries, texts, Ledger(), seen("old", "a", "b"), admitting=pod_a
        )

    assert found(OLD, entry, texts={}) == Caller(pod_a)
    with pytest.raises(UnknownPodError):
        found(OLD, entry, waiting, texts=specs(pod("b", container("main", 2))))
    with pytest.raises(UnknownPodError):
        find_caller(Call(MEM, 2), [OLD, entry], {}, Ledger(), seen("old", "a"))


def test_a_session_that_began_without_a_text_stays_one() -> None:
    """The text arrives between two calls: both belong to the same decision."""
    session = Caller(PodRef("default", "a"))
    entry = listed("a", main={MEM: M0})

    assert find_caller(Call(CORE, 30), [entry], specs(A), Ledger(), seen("a"), session) == session


def test_a_text_that_fits_goes_before_a_pod_without_one() -> None:
    """A new pod whose text lacks exactly this is asking; the other one is a bystander."""
    entries = [listed("a", main={}), listed("static", main={})]

    assert told(find_caller(Call(MEM, 2), entries, specs(A), Ledger(), NOBODY)) == ("a", "main")


def test_without_texts_handed_on_units_name_their_pod() -> None:
    """The owner is in our grants."""
    mine = grant("a", "m05", kind=INIT)
    entries = [listed("old"), listed("a")]

    caller = find_caller(
        Call(MEM, 2, frozenset({"m05"})), entries, {}, ledger(mine), seen("old", "a")
    )

    assert told(caller) == ("a", "")


def test_a_repeated_allocate_finds_its_grant() -> None:
    """The same units again: the same answer."""
    mine = grant("a", "m00 m01", "c00")

    assert find_allocating_caller(Call(CORE, 1, C0), specs(A), ledger(mine)) == mine


def test_an_app_container_takes_over_from_its_init_container() -> None:
    """The kubelet does not ask first: the units' owner names the pod, the spec the container."""
    setup = changed(grant("row", "m05 m06", kind=INIT), container="setup")
    request = pod("row", container("setup", 2, kind=INIT), container("main", 1))

    exactly = find_allocating_caller(
        Call(MEM, 1, frozenset({"m06"})), specs(request), ledger(setup)
    )
    without_text = find_allocating_caller(Call(MEM, 1, frozenset({"m06"})), {}, ledger(setup))

    assert isinstance(exactly, Caller)
    assert told(exactly) == ("row", "main")
    assert without_text == Caller(setup.pod)


def test_taking_over_all_units_is_no_repeated_call() -> None:
    """The very ids of the init container's grant, and yet another container: each takes its turn."""
    setup = changed(grant("row", "m05 m06", kind=INIT), container="setup")
    request = pod("row", container("setup", 2, kind=INIT), container("main", 2))
    call = Call(MEM, 2, frozenset({"m05", "m06"}))
    main = changed(setup, slice_id="main", container="main", kind=APP)

    assert told_by(find_allocating_caller(call, specs(request), ledger(setup))) == ("row", "main")
    assert find_allocating_caller(call, specs(request), ledger(setup, main)) == main


def test_an_init_container_that_nobody_inherits_from_is_asked_for_again() -> None:
    """All containers after it ask another amount."""
    setup = changed(grant("row", "m05 m06", kind=INIT), container="setup")
    request = pod("row", container("setup", 2, kind=INIT), container("main", 1))

    assert find_allocating_caller(
        Call(MEM, 2, frozenset({"m05", "m06"})), specs(request), ledger(setup)
    ) == (setup)


@pytest.mark.parametrize("held", ["m00", "m00 m01 m02"])
def test_units_of_a_living_pod_are_not_given_away(held: str) -> None:
    """The kubelet's double booking (#137534) is seen, and the holder is named."""
    book = ledger(grant("b", held))

    with pytest.raises(UnknownPodError, match=r"held already, by default/b") as caught:
        find_allocating_caller(Call(MEM, 2, M0 | M1), specs(A, TWIN), book)
    assert caught.value.reason == "UnitsHeld"


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([A], id="deleted"),
        pytest.param([A, replace(TWIN, is_finished=True)], id="finished"),
        pytest.param([A, replace(TWIN, ref=PodRef("default", "b", "uid-2"))], id="replaced"),
    ],
)
def test_units_of_a_pod_that_is_over_are_free(texts: list[PodRequest]) -> None:
    """The API knows that it is gone, reconcile has not been there yet."""
    others = [replace(text, containers=()) if text.ref != A.ref else text for text in texts]

    caller = find_allocating_caller(
        Call(MEM, 2, M0 | M1), specs(*others), ledger(grant("b", "m00 m01"))
    )

    assert isinstance(caller, Caller)
    assert told(caller) == ("a", "main")


def test_without_texts_no_holder_is_taken_for_gone() -> None:
    """Nobody says so; nor does the API of a pod whose text it never had."""
    unchecked = replace(grant("b", "m00 m01"), is_checked=False)

    with pytest.raises(UnknownPodError, match="held already"):
        find_allocating_caller(Call(MEM, 2, M0 | M2), {}, ledger(grant("b", "m00 m01")))
    with pytest.raises(UnknownPodError, match="held already"):
        find_allocating_caller(Call(MEM, 2, M0 | M2), specs(A), ledger(unchecked))


def test_exactly_as_many_free_as_asked_leaves_the_texts() -> None:
    """One pod waits for this amount: it is the one; of two, the one in session; else nobody."""
    call = Call(MEM, 2, M0 | M1)

    assert told_by(find_allocating_caller(call, specs(A), Ledger())) == ("a", "main")
    session = Caller(TWIN.ref, TWIN, TWIN.containers[0])
    assert told_by(find_allocating_caller(call, specs(A, TWIN), Ledger(), session)) == ("b", "main")
    with pytest.raises(UnknownPodError, match="2 pods"):
        find_allocating_caller(call, specs(A, TWIN), Ledger())
    with pytest.raises(UnknownPodError, match="no pod of this node"):
        find_allocating_caller(Call(MEM, 1, M0), specs(A), Ledger())


def told_by(found: Caller | Grant) -> tuple[str, str]:
    """Pod and container of an answer that is no grant."""
    assert isinstance(found, Caller)
    return told(found)


FORGOTTEN = ledger(grant("a", "m00", "c00"))


def test_a_pod_whose_units_the_kubelet_forgot_asks_again() -> None:
    """It started without its checkpoint, and admits its pods again."""
    shown = [listed("a", main={}), listed("proxy", main={})]

    caller = find_caller(Call(MEM, 2), shown, specs(A, BYSTANDER), FORGOTTEN, seen("a"))

    assert told(caller) == ("a", "main")


@pytest.mark.parametrize("is_known", [True, False], ids=["spec known", "spec not known"])
def test_a_pod_whose_units_were_forgotten_is_not_taken_for_another_that_may_ask(
    *, is_known: bool
) -> None:
    """Else the other would get the units that the first one uses.

    A container that was admitted before the kubelet knew of our resources asks when it starts,
    whatever the containers before it have.
    """
    late = pod("late", container("prepare", 6, 40, INIT), container("main", 2, 30))
    known = specs(A, late) if is_known else specs(A)
    shown = [listed("a", main={}), listed("late", main={})]

    with pytest.raises(UnknownPodError, match=r"2 pods may be asking .* default/late"):
        find_caller(Call(MEM, 2), shown, known, FORGOTTEN, seen("a", "late"))


def test_the_pod_that_is_being_admitted_goes_before_one_whose_units_were_forgotten() -> None:
    """The kubelet asks for its containers one after the other."""
    two = pod("b", container("helper", 1, 10), container("main", 2, 30))
    shown = [listed("a", main={}), listed("b", helper={MEM: M1, CORE: C0}, main={})]
    now = PodRef("default", "b", "uid-b")
    known, before = specs(A, two), seen("a", "b")

    caller = find_caller(Call(MEM, 2), shown, known, FORGOTTEN, before, admitting=now)

    assert told(caller) == ("b", "main")
    with pytest.raises(UnknownPodError, match="2 pods may be asking"):
        find_caller(Call(MEM, 2), shown, known, FORGOTTEN, before)
