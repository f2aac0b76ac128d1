"""A pod that the API watch has not told yet is known by the text that was fetched for it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_device_plugin.agent.kubelet_calls.caller_lookup import CallerLookup, Sources
from gpu_device_plugin.agent.state.ledger_store import LiveLedger
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.caller import Call, Specs
from gpu_device_plugin.domain.grants.grant import Grant, Holder
from gpu_device_plugin.domain.grants.kubelet_snapshot import KubeletSnapshot
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.lifetime import Witnesses
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.errors import ClusterError, UnknownPodError

POD = PodRef("default", "late", "uid-1")
MAIN = ContainerRequest("main", ContainerKind.APP, 0, {Resource.MEM: 1, Resource.CORE: 5})
TEXT = PodRequest(POD, (MAIN,))


class Node:
    """One pod in the kubelet's List; the API answers a GET, and its watch when it is told to."""

    def __init__(self) -> None:
        self.listed = ListedPod(PodRef("default", "late"))
        self.beside: list[ListedPod] = []
        self.watched: dict[tuple[str, str], PodRequest] = {}
        self.fetches = 0
        self.is_away = False
        self.text: PodRequest | None = TEXT
        sources = Sources(self.list_pods, lambda: self.watched, self.fetch, self.witnesses)
        self.ended: frozenset[PodRef] = frozenset()
        self.live = LiveLedger()
        self.caller_lookup = CallerLookup(sources, self.live)

    def witnesses(
        self, listed: Sequence[ListedPod], specs: Specs, ended: frozenset[PodRef]
    ) -> Witnesses:
        """Those of a settled kubelet."""
        self.ended = ended
        return Witnesses(KubeletSnapshot(listed, ()), specs)

    async def list_pods(self) -> list[ListedPod]:
        """PodResources List."""
        return [self.listed, *self.beside]

    async def fetch(self, _namespace: str, _name: str) -> PodRequest | None:
        """A GET."""
        self.fetches += 1
        if self.is_away:
            raise ClusterError("nobody answers")
        return self.text

    def holds(self, **units: str) -> None:
        """What List shows from now on."""
        held: dict[str, frozenset[str]] = {
            Resource[name]: frozenset({unit}) for name, unit in units.items()
        }
        self.listed = ListedPod(self.listed.pod, {"main": held})


async def test_the_second_resource_of_a_pod_is_known_too_when_the_watch_is_late() -> None:
    """It was refused: its text was fetched for the first call alone."""
    node = Node()
    first = (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller
    node.holds(CORE="gpu-0-core-0")
    second = (await node.caller_lookup.identify(Call(Resource.MEM, 1), first)).caller

    assert first.container == second.container == MAIN
    assert node.fetches == 1


async def test_what_was_fetched_is_known_where_the_kubelet_does_not_ask_first() -> None:
    """Allocate alone goes by the texts; with none from the watch they would be all there is."""
    node = Node()
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    assert not node.caller_lookup.specs()
    other = PodRequest(PodRef("default", "early", "uid-0"), (MAIN,))
    node.watched[other.ref.key] = other

    assert node.caller_lookup.specs() == {POD.key: TEXT, other.ref.key: other}


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_refused_pods_text_is_not_taken_for_the_next_pod_of_its_name(
    *, is_named: bool
) -> None:
    """With other wishes, and equal amounts; whether the refused call's pod was known, or one of several."""
    node = Node()
    asked = (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller
    node.caller_lookup.pods.forget(asked if is_named else None)
    node.text = replace(TEXT, ref=replace(POD, uid="uid-2"))

    again = await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    assert again.caller.request == node.text


OLD = PodRef("default", "late", "uid-0")
EARLY = PodRequest(PodRef("default", "early", "uid-9"), (MAIN,))


def granted(pod: PodRef) -> Ledger:
    """A ledger with one grant."""
    return Ledger({pod.uid: Grant(pod.uid, Holder(pod, "main"), {Resource.CORE: ("c00",)})})


async def test_a_pod_of_which_the_watch_tells_later_than_of_the_one_before_it_lives() -> None:
    """Of two pods of a name one GET says which one is there, and what the other had is over."""
    node = Node()
    node.watched[EARLY.ref.key] = EARLY
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.live.ledger = granted(POD)
    node.holds(CORE="c00", MEM="m00")
    node.beside = [ListedPod(EARLY.ref)]
    node.watched[OLD.key] = PodRequest(OLD, (MAIN,))
    for _ in range(2):
        await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
        assert not node.ended
        assert node.caller_lookup.specs()[POD.key] == TEXT
    assert node.fetches == 2

    node.text = replace(TEXT, ref=replace(POD, uid="uid-2"))
    node.watched[OLD.key] = node.text
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    assert node.ended == {POD}


async def test_the_next_pod_of_a_name_whose_grants_are_over_is_asked_for() -> None:
    """Its units were given to another; the watch still has the pod before, with the same amounts."""
    node = Node()
    node.watched |= {EARLY.ref.key: EARLY, OLD.key: PodRequest(OLD, (MAIN,))}
    node.live.ledger = granted(OLD)
    node.listed, node.beside = ListedPod(EARLY.ref), []
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.live.ledger = Ledger()
    node.listed = ListedPod(PodRef("default", "late"))

    assert (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller.pod == POD


async def test_a_pod_made_again_is_asked_for_before_it_is_refused_as_unknown() -> None:
    """A kubelet before 1.34 lists finished pods: such a text was fetched once, and never again."""
    node = Node()
    node.text = replace(TEXT, ref=OLD, is_finished=True)
    with pytest.raises(UnknownPodError):
        await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.text = TEXT

    assert (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller.pod == POD


async def test_a_pod_that_asks_for_nothing_stays_so_when_nobody_answers() -> None:
    """Of a static pod that was seen nobody tells what it asks; the only new pod was taken for the caller."""
    node = Node()
    node.listed, node.is_away = ListedPod(PodRef("kube-system", "static")), True
    node.caller_lookup.remember([node.listed])
    idle = PodRequest(EARLY.ref, (replace(MAIN, amounts={}),))
    node.watched[idle.ref.key] = idle
    node.beside = [ListedPod(idle.ref)]

    with pytest.raises(UnknownPodError):
        await node.caller_lookup.identify(Call(Resource.MEM, 1), None)


async def test_a_running_pod_that_was_refused_is_not_over_because_of_that() -> None:
    """Its kubelet lost what it holds and asked again, the disk was full, and then the kubelet restarted."""
    node = Node()
    node.watched |= {POD.key: TEXT, EARLY.ref.key: EARLY}
    node.live.ledger = granted(POD)
    asked = await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.caller_lookup.pods.forget(asked.caller)
    node.listed = ListedPod(EARLY.ref)
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)

    assert not node.ended


async def test_what_was_fetched_of_a_pod_whose_grants_are_over_is_not_the_next_ones() -> None:
    """A kubelet before 1.34 lists it until the next one of its name is there."""
    node = Node()
    node.watched[EARLY.ref.key] = EARLY
    node.text = replace(TEXT, ref=OLD)
    asked = await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.live.ledger = granted(OLD)
    await node.caller_lookup.identify(Call(Resource.MEM, 1), asked.caller)
    node.live.ledger, node.text = Ledger(), TEXT

    assert (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller.pod == POD


async def test_the_watch_has_the_last_word() -> None:
    """What it tells later counts."""
    node = Node()
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    ended = PodRequest(POD, (MAIN,), is_finished=True)
    node.watched[POD.key] = ended

    assert node.caller_lookup.specs() == {POD.key: ended}


async def test_a_pod_that_the_kubelet_lists_no_more_is_forgotten() -> None:
    """Its text may be another's when the name comes back."""
    node = Node()
    other = PodRequest(PodRef("default", "early", "uid-0"), (MAIN,))
    node.watched[other.ref.key] = other
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.listed = ListedPod(other.ref)
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)

    assert node.caller_lookup.specs() == {other.ref.key: other}


async def test_a_pod_made_again_under_a_name_that_was_seen_is_known_before_the_watch_tells_it() -> (
    None
):
    """A StatefulSet does that; on a node without other pods the watch has none at all then."""
    node = Node()
    node.watched[POD.key] = PodRequest(PodRef("default", "late", "uid-0"), (MAIN,))
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.watched.clear()

    assert (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller.pod == POD


async def test_a_pod_made_again_with_other_containers_is_known_while_the_watch_is_behind() -> None:
    """For all of its calls: the watch still has the old one, whose grants end with the first call."""
    node = Node()
    old = PodRef("default", "late", "uid-0")
    other = ContainerRequest("other", ContainerKind.APP, 0, {Resource.CORE: 7})
    node.watched[POD.key] = PodRequest(old, (other,))
    grant = Grant("s0", Holder(old, "other"), {Resource.CORE: ("c00",)})
    node.live.ledger = Ledger({"s0": grant})
    first = (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller
    node.live.ledger = Ledger({})
    node.holds(CORE="gpu-0-core-0")
    second = (await node.caller_lookup.identify(Call(Resource.MEM, 1), first)).caller

    assert (first.pod, second.pod, second.container) == (POD, POD, MAIN)
    assert node.caller_lookup.specs()[POD.key] == TEXT

    early = PodRequest(PodRef("default", "early", "uid-2"), (MAIN,))
    node.watched[early.ref.key] = early
    node.listed = ListedPod(early.ref)  # and the new one is gone, too, before the watch tells it
    for _ in range(2):
        await node.caller_lookup.identify(Call(Resource.CORE, 5), None)

    assert node.caller_lookup.specs() == {early.ref.key: early}


async def test_a_pod_made_again_while_the_api_server_is_away_is_not_taken_for_the_one_before() -> (
    None
):
    """Only its name is known: it held something by its grant, holds nothing by List, and no GET tells which it is."""
    node = Node()
    node.watched[POD.key] = TEXT
    node.live.ledger = Ledger({"s0": Grant("s0", Holder(POD, "main"), {Resource.CORE: ("c00",)})})
    node.holds(CORE="c00")
    node.caller_lookup.remember([node.listed])
    node.listed, node.is_away = ListedPod(node.listed.pod), True

    caller = (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller

    assert (caller.pod.name, caller.pod.uid, caller.container) == ("late", "", None)


async def test_of_two_new_pods_none_is_guessed_although_one_has_a_name_that_was_seen() -> None:
    """A kubelet without its checkpoint asks for the one that was replaced; the other waits too."""
    node, early = Node(), PodRef("default", "early", "uid-2")
    node.watched[POD.key] = PodRequest(PodRef("default", "late", "uid-0"), (MAIN,))
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.watched = {POD.key: TEXT, early.key: PodRequest(early, (MAIN,))}
    node.beside = [ListedPod(PodRef("default", "early"))]

    with pytest.raises(UnknownPodError, match=r"2 pods may be asking .*late.*early"):
        await node.caller_lookup.identify(Call(Resource.CORE, 5), None)


async def test_a_pod_that_was_replaced_before_the_watch_told_of_it_has_ended() -> None:
    """Only two GETs ever told of it; while List may be short its grant counted for a minute."""
    node = Node()
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.live.ledger = Ledger({"s0": Grant("s0", Holder(POD, "main"), {Resource.CORE: ("c00",)})})
    node.text = PodRequest(PodRef("default", "late", "uid-2"), (MAIN,))
    told: list[frozenset[PodRef]] = []
    sources = node.caller_lookup.sources

    def witnesses(listed: Sequence[ListedPod], specs: Specs, over: frozenset[PodRef]) -> Witnesses:
        told.append(over)
        return sources.witnesses(listed, specs, over)

    node.caller_lookup.sources = replace(sources, witnesses=witnesses)
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.watched[POD.key] = node.text
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)

    assert told == [{POD}, {POD}]


async def test_a_static_pod_whose_file_was_edited_is_known_as_another_one() -> None:
    """It has the name of one that was seen, and the API server has no mirror of it yet."""
    node = Node()
    node.text = None
    first = ListedPod(PodRef("default", "other"))
    node.listed = first
    await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.holds(CORE="gpu-0-core-0")
    node.caller_lookup.remember(await node.list_pods())
    node.listed = first

    assert (await node.caller_lookup.identify(Call(Resource.CORE, 7), None)).caller.pod == first.pod


async def test_a_pod_that_a_pass_has_not_seen_is_new_when_it_is_listed_again() -> None:
    """A static pod has no mirror yet when it is asked for."""
    node = Node()
    node.text = None
    node.caller_lookup.remember([node.listed])
    with pytest.raises(UnknownPodError):
        await node.caller_lookup.identify(Call(Resource.CORE, 5), None)
    node.caller_lookup.remember_too([], [])

    found = (await node.caller_lookup.identify(Call(Resource.CORE, 5), None)).caller
    assert str(found.pod) == "default/late"
