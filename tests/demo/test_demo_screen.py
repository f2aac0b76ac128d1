"""The promise: the demo is readable in 80 columns and without colours."""

import io

from rich.console import Console
from tools.demo.demo_output import CardHolders, CardShare, ComputeShare, GpuView, Promise, Teller
from tools.harness.kubelet_pods import ContainerStart

UUID = "GPU-fbe2901d-8128-59f9-9ae5-417b49a41849"


def drawn(width: int = 80) -> tuple[Teller, io.StringIO]:
    """A screen, and what is drawn on it."""
    paper = io.StringIO()
    return Teller(Console(file=paper, width=width, highlight=False)), paper


def test_a_card_map_shows_each_unit_and_who_holds_it() -> None:
    """Letters, so that no colour is needed."""
    screen, paper = drawn()
    shares = (CardShare("train", 2, 30), CardShare("chat", 4, 50))

    screen.card_map("n1", [CardHolders(0, 15, shares)], has_compute=True)

    assert "card 0  aabbbb.........  6/15      80 %  a train, b chat" in paper.getvalue()


def test_memory_is_written_as_nvidia_smi_writes_it() -> None:
    """So that nobody has to translate."""
    screen, paper = drawn()

    view = GpuView("train", 337, 2154, 30, 1)

    screen.table(["seen from"], [[view.who, view.memory]], right=["Memory-Usage"])

    assert "train      337MiB / 2154MiB" in paper.getvalue()


def test_a_bar_shows_what_was_granted_and_what_was_had() -> None:
    """Also where it had more than that, or more than there is."""
    screen, paper = drawn()

    screen.compute_shares([ComputeShare(*share) for share in (("a", 30, 20.4), ("b", 50, 101.0))])

    lines = [line.split() for line in paper.getvalue().splitlines() if "#" in line]
    assert lines == [
        ["a", f"{'#' * 10}.....|{'.' * 35}", "20.4", "%"],
        ["b", f"{'#' * 25}|{'#' * 25}", "101.0", "%"],
    ]


def test_a_broken_promise_shows_both_sides() -> None:
    """A kept one is a line."""
    screen, paper = drawn()

    screen.promise(Promise("allocatable", "60", "60"))
    screen.promise(Promise("capacity", "60", "45"))

    assert paper.getvalue().splitlines() == [
        "   ok  allocatable: 60",
        "   FAILED  capacity",
        "     expected  60",
        "     seen      45",
    ]


def test_the_end_counts_and_names_what_was_not_kept() -> None:
    """So that nobody has to scroll."""
    screen, paper = drawn()

    screen.closing([Promise("a", "1", "1"), Promise("b", "1", "2")], 12.3)

    assert "1 of 2 checks passed in 12 s" in paper.getvalue()
    assert "failed: b" in paper.getvalue()


def test_nothing_is_wider_than_80_columns() -> None:
    """UUIDs, long paths, several cards."""
    screen, paper = drawn()
    mounts = {f"/run/gpu-device-plugin/cards/{UUID}/0123456789abcdef": ("/x", False)}
    env = {"NVIDIA_VISIBLE_DEVICES": f"{UUID},{UUID}", "ALIYUN_COM_GPU_MEM_IDX": "0,1"}

    screen.received("train", "n1", ContainerStart(env, mounts, {}, frozenset()))
    model = "NVIDIA-A100-SXM4-40GB (in MIG mode)"
    screen.table(("card", "model", "MiB", "UUID"), [["0", model, "40536", UUID]])
    gets = "cards 0 and 1: 4309 MiB each"
    row = ["two", "n1", "8 units on 2 cards", gets]
    screen.table(("pod", "on node", "asks", "gets"), [row])
    screen.quote("Event", f"card 1 ({UUID}): " + "a long reason " * 12)

    lines = paper.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert UUID in paper.getvalue()
    assert "  rw mount /run/gpu-device-plugin/cards/GPU-fbe2901d.../0123456789abcdef" in str(lines)


def test_a_quote_keeps_its_columns_when_it_is_folded() -> None:
    """What follows a label stands below it."""
    screen, paper = drawn(60)

    screen.quote("why", "  asked    " + "word " * 20)

    first, second = paper.getvalue().splitlines()[2:4]
    assert first.index("word") == second.index("word")


def test_waiting_is_seen_where_there_is_no_terminal() -> None:
    """In a log it is a line."""
    screen, paper = drawn()

    with screen.waiting("waiting for the agent"):
        assert "... waiting for the agent" in paper.getvalue()
