"""The promise: a running slice grows and shrinks as its pod's annotation asks, as far as there is room and leave."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tools.harness.api_server import status
from tools.harness.boxes import Boxes
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY, Program
from tools.harness.kubelet_book import Book
from tools.harness.rig import (
    CORE,
    COUNT,
    FOUR_CARDS,
    MEM,
    Rig,
    command,
    running_rig,
    slice_of,
    until,
)

from gpu_device_plugin.domain.fractions.pod_annotations import GROWTH, RESIZE, RESIZED

SECONDS = 10
OF_TWO, OF_EIGHT = 2154 * MIB, 8618 * MIB


async def allow(rig: Rig, growth: str = "mem:20,core:200") -> None:
    """The operator's word on the namespace."""
    await rig.api.put(
        "/api/v1/namespaces/default",
        {"metadata": {"name": "default", "annotations": {GROWTH: growth}}},
    )


async def ask(rig: Rig, pod: str, text: str) -> None:
    """The tenant's annotation."""
    path = f"/api/v1/namespaces/default/pods/{pod}"
    found = rig.api.objects[path]
    annotations = {**found["metadata"].get("annotations", {}), RESIZE: text}
    await rig.api.put(
        path, {**found, "metadata": {**found["metadata"], "annotations": annotations}}
    )


def told_text(rig: Rig, pod: str) -> str:
    """The agent's annotation."""
    return rig.annotations(f"/api/v1/namespaces/default/pods/{pod}").get(RESIZED, "")


def told(rig: Rig, pod: str, container: str = "main-0") -> dict[str, Any]:
    """What the agent answers."""
    answer: dict[str, Any] = json.loads(told_text(rig, pod) or "{}")
    found: dict[str, Any] = answer.get("containers", {}).get(container, {})
    return found


async def until_told(rig: Rig, pod: str, **expected: object) -> dict[str, Any]:
    """Wait for an answer with these values."""
    await until(lambda: expected.items() <= told(rig, pod).items(), SECONDS, lambda: told(rig, pod))
    return told(rig, pod)


def limits(rig: Rig, pod: str) -> str:
    path: Path = rig.run / "slices" / rig.grant(pod).slice_id / "config" / "limits"
    return path.read_text()


def figures(page: str, part: str) -> list[float]:
    """The values of the metrics that contain a text."""
    return sorted(float(line.split()[-1]) for line in page.splitlines() if part in line)


def counted(rig: Rig, pod: str) -> Any:
    """What the node's annotation says that the pod has of each card: what schedulers count."""
    held = json.loads(rig.annotations().get("gpu-device-plugin/holdings", "{}"))
    return list(held.get("pods", {}).get(rig.uid(pod), {}).get("slices", {}).values())


async def shrunk_in_use(rig: Rig, boxes: Boxes) -> Program:
    """A program that uses what its slice had grown into, and is to give up: allocation 1 of pod a."""
    await allow(rig)
    await rig.admit("a", slice_of(2, 30))
    await ask(rig, "a", "main-0=mem:8")
    await until_told(rig, "a", mem=8, state="done")
    program = await boxes.start(rig, "a")
    assert program(f"alloc 1 {4000 * MIB}") == [0]
    await ask(rig, "a", "main-0=mem:2")
    await until_told(rig, "a", mem=2, state="waits")
    return program


async def test_a_running_program_grows_and_shrinks(boxes: Boxes) -> None:
    """An allocation that failed succeeds without a restart; what is given back others may have."""
    async with running_rig() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        program = await boxes.start(rig, "a")
        assert program(f"alloc 1 {4000 * MIB}") == [OUT_OF_MEMORY]
        await ask(rig, "a", "main-0=mem:8,core:60")
        await until_told(rig, "a", mem=8, core=60, state="done")

        assert program("info")[2] == OF_EIGHT
        assert program(f"alloc 1 {4000 * MIB}") == [0]
        assert "core_percent=60" in limits(rig, "a")
        await rig.until_offered({**FOUR_CARDS, MEM: 60 - 6, CORE: 400 - 30})
        await until(lambda: counted(rig, "a") == [[8, 60]], SECONDS, lambda: counted(rig, "a"))
        await until(lambda: rig.events("Resized"), SECONDS)
        now = "container main-0 has 8 units of 1024 MiB and 60 % compute now"
        assert rig.events("Resized")[0]["message"] == now

        await ask(rig, "a", "main-0=mem:2,core:30")
        answer = await until_told(rig, "a", mem=2, state="waits")
        assert "are kept for it" in answer["text"]
        assert program(f"alloc 2 {MIB}") == [OUT_OF_MEMORY]
        assert rig.allocatable()[MEM] == 60 - 6
        assert program("free 1") == [0]
        await until_told(rig, "a", mem=2, core=30, state="done")
        await rig.until_offered(FOUR_CARDS)
        assert program("info")[2] == OF_TWO


@pytest.mark.parametrize("then", ["main-0=mem:99", "garbage", "", "other=mem:2", "restart"])
async def test_what_is_kept_goes_back_whatever_is_asked_meanwhile(boxes: Boxes, then: str) -> None:
    """Nobody may use it, and it would stay the pod's to its end."""
    async with running_rig() as rig:
        program = await shrunk_in_use(rig, boxes)
        await ask(rig, "a", "" if then == "restart" else then)
        answer = f'"asked":"{"" if then in ("restart", "garbage") else then}"'
        await until(lambda: answer in told_text(rig, "a"), SECONDS, lambda: told_text(rig, "a"))
        if then == "restart":
            await rig.restart_agent()
        assert rig.allocatable()[MEM] == 60 - 6
        assert program("free 1") == [0]

        await rig.until_offered(FOUR_CARDS)


async def test_a_resize_of_which_no_process_can_be_told_is_not_done(boxes: Boxes) -> None:
    """The slice's region is being laid out, or its container says so for ever."""
    async with running_rig() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        program = await boxes.start(rig, "a")
        assert program("info")[2] == OF_TWO
        region = rig.run / "slices" / rig.grant("a").slice_id / "region"
        with region.open("r+b") as file:
            file.seek(12)
            file.write(b"\1\0\0\0")
        await ask(rig, "a", "main-0=mem:8")

        answer = await until_told(rig, "a", mem=8, state="waits")
        assert "waits for its processes" in answer["text"]


async def test_an_answer_stays_while_another_container_is_resized() -> None:
    """A refusal is final, though there is room by now."""
    async with running_rig(profile="t4") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30), slice_of(2, 30))
        await rig.admit("b", slice_of(8, 30))
        await ask(rig, "a", "main-0=mem:6,within:0s")
        await until_told(rig, "a", state="refused")
        await rig.delete(rig.uid("b"))
        await ask(rig, "a", "main-0=mem:6,within:0s;main-1=mem:1")
        await until(lambda: told(rig, "a", "main-1").get("state") == "done", SECONDS)

        await until_told(rig, "a", state="refused", mem=2)


async def test_nothing_grows_that_the_operator_has_not_allowed() -> None:
    """By default a namespace may grow nothing; what is less than the request is the pod's own."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(4, 30))
        await ask(rig, "a", "main-0=mem:5")
        answer = await until_told(rig, "a", state="refused", mem=4)
        assert "its namespace is allowed nothing" in answer["text"]
        assert "1 unit of 1024 MiB beyond its request" in answer["text"]
        await ask(rig, "a", "main-0=mem:1,core:5")
        await until_told(rig, "a", state="done", mem=1, core=5)
        assert rig.allocatable() == FOUR_CARDS

        assert (await rig.admit("b", slice_of(11, 70))).is_admitted
        await ask(rig, "a", "main-0=mem:4,core:30")
        await until_told(rig, "a", state="done", mem=4, core=30)


async def test_what_was_refused_may_be_asked_again_in_another_text() -> None:
    """As kubectl gpu resize does: meanwhile the operator may have allowed it."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(4, 30))
        await ask(rig, "a", "main-0=mem:5")
        await until_told(rig, "a", state="refused")
        await allow(rig)
        # The agent asks for a namespace once in ten seconds.
        texts = cycle(["main-0=mem:05", "main-0=mem:5"])
        await until(partial(_asked_again, rig, texts), 4 * SECONDS)

        assert told(rig, "a")["mem"] == 5


async def _asked_again(rig: Rig, texts: Iterator[str]) -> bool:
    text = next(texts)
    await ask(rig, "a", text)
    await until(lambda: f'"asked":"{text}"' in told_text(rig, "a"), SECONDS)
    return bool(told(rig, "a")["state"] == "done")


async def test_a_namespace_grows_up_to_its_number_over_all_its_slices() -> None:
    """The second one waits until the first one gives back."""
    async with running_rig() as rig:
        await allow(rig, "mem:3")
        await rig.admit("a", slice_of(2, 30))
        await rig.admit("b", slice_of(2, 30))
        await ask(rig, "a", "main-0=mem:4")
        await until_told(rig, "a", state="done", mem=4)
        await ask(rig, "b", "main-0=mem:4")
        answer = await until_told(rig, "b", state="waits", mem=2)
        assert "other slices of it have 2 units" in answer["text"]
        await ask(rig, "a", "main-0=mem:3")

        await until_told(rig, "b", state="done", mem=4)


async def test_a_grow_without_room_waits_and_says_who_has_it() -> None:
    """It is done when a neighbour ends; one with a time ends by itself, and stays so."""
    async with running_rig(profile="t4") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(4, 30))
        await rig.admit("b", slice_of(8, 30))
        await ask(rig, "a", "main-0=mem:12")
        answer = await until_told(rig, "a", state="waits", mem=4)
        assert "pod default/b 8 units" in answer["text"]
        await until(lambda: rig.events("ResizeWaits"), SECONDS)
        _, why = await command(rig, "why", "default/a")
        assert "to have main-0=mem:12" in why
        assert "pod default/b 8 units" in why
        await ask(rig, "a", "main-0=mem:11,within:0s")
        await until_told(rig, "a", state="refused", mem=4)
        await ask(rig, "a", "main-0=mem:12,within:1h")
        await until_told(rig, "a", state="waits", mem=4)
        await rig.delete(rig.uid("b"))

        await until_told(rig, "a", state="done", mem=12)


async def test_a_resize_outlives_the_agent_and_ends_with_its_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first list that a new agent sends keeps the units back; the pod's end gives all of them back."""
    lists: list[tuple[str, int]] = []
    replace_list = Book.replace_list

    def note(book: Book, resource: str, devices: Any) -> None:
        replace_list(book, resource, devices)
        lists.append((resource, len(book.healthy[resource])))

    async with running_rig() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        await ask(rig, "a", "main-0=mem:8,core:60")
        await until_told(rig, "a", state="done", mem=8)
        await rig.until_offered({**FOUR_CARDS, MEM: 54, CORE: 370})
        text, page = limits(rig, "a"), (await rig.page("metrics"))[1]
        assert figures(page, "_card_healthy{") == [1, 1, 1, 1]
        assert figures(page, 'gpu-mem",state="held"') == [0, 0, 0, 8]
        monkeypatch.setattr(Book, "replace_list", note)
        await rig.restart_agent()
        monkeypatch.undo()
        assert dict(reversed(lists)) == {MEM: 54, CORE: 370, COUNT: 4}
        assert limits(rig, "a") == text
        assert not [each for each in rig.events() if "ealthy" in each["reason"]]
        await rig.delete(rig.uid("a"))

        await rig.until_offered(FOUR_CARDS)


async def test_what_a_pod_grew_into_that_only_a_process_is_left_of_stays_its_own(
    boxes: Boxes,
) -> None:
    """A pod that was deleted by force; a slice that grows does not get it either."""
    async with running_rig(profile="t4") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        await rig.admit("b", slice_of(2, 30))
        await ask(rig, "a", "main-0=mem:8")
        await until_told(rig, "a", state="done", mem=8)
        program = await boxes.start(rig, "a")
        assert program(f"alloc 1 {MIB}") == [0]
        await rig.delete(rig.uid("a"))
        await until(lambda: rig.events("ProcessLeft"), SECONDS)
        await ask(rig, "b", "main-0=mem:8")
        answer = await until_told(rig, "b", state="waits")
        assert "pod default/a 8 units" in answer["text"]
        assert rig.allocatable()[MEM] == 14 - 6

        refused = await rig.admit("c", slice_of(9, 30))
        assert "what default/a had is not given again while a process" in refused.message
        assert "by a resize default/a has more than it asked for" in refused.message
        _, why = await command(rig, "why", "default/c")
        assert "card 0   no room: 4/14 units" in why


async def test_a_pod_that_is_bound_meanwhile_gets_other_units_or_hears_of_the_resize() -> None:
    """The kubelet has not heard yet that a slice grew."""
    async with running_rig(profile="t4") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        book = rig.kubelet.registry.book
        before = book.healthy[MEM]
        await ask(rig, "a", "main-0=mem:8")
        await until_told(rig, "a", state="done", mem=8)
        await until(lambda: book.healthy[MEM] != before, SECONDS)
        book.healthy[MEM] = before  # as if the list had not come
        fits = await rig.admit("b", slice_of(6, 30))
        assert fits.is_admitted
        too_much = await rig.admit("c", slice_of(1, 30))

        assert not too_much.is_admitted
        assert "by a resize default/a has more than it asked for" in too_much.message
        held = rig.grant("a").extra_ids
        assert held.isdisjoint(rig.grant("b").all_ids)


async def test_what_a_bound_pod_was_promised_is_not_grown_into() -> None:
    """A pod that the kubelet has not admitted yet."""
    async with running_rig(profile="t4") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30))
        waiting = rig.pod("b", slice_of(9, 30))
        await rig.api.put("/api/v1/namespaces/default/pods/b", rig.object_of(waiting))
        await ask(rig, "a", "main-0=mem:8")
        answer = await until_told(rig, "a", state="waits", mem=2)
        assert "pod default/b, which is bound here" in answer["text"]
        await ask(rig, "a", "main-0=mem:5")

        await until_told(rig, "a", state="done", mem=5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "is not understood"),
        ("other=mem:4", "has no slice of its own"),
        ("main-0=core:7", "must be one of 5, 10"),
        ("main-0=mem:16", "its card has 15 units"),
        ("init-0=mem:4", "an init container ends by itself"),
    ],
)
async def test_what_can_never_be_is_refused_in_words(text: str, words: str) -> None:
    """The slice goes on with what it has."""
    async with running_rig() as rig:
        await allow(rig)
        await rig.admit("a", slice_of(2, 30), init=[slice_of(2, 30)])
        before = limits(rig, "a")
        await ask(rig, "a", text)
        await until(lambda: rig.events("ResizeRefused"), SECONDS)

        await until(lambda: rig.events("ResizeRefused"), SECONDS)
        assert words in rig.events("ResizeRefused")[0]["message"]
        path = "/api/v1/namespaces/default/pods/a"
        await until(lambda: words in rig.annotations(path).get(RESIZED, ""), SECONDS)
        assert limits(rig, "a") == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "share"}, "nothing limits its slice"),
        ({"isolation": "off"}, "nothing limits its slice"),
        ({"honor_cgpu_disable": True}, "nothing limits its slice"),
    ],
)
async def test_a_slice_without_limits_keeps_its_size(settings: dict[str, Any], words: str) -> None:
    """Nothing would hold it to another one."""
    async with running_rig(**settings) as rig:
        asked = slice_of(2, 0 if "mode" in settings else 30)
        await rig.admit("a", asked, env={"CGPU_DISABLE": "true"})
        await ask(rig, "a", "main-0=mem:1")

        assert words in (await until_told(rig, "a", state="refused"))["text"]


async def test_a_container_with_a_library_of_before_keeps_its_size() -> None:
    """It reads its limits once."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 30))
        library = rig.library / rig.grant("a").library_version / "libgpuslice.so"
        library.write_bytes(library.read_bytes().replace(b"bad revision", b"bad decision"))
        await ask(rig, "a", "main-0=mem:1")

        assert "reads its limits once" in (await until_told(rig, "a", state="refused"))["text"]


def _is_refused(rig: Rig, words: str) -> bool:
    return words in told(rig, "a").get("text", "") and told(rig, "a")["state"] == "refused"


async def test_a_slice_over_two_cards_grows_evenly() -> None:
    """Or not at all; and its mode divides no compute."""
    async with running_rig(mode="cgpu") as rig:
        await allow(rig)
        await rig.admit("a", slice_of(8), labels={"aliyun.com/gpu-count": "2"})
        await ask(rig, "a", "main-0=mem:10")
        await until_told(rig, "a", state="done", mem=10)
        for text, words in (
            ("main-0=mem:11", "ask a multiple of 2 units of 1024 MiB"),
            ("main-0=core:50", "this mode does not divide compute"),
        ):
            await ask(rig, "a", text)
            await until(partial(_is_refused, rig, words), SECONDS)

        assert limits(rig, "a").count(f"memory_bytes={5386 * MIB}") == 2
        await rig.until_offered({MEM: 60 - 2, CORE: 0, COUNT: 4})


async def test_without_an_answer_on_the_namespace_nothing_grows_and_nothing_is_lost() -> None:
    """It waits, and goes on when the API server answers."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 30))
        rig.api.fault = lambda of: (
            status(403, "no") if of.path == "/api/v1/namespaces/default" else None
        )
        await ask(rig, "a", "main-0=mem:4")
        await until_told(rig, "a", state="waits", mem=2)
        rig.api.fault = lambda _: None
        await allow(rig)

        await until_told(rig, "a", state="done", mem=4)


async def test_a_flood_of_wishes_makes_a_decision_a_second() -> None:
    """Whoever writes a hundred gets the last one, and the agent wrote few answers."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(8, 30))
        before = len(rig.api.seen("PATCH", "/api/v1/namespaces/default/pods/a"))
        for number in range(100):
            await ask(rig, "a", f"main-0=mem:{1 + number % 7}")
        await ask(rig, "a", "main-0=mem:8")
        await until_told(rig, "a", state="done", mem=8)

        assert len(rig.api.seen("PATCH", "/api/v1/namespaces/default/pods/a")) - before < 20


async def test_a_decision_is_one_step_of_one_container() -> None:
    """A pod may name many; each answer has one more of them, and the last one all."""
    async with running_rig() as rig:
        await rig.admit("a", *[slice_of(2, 10)] * 4)
        await ask(rig, "a", ";".join(f"main-{n}=mem:1,core:5" for n in range(4)))
        await until(lambda: told(rig, "a", "main-3").get("mem") == 1, SECONDS)
        path = "/api/v1/namespaces/default/pods/a"
        bodies = [each.body["metadata"]["annotations"] for each in rig.api.seen("PATCH", path)]
        answers = [json.loads(each[RESIZED]) for each in bodies if RESIZED in each]

        counts = [len(each["containers"]) for each in answers]
        assert len(set(counts)) > 1, "a slow API server may get two answers as one, and never all"
        assert counts == sorted(counts)


async def test_more_containers_than_have_slices_are_refused_as_a_whole() -> None:
    """Each would have an answer and an Event of its own."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(2, 30))
        await ask(rig, "a", "main-0=mem:1;x=mem:1;y=mem:1")
        await until(lambda: rig.events("ResizeRefused"), SECONDS)

        [refused] = rig.events("ResizeRefused")
        assert "names 3 containers, and 1 of pod default/a ask for a slice" in refused["message"]
        assert rig.grant("a").resized is None


async def test_nobody_resizes_anothers_slice() -> None:
    """A pod can say that it is the mirror of a static pod with any uid; what it has asked is answered to itself."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(4, 30))
        before = limits(rig, "a")
        forged = rig.object_of(rig.pod("forged", slice_of(4, 30)))
        forged["metadata"]["annotations"] = {
            "kubernetes.io/config.mirror": rig.uid("a"),
            RESIZE: "main-0=mem:1",
        }
        await rig.api.put("/api/v1/namespaces/default/pods/forged", forged)
        answer = await until_told(rig, "forged", mem=0)

        assert answer["state"] != "done"
        assert limits(rig, "a") == before


async def test_what_was_grown_comes_back_after_a_kill_and_without_an_annotation(
    boxes: Boxes,
) -> None:
    """The memory of a process that was killed is no use; and an annotation that goes away keeps no units."""
    async with running_rig() as rig:
        program = await shrunk_in_use(rig, boxes)
        await ask(rig, "a", "")
        program.kill()

        await rig.until_offered(FOUR_CARDS)


async def test_what_is_no_longer_asked_stays_as_it_is() -> None:
    """Nothing shrinks because an annotation went away; one that comes and goes makes no more decisions."""
    async with running_rig() as rig:
        await rig.admit("a", slice_of(8, 30))
        await ask(rig, "a", "main-0=mem:4")
        await until_told(rig, "a", state="done", mem=4)
        before = len(rig.api.seen("PATCH", "/api/v1/namespaces/default/pods/a"))
        for number in range(50):
            await ask(rig, "a", "")
            await ask(rig, "a", f"main-0=mem:{1 + number % 7}")
        await ask(rig, "a", "main-0=mem:5")
        await until_told(rig, "a", state="done", mem=5)
        assert len(rig.api.seen("PATCH", "/api/v1/namespaces/default/pods/a")) - before < 20
        await ask(rig, "a", "")
        await rig.restart_agent()

        assert rig.grant("a").resized is not None
        assert "memory_bytes=5647630336" in limits(rig, "a")
