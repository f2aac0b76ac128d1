"""One broken card goes out alone, says why, and comes back only when its cause has ended."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.cards.card import CardIndex, Hardware, Instance
from gpu_device_plugin.domain.cards.health import (
    observe,
    recover,
    recovery_obstacle,
    restore_health,
)
from gpu_device_plugin.domain.cards.health_values import (
    Change,
    ChangeKind,
    Health,
    HealthRules,
    Recovery,
    XidAction,
    XidRule,
)
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import (
    NO_ANSWER,
    Answered,
    CardReport,
    DriverChanged,
    DriverMissing,
    Inventory,
    NvmlReport,
    Probe,
    Stalled,
    UnreadableCard,
    Xid,
)

A, B, C = "GPU-a", "GPU-b", "GPU-c"
RULES = HealthRules(
    {
        13: XidRule(13, "an application's", XidAction.IGNORE),
        63: XidRule(63, "information", XidAction.REPORT),
        79: XidRule(79, "off the bus", XidAction.FAULT, Recovery.PROBE),
        48: XidRule(48, "double-bit", XidAction.FAULT, Recovery.RESET),
    },
    XidRule(0, "not in the table", XidAction.FAULT, Recovery.RESET),
    recovery_seconds=30,
)


def inventory(*uuids: str, driver: str = "535.1", unreadable: int = 0) -> Inventory:
    """The driver shows these cards."""
    cards = tuple(
        CardReport(uuid, CardIndex(index), index, "T4", MiB(15079), is_mig=False)
        for index, uuid in enumerate(uuids)
    )
    lost = tuple(
        UnreadableCard(CardIndex(len(uuids) + i), "GPU_IS_LOST") for i in range(unreadable)
    )
    return Inventory(driver, "12.2", "", cards, lost)


def after(
    *steps: tuple[float, NvmlReport], start: Health | None = None
) -> tuple[Health, list[Change]]:
    """Health and all changes after reports at their seconds."""
    health = start if start is not None else Health("boot")
    changes: list[Change] = []
    for now_seconds, report in steps:
        health, new = observe(health, report, now_seconds, RULES)
        changes += new
    return health, changes


def probes(
    uuid: str, seconds: Iterable[float], action: int | None = None
) -> list[tuple[float, NvmlReport]]:
    """Clean probes of a card."""
    return [(second, Probe(uuid, recovery_action=action)) for second in seconds]


def with_xid(code: int, *, at: float = 100) -> Health:
    """Two cards, an XID on the first."""
    return after((0, inventory(A, B)), (at, Xid(A, code)))[0]


def out(health: Health) -> dict[str, str]:
    """The cards that are out, and why."""
    return {card.uuid: reason for card in health.cards if (reason := health.reason(card.uuid))}


@pytest.mark.parametrize(
    ("code", "reason", "kinds"),
    [
        (13, "", []),
        (63, "", [ChangeKind.NOTICE]),
        (79, "XID79", [ChangeKind.FAULT]),
        (48, "XID48", [ChangeKind.FAULT]),
        (7777, "XID7777", [ChangeKind.FAULT]),
    ],
)
def test_an_xid_does_what_its_rule_says_to_its_card_only(
    code: int, reason: str, kinds: list[ChangeKind]
) -> None:
    health, changes = after((0, inventory(A, B)), (1, Xid(A, code)))
    assert (health.reason(A), health.reason(B)) == (reason, "")
    assert [(change.kind, change.uuid) for change in changes] == [(kind, A) for kind in kinds]


def test_a_card_that_nobody_has_shown_is_not_healthy() -> None:
    assert after((0, inventory(A)))[0].reason(B) == "Absent"


@pytest.mark.parametrize("uuid", [None, "GPU-never-seen"])
def test_an_xid_that_names_no_known_card_takes_out_none_of_several(uuid: str | None) -> None:
    health, changes = after((0, inventory(A, B)), (1, Xid(uuid, 48)))
    assert out(health) == {}
    assert [(change.kind, change.uuid) for change in changes] == [(ChangeKind.NOTICE, None)]


def test_an_xid_without_a_card_is_the_only_cards() -> None:
    assert after((0, inventory(A)), (1, Xid(None, 48)))[0].reason(A) == "XID48"


def test_a_probe_fault_ends_after_thirty_clean_seconds_and_not_before() -> None:
    health, _ = after(*probes(A, range(100, 130, 5)), start=with_xid(79))
    assert health.reason(A) == "XID79"
    health, changes = after(*probes(A, [130]), start=health)
    assert not health.reason(A)
    assert [(change.kind, change.uuid) for change in changes] == [(ChangeKind.RECOVERED, A)]


def test_another_xid_starts_the_wait_again_without_another_event() -> None:
    health, changes = after(
        *probes(A, [100, 125]), (126, Xid(A, 79)), *probes(A, [131, 155]), start=with_xid(79)
    )
    assert (health.reason(A), changes) == ("XID79", [])
    assert not after(*probes(A, [156]), start=health)[0].reason(A)


def test_a_failed_probe_starts_the_wait_again() -> None:
    lost = Probe(A, error="GPU_IS_LOST")
    health, changes = after(
        *probes(A, [100, 120]), (125, lost), *probes(A, [131, 160]), start=with_xid(79)
    )
    assert [change.reason for change in changes] == ["Lost"]
    assert health.reason(A) == "XID79"
    assert not after(*probes(A, [161]), start=health)[0].reason(A)


def test_a_stall_starts_the_wait_again_since_nobody_looked() -> None:
    health, _ = after(
        *probes(A, [100, 120]),
        (121, Stalled(10)),
        (140, Answered()),
        *probes(A, [141]),
        start=with_xid(79),
    )
    assert health.reason(A) == "XID79"
    assert not after(*probes(A, [171]), start=health)[0].reason(A)


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "UNKNOWN", "RESET_REQUIRED"])
def test_a_card_whose_probe_fails_is_out_until_probes_are_clean(error: str) -> None:
    health, changes = after((0, inventory(A, B)), (5, Probe(A, error=error)))
    assert set(out(health)) == {A}
    assert error in changes[0].text
    assert not after(*probes(A, [10, 40]), start=health)[0].reason(A)


def test_a_reset_fault_outlasts_any_number_of_clean_probes() -> None:
    health, changes = after(*probes(A, range(100, 5000, 5)), start=with_xid(48))
    assert (health.reason(A), changes) == ("XID48", [])


def test_a_reset_fault_ends_as_soon_as_nvml_no_longer_asks_for_an_action() -> None:
    steps = [*probes(A, [101], action=1), *probes(A, [102], action=0)]
    assert not after(*steps, start=with_xid(48))[0].reason(A)


def test_no_action_right_after_the_xid_is_not_yet_an_all_clear() -> None:
    health, _ = after(*probes(A, [100, 110, 129], action=0), start=with_xid(48))
    assert health.reason(A) == "XID48"
    assert not after(*probes(A, [130], action=0), start=health)[0].reason(A)


def test_an_action_asked_before_a_second_xid_says_nothing_about_that_one() -> None:
    steps = [*probes(A, [101], action=1), (102, Xid(A, 48)), *probes(A, [103], action=0)]
    assert after(*steps, start=with_xid(48))[0].reason(A) == "XID48"


@pytest.mark.parametrize(
    "steps",
    [
        [(200, inventory(A, B, driver="550.1"))],
        [(200, DriverMissing("rmmod", is_unloaded=True)), (210, inventory(A, B))],
    ],
)
def test_a_fresh_load_of_the_driver_ends_reset_faults(
    steps: list[tuple[float, NvmlReport]],
) -> None:
    assert out(after(*steps, start=with_xid(48))[0]) == {}


@pytest.mark.parametrize(
    ("before", "now", "is_over"),
    [("7", "8", True), ("7", "7", False), ("", "8", False), ("7", "", False)],
)
def test_a_load_of_the_driver_that_is_not_known_resets_nothing(
    before: str, now: str, *, is_over: bool
) -> None:
    """An agent that can tell loads apart may follow one that could not."""
    first, later = (replace(inventory(A, B), driver_load=load) for load in (before, now))
    health, _ = after((0, first), (100, Xid(A, 48)), (200, later))
    assert (not health.reason(A)) is is_over


def test_a_fresh_load_of_the_driver_does_not_end_probe_faults() -> None:
    health, _ = after((200, inventory(A, B, driver="550.1")), start=with_xid(79))
    assert out(health) == {A: "XID79"}


def test_a_driver_that_was_only_out_of_reach_ends_nothing() -> None:
    health, _ = after((200, DriverMissing("UNKNOWN")), (210, inventory(A, B)), start=with_xid(48))
    assert out(health) == {A: "XID48"}


def test_the_operators_word_ends_every_fault_of_the_card() -> None:
    health, changes = recover(after(*probes(A, [101]), start=with_xid(48))[0], A)
    assert not health.reason(A)
    assert [change.kind for change in changes] == [ChangeKind.RECOVERED]


def test_the_operators_word_forgets_a_card_that_is_gone() -> None:
    health, _ = after((0, inventory(A, B)), (10, inventory(B)))
    health, changes = recover(health, A)
    assert (health.reason(A), out(health)) == ("Absent", {})
    assert [(change.kind, change.reason) for change in changes] == [
        (ChangeKind.NOTICE, "Forgotten")
    ]


@pytest.mark.parametrize(
    ("seen", "reason"), [(inventory(B), "Unplugged"), (inventory(B, unreadable=1), "Lost")]
)
def test_a_card_that_vanishes_is_out_until_it_was_back_for_thirty_seconds(
    seen: Inventory, reason: str
) -> None:
    health, changes = after((0, inventory(A, B)), (10, seen))
    assert out(health) == {A: reason}
    assert [(change.kind, change.reason) for change in changes] == [(ChangeKind.FAULT, reason)]
    health, _ = after((50, inventory(B, A)), *probes(A, [51]), start=health)
    assert out(health) == {A: reason}
    assert out(after(*probes(A, [81]), start=health)[0]) == {}


def test_renumbered_cards_keep_their_health() -> None:
    health, changes = after((200, inventory(B, A)), start=with_xid(48))
    assert (out(health), changes) == ({A: "XID48"}, [])


def test_a_card_plugged_in_later_is_news_and_healthy() -> None:
    health, changes = after((0, inventory(A)), (9, inventory(A, C)))
    assert not health.reason(C)
    assert [(change.kind, change.uuid, change.reason) for change in changes] == [
        (ChangeKind.NOTICE, C, "PluggedIn")
    ]


@pytest.mark.parametrize(
    ("away", "back", "reason"),
    [
        (Stalled(10), Answered(), "NVMLStalled"),
        (Stalled(10), inventory(A, B), "NVMLStalled"),
        (DriverMissing("gone"), inventory(A, B), "DriverMissing"),
    ],
)
def test_nvml_being_away_takes_out_all_cards_for_as_long_as_it_lasts(
    away: NvmlReport, back: NvmlReport, reason: str
) -> None:
    health, changes = after((0, inventory(A, B)), (9, away))
    assert out(health) == {A: reason, B: reason}
    assert [change.reason for change in changes] == [reason]
    health, changes = after((20, back), start=health)
    assert out(health) == {}
    assert [change.reason for change in changes] == [f"{reason}Over"]


@pytest.mark.parametrize("known", [Health("boot"), after((0, inventory(A, B)))[0]])
def test_an_outage_is_reported_of_the_node_once_and_its_end_too(known: Health) -> None:
    """A node that waits for its driver has no card to report it of; one that has 8 has 8 with one cause."""
    stalled, missing = Stalled(10), DriverMissing("no driver")
    _, told = after((1, stalled), (2, missing), (3, missing), (4, inventory(A, B)), start=known)
    assert [(change.kind, change.uuid, change.reason) for change in told] == [
        (ChangeKind.FAULT, None, "NVMLStalled"),
        (ChangeKind.NOTICE, None, "NVMLStalledOver"),
        (ChangeKind.FAULT, None, "DriverMissing"),
        (ChangeKind.NOTICE, None, "DriverMissingOver"),
    ]


def test_a_stall_does_not_hide_or_end_a_cards_own_fault() -> None:
    health, changes = after((200, Stalled(10)), (220, Answered()), start=with_xid(48))
    assert out(health) == {A: "XID48"}
    assert [change.uuid for change in changes] == [None, None]


def test_health_survives_a_restart_of_the_agent_but_probes_count_again() -> None:
    saved, _ = after(*probes(A, [100, 125]), start=with_xid(79))
    health, changes = after(
        (500, inventory(A, B)), *probes(A, [501]), start=restore_health(saved, "boot")
    )
    assert (out(health), changes) == ({A: "XID79"}, [])
    assert out(after(*probes(A, [531]), start=health)[0]) == {}


def test_a_reboot_ends_every_fault() -> None:
    health, _ = after((1, inventory(A, B)), start=restore_health(with_xid(48), "next boot"))
    assert (out(health), health.boot_id) == ({}, "next boot")


def in_mig_mode(shown: Inventory, *uuids: str) -> Inventory:
    """The same inventory with these cards in MIG mode."""
    cards = tuple(replace(card, is_mig=card.uuid in uuids) for card in shown.cards)
    return replace(shown, cards=cards)


def test_a_card_switched_to_mig_mode_is_out_for_as_long_as_it_stays_there() -> None:
    mig = in_mig_mode(inventory(A, B), A)
    health, changes = after((0, inventory(A, B)), (10, mig), *probes(A, range(11, 500, 5)))
    assert out(health) == {A: "MigEnabled"}
    assert [(change.kind, change.reason) for change in changes] == [
        (ChangeKind.FAULT, "MigEnabled")
    ]
    health, changes = after((500, inventory(A, B)), start=health)
    assert out(health) == {}
    assert [change.kind for change in changes] == [ChangeKind.RECOVERED]


def test_a_card_whose_memory_nvml_no_longer_tells_is_out_until_it_does() -> None:
    shown = inventory(A, B)
    blind = replace(shown, cards=(replace(shown.cards[0], memory_mib=MiB(0)), shown.cards[1]))
    health, _ = after((0, shown), (10, blind), *probes(A, range(11, 500, 5)))
    assert out(health) == {A: "MemoryUnknown"}
    assert out(after((500, shown), start=health)[0]) == {}


def test_neither_a_new_driver_nor_the_operator_ends_mig_mode() -> None:
    mig = in_mig_mode(inventory(A, B), A)
    health, _ = after((0, inventory(A, B)), (10, mig), (20, replace(mig, driver_version="550.1")))
    assert "MIG mode" in recovery_obstacle(health, A)
    health, changes = recover(health, A)
    assert (out(health), changes) == ({A: "MigEnabled"}, ())


def test_other_faults_of_a_card_outlast_its_time_in_mig_mode() -> None:
    mig = in_mig_mode(inventory(A, B), A)
    health, _ = after((200, mig), (300, inventory(A, B)), start=with_xid(48))
    assert out(health) == {A: "XID48"}


def test_before_nvml_has_answered_once_no_remembered_card_is_healthy() -> None:
    saved, _ = after((0, inventory(A, B)))
    health = restore_health(saved, "boot")
    assert out(health) == {A: "NVMLUnanswered", B: "NVMLUnanswered"}
    health, changes = after((9, inventory(A, B)), start=health)
    assert (out(health), changes) == ({}, [])  # an ordinary restart is no news


def test_a_stall_from_the_start_on_ends_with_the_first_inventory_and_not_before() -> None:
    saved, _ = after((0, inventory(A)))
    health, changes = after(
        (10, Stalled(10)), (20, Answered()), start=restore_health(saved, "boot")
    )
    assert out(health) == {A: "NVMLStalled"}
    assert [change.kind for change in changes] == [ChangeKind.FAULT]
    health, changes = after((20, inventory(A)), start=health)
    assert out(health) == {}
    assert [change.reason for change in changes] == ["NVMLStalledOver"]


def test_while_nvml_asks_for_an_action_the_operators_word_does_not_count() -> None:
    health, _ = after(*probes(A, [101], action=1), start=with_xid(48))
    assert "a reset of the card" in recovery_obstacle(health, A)
    assert recover(health, A) == (health, ())
    health, _ = after(*probes(A, [110], action=0), start=health)
    assert recovery_obstacle(health, A) == ""


def test_the_operators_word_counts_once_a_probe_has_said_what_nvml_asks_for() -> None:
    """Right after an XID the driver has not said yet whether it wants a reset."""
    early, _ = after(*probes(A, [99], action=0), (100, Xid(A, 48)), start=with_xid(48, at=90))
    assert "has not answered since" in recovery_obstacle(early, A)
    health, _ = after(*probes(A, [101], action=0), start=early)
    assert recovery_obstacle(health, A) == ""


def test_what_nvml_asked_for_stands_over_a_restart_of_the_agent() -> None:
    """The operator may be faster than the first probe."""
    asked, _ = after(*probes(A, [101], action=1), start=with_xid(48))
    health, _ = after((200, inventory(A, B)), start=restore_health(asked, "boot"))
    assert recovery_obstacle(health, A)
    assert out(recover(health, A).health) == {A: "XID48"}


def test_while_nvml_does_not_answer_the_operators_word_does_not_count() -> None:
    health, _ = after((200, Stalled(10)), start=with_xid(48))
    assert "NVMLStalled" in recovery_obstacle(health, A)
    assert "NVMLUnanswered" in recovery_obstacle(restore_health(with_xid(48), "boot"), A)
    assert recover(health, A) == (health, ())


def test_a_card_for_which_nvml_asks_an_action_is_out_even_if_its_xid_was_missed() -> None:
    health, changes = after((0, inventory(A, B)), *probes(A, [5], action=1))
    assert out(health) == {A: "RecoveryAsked"}
    assert "a reset of the card" in changes[0].text
    health, _ = after(*probes(A, range(10, 500, 5), action=1), start=health)
    assert out(health) == {A: "RecoveryAsked"}
    assert out(after(*probes(A, [500], action=0), start=health)[0]) == {}


REPORTS = st.one_of(
    st.builds(
        lambda uuids, driver, mig: in_mig_mode(inventory(*uuids, driver=driver), *mig),
        st.lists(st.sampled_from([A, B, C]), unique=True),
        st.sampled_from(["535.1", "550.1"]),
        st.lists(st.sampled_from([A, B, C]), max_size=1),
    ),
    st.builds(
        Probe,
        st.sampled_from([A, B, C]),
        st.sampled_from([None, None, None, "GPU_IS_LOST", "UNKNOWN"]),
        st.sampled_from([None, 0, 1]),
    ),
    st.builds(Xid, st.sampled_from([A, B, C, None]), st.sampled_from([13, 63, 79, 48, 5])),
    st.builds(Stalled, st.just(10.0)),
    st.builds(Answered),
    st.builds(DriverMissing, st.just("gone"), st.booleans()),
    st.builds(DriverChanged, st.just("1"), st.just("2")),
)
HISTORIES = st.lists(st.tuples(st.floats(0, 60), REPORTS), max_size=30)


def timed(history: list[tuple[float, NvmlReport]]) -> list[tuple[float, NvmlReport]]:
    """A history with waits between reports, as one with seconds."""
    now_seconds, steps = 0.0, []
    for wait_seconds, report in history:
        now_seconds += wait_seconds
        steps.append((now_seconds, report))
    return steps


@given(HISTORIES)
def test_who_follows_the_changes_knows_the_health_of_every_card(
    history: list[tuple[float, NvmlReport]],
) -> None:
    health, changes = after((0, inventory(A, B)), *timed(history))
    followed: dict[str | None, bool] = {None: True, A: True, B: True}
    for change in changes:
        if change.kind is ChangeKind.FAULT:
            followed[change.uuid] = False
        elif change.reason.endswith(("Recovered", "PluggedIn", "Over")):
            followed[change.uuid] = True
    answers = followed.pop(None)
    known = {card.uuid: not health.reason(card.uuid) for card in health.cards}
    assert {uuid: answers and is_well for uuid, is_well in followed.items()} == known


@given(HISTORIES, st.sampled_from([79, 48, 5]))
def test_whatever_went_before_an_xid_leaves_the_other_cards_as_they_were(
    history: list[tuple[float, NvmlReport]], code: int
) -> None:
    before, _ = after((0, inventory(A, B)), *timed(history))
    later, _ = after((10_000, Xid(A, code)), start=before)
    others = [card.uuid for card in before.cards if card.uuid != A]
    assert [later.card(uuid) for uuid in others] == [before.card(uuid) for uuid in others]
    assert later.reason(A)


@given(HISTORIES)
def test_whatever_went_before_cards_that_are_well_come_back(
    history: list[tuple[float, NvmlReport]],
) -> None:
    health, _ = after((0, inventory(A, B)), *timed(history))
    shown = inventory(A, B, C, driver="560.1")
    quiet = [step for uuid in (A, B, C) for step in probes(uuid, [9_000, 9_030], action=0)]
    assert (
        out(after((9_000, shown), *sorted(quiet, key=lambda step: step[0]), start=health)[0]) == {}
    )


@given(HISTORIES, st.integers(1, 8))
def test_whatever_went_before_a_card_for_which_nvml_asks_an_action_is_out(
    history: list[tuple[float, NvmlReport]], action: int
) -> None:
    health, _ = after((0, inventory(A, B)), *timed(history), (9_000, inventory(A, B)))
    health, _ = after(*probes(A, [9_000, 9_500], action=action), start=health)
    assert health.reason(A)
    assert recover(health, A) == (health, ())


@given(HISTORIES)
def test_whatever_went_before_a_card_in_mig_mode_is_out(
    history: list[tuple[float, NvmlReport]],
) -> None:
    mig = in_mig_mode(inventory(A, B, driver="560.1"), A)
    health, _ = after((0, inventory(A, B)), *timed(history), (9_000, mig))
    health, _ = after(*probes(A, [9_000, 9_500], action=0), start=health)
    assert health.reason(A)


@given(HISTORIES, st.sampled_from(["boot", "next boot"]))
def test_whatever_was_saved_no_card_is_healthy_before_an_inventory(
    history: list[tuple[float, NvmlReport]], boot_id: str
) -> None:
    saved, _ = after((0, inventory(A, B)), *timed(history))
    health = restore_health(saved, boot_id)
    for report in (Answered(), Probe(A), Stalled(10), Answered(), Probe(A)):
        health, _ = observe(health, report, 10_000, RULES)
        assert all(health.reason(uuid) for uuid in (A, B, C))


SILENT = Probe(A, NO_ANSWER)


def test_a_card_that_does_not_answer_is_out_until_it_has_answered_in_time_for_long() -> None:
    """Each late answer counts as another silence, so clean probes are counted from the last."""
    first, again = probes(A, [10, 20]), probes(A, range(35, 65, 5))
    health, changes = after((0, inventory(A, B)), (5, SILENT), *first, (30, SILENT), *again)
    assert out(health) == {A: "ProbeHangs"}
    assert [(change.kind, change.reason) for change in changes] == [
        (ChangeKind.FAULT, "ProbeHangs")
    ]
    assert "dmesg" in changes[0].cure
    assert out(after((65, Probe(A)), start=health)[0]) == {}


def test_a_card_that_did_not_answer_may_be_taken_back_by_hand() -> None:
    """No probe has told what NVML asks for, and perhaps none ever will; a next silence is a new fault."""
    health, _ = after((0, inventory(A, B)), (5, SILENT))
    assert recovery_obstacle(health, A) == ""
    taken, _ = recover(health, A)
    assert out(taken) == {}
    assert out(after((10, SILENT), start=taken)[0]) == {A: "ProbeHangs"}


@pytest.mark.parametrize("name", [A, ""])
def test_a_card_that_is_silent_while_nvml_is_opened_is_named_and_kept(name: str) -> None:
    """It cannot be taken back by hand before it is shown; shown late, it is out for as long."""
    shown = inventory(A, B)
    hidden = replace(inventory(B), unreadable=(UnreadableCard(CardIndex(0), NO_ANSWER, name),))
    health, _ = after((0, shown), (5, hidden))
    assert out(health) == {A: "ProbeHangs"}
    assert "has not answered" in recovery_obstacle(health, A)
    late = replace(shown, cards=(replace(shown.cards[0], is_silent=True), shown.cards[1]))
    health, _ = after((45, late), *probes(A, range(50, 75, 5)), start=health)
    assert out(health) == {A: "ProbeHangs"}
    assert out(after((80, Probe(A)), start=health)[0]) == {}


def test_a_card_that_is_first_seen_late_is_out_for_as_long() -> None:
    shown = inventory(A, B)
    late = replace(shown, cards=(replace(shown.cards[0], is_silent=True), shown.cards[1]))
    assert out(after((0, inventory(B)), (45, late))[0]) == {A: "ProbeHangs"}


def test_an_xid_of_a_card_that_has_never_answered_stays_when_it_answers() -> None:
    hidden = replace(inventory(B), unreadable=(UnreadableCard(CardIndex(0), NO_ANSWER, A),))
    health, _ = after((0, hidden), (1, Xid(A, 48)), (100, inventory(A, B)))
    assert out(after(*probes(A, range(105, 205, 5)), start=health)[0]) == {A: "XID48"}


def test_a_card_that_is_silent_hides_no_card_that_is_gone() -> None:
    hidden = replace(inventory(), unreadable=(UnreadableCard(CardIndex(0), NO_ANSWER, A),))
    assert out(after((0, inventory(A, B)), (5, hidden))[0]) == {A: "ProbeHangs", B: "Unplugged"}


CUT = Hardware(
    is_mig=True,
    instances=tuple(Instance(f"MIG-{n}", n, n, 0, "1g.5gb", MiB(4864), 1, 1, 14) for n in range(3)),
)
MIG_RULES = replace(RULES, takes_mig={A})


def cut(hardware: Hardware = CUT) -> Inventory:
    """One card in MIG mode, and one that is not."""
    shown = inventory(A, B)
    return replace(
        shown, cards=(replace(shown.cards[0], is_mig=True, hardware=hardware), shown.cards[1])
    )


def of_mig(*steps: tuple[float, NvmlReport], start: Health | None = None) -> Health:
    """Health after reports, where the card's instances are offered."""
    health = start or Health("boot")
    for now_seconds, report in steps:
        health, _ = observe(health, report, now_seconds, MIG_RULES)
    return health


@pytest.mark.parametrize(
    ("named", "sick"),
    [(("MIG-1",), {"MIG-1"}), (("MIG-0", "MIG-2"), {"MIG-0", "MIG-2"}), ((), set())],
)
def test_an_xid_takes_out_the_mig_instances_that_it_names(
    named: tuple[str, ...], sick: set[str]
) -> None:
    """All of the card, if it names none; the instances come back by the same rules."""
    health = of_mig((0, cut()), (1, Xid(A, 79, named)))
    assert health.instances_out.keys() == sick
    assert out(health) == ({} if named else {A: "XID79"})
    health = of_mig(*probes(A, range(5, 40, 5)), start=health)
    assert (health.instances_out, out(health)) == ({}, {})


def test_a_reset_that_nvml_asks_for_takes_out_the_whole_card() -> None:
    """Also after an XID of one instance: a reset ends what runs in all of them."""
    health = of_mig((0, cut()), (1, Xid(A, 48, ("MIG-1",))), *probes(A, [5], action=1))
    assert out(health) == {A: "RecoveryAsked"}


def test_the_fault_of_an_instance_ends_with_the_instance() -> None:
    """Cut anew, the card has others."""
    again = replace(CUT, instances=(replace(CUT.instances[0], uuid="MIG-new"),))
    assert of_mig((0, cut()), (1, Xid(A, 48, ("MIG-1",))), (9, cut(again))).instances_out == {}
