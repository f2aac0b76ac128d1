"""A watched map fits on the terminal, says what it leaves out, and since when it may be out of date."""

import datetime
import io
import re

from rich.console import Console
from tests.overview.test_inspection import view
from tools.harness.api_server import running, working
from tools.harness.objects import node
from tools.harness.waiting import until

from gpu_device_plugin.cli.kubeconfig_options import VerbResult, ask_again
from gpu_device_plugin.cli.overview_screen import WatchScreen, stale_text
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.overview.node_cards import ClusterCards
from gpu_device_plugin.overview.questions import FollowedCards, follow_cards
from gpu_device_plugin.overview.why import PodStory

TEN_NODES = ClusterCards(tuple(view(f"gpu-{n}", [16160] * 4, []) for n in range(10)))
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def drawn(cards: ClusterCards | VerbResult, stale: str, rows: int, columns: int = 80) -> list[str]:
    """The lines on a terminal of that size."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=columns, height=rows, color_system=None, _environ={}
    )
    with WatchScreen(console, is_wide=False).drawing() as draw:
        draw(cards, stale)
        return _CONTROL.sub("", file.getvalue()).rstrip("\n").split("\n")


def test_it_fits_and_says_how_many_nodes_do_not() -> None:
    lines = drawn(TEN_NODES, "", 24)

    assert len(lines) <= 24
    assert sum("units of 1 GiB" in line for line in lines) == 2
    assert lines[-2].startswith("no room for 8 of 10 nodes")
    assert lines[-1].startswith("10 nodes, 40 cards")
    assert not [line for line in drawn(TEN_NODES, "", 100) if "no room" in line]


def test_a_node_that_is_higher_than_the_terminal_is_cut() -> None:
    lines = drawn(ClusterCards(TEN_NODES.nodes[:1]), "not up to date since 12:00:00: gone", 6)

    assert len(lines) <= 6
    assert lines[-3].startswith("no room for cards")
    assert lines[-1] == "not up to date since 12:00:00: gone"


def test_another_text_is_cut_by_lines() -> None:
    story = PodStory("ns/big", "Pending", messages=tuple(f"line {n}" for n in range(40)))
    lines = drawn(VerbResult({}, lambda screen: screen.story(story)), "not up to date", 12)

    assert len(lines) <= 12
    assert lines[0] == "ns/big  Pending"
    assert lines[-2].startswith("no room for 31 of 41 lines; enlarge")
    assert lines[-1] == "not up to date"


async def test_while_nobody_answers_the_last_answer_stays_and_says_so() -> None:
    told: list[tuple[VerbResult, str]] = []
    states = iter(["first", "", "second"])

    async def read(_: ApiServer) -> VerbResult:
        state = next(states, "second")
        if not state:
            raise ClusterError("connection refused")
        return VerbResult(state, lambda _: None)

    async with running() as (_, api):

        async def watch() -> None:
            await ask_again(read, api, lambda *drawn: told.append(drawn), 0.01)

        async with working(watch):
            await until(lambda: told and told[-1][0].value == "second")
    assert told[0][0].value == "first"
    assert re.fullmatch(r"not up to date since .*: connection refused", told[0][1])
    assert told[-1][1] == ""


def test_without_a_terminal_each_change_is_printed_below_the_last() -> None:
    """And what has not changed is not printed again."""
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, _environ={})
    with WatchScreen(console, is_wide=False).drawing() as draw:
        draw(TEN_NODES, "")
        draw(TEN_NODES, "")
        draw(ClusterCards(TEN_NODES.nodes[:3]), "not up to date")

    text = file.getvalue()
    assert text.count("10 nodes, 40 cards") == text.count("3 nodes, 12 cards") == 1
    assert text.count("gpu-9 ") == 1
    assert text.endswith("not up to date\n")


def test_it_says_since_when_and_why() -> None:
    now = datetime.datetime(2026, 11, 22, 12, 0, 30, tzinfo=datetime.UTC)

    assert stale_text("", 0, now) == ""
    text = stale_text("cannot reach https://k8s: connection refused", 31, now)
    assert text == "not up to date since 11:59:59: cannot reach https://k8s: connection refused"


async def test_what_was_known_stays_while_the_api_server_is_away() -> None:
    told: list[FollowedCards] = []
    async with running() as (server, api):
        await server.put("/api/v1/nodes/gpu-a", node("gpu-a", 2))
        async with working(lambda: follow_cards(api, told.append)):
            await until(lambda: told and told[-1].cards)
            assert not told[-1].trouble
            await server.stop()
            await until(lambda: "connection refused" in told[-1].trouble)
            assert told[-1].cards is not None
            assert [each.name for each in told[-1].cards.nodes] == ["gpu-a"]
            await until(lambda: told[-1].trouble_seconds > 1)
            await server.start()
            await until(lambda: not told[-1].trouble)
