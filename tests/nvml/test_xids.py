"""The packaged table is that of docs/operations/events.md; an operator's rows replace its rows."""

from pathlib import Path

import pytest

from gpu_device_plugin.domain.cards.health_values import Recovery, XidAction, XidChoice, XidRule
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.nvml.xids import health_rules
from gpu_device_plugin.settings.agent_settings import load_settings, xid_choice

FAULT, PROBE, RESET = XidAction.FAULT, Recovery.PROBE, Recovery.RESET


@pytest.mark.parametrize(
    ("codes", "action", "recovery"),
    [
        ([13, 31, 43, 45, 68, 109], XidAction.IGNORE, None),
        ([63, 92], XidAction.REPORT, None),
        ([64, 79, 94], FAULT, PROBE),
        ([48, 74, 95, 119, 120], FAULT, RESET),
        ([1, 62, 154, 99999], FAULT, RESET),
    ],
)
def test_the_packaged_table_is_the_issues(
    codes: list[int], action: XidAction, recovery: Recovery | None
) -> None:
    rules = [health_rules(30).rule(code) for code in codes]
    assert {rule.action for rule in rules} == {action}
    assert recovery is None or {rule.recovery for rule in rules} == {recovery}


def test_an_operators_rows_stand_over_ours_and_leave_the_rest(tmp_path: Path) -> None:
    mine = tmp_path / "xids.yaml"
    mine.write_text(
        "default: {name: other, action: report}\n"
        "xids:\n  - {code: 94, name: mine, action: fault, recovery: reset}\n",
        encoding="utf-8",
    )
    rules = health_rules(30, mine)
    assert rules.rule(94) == XidRule(94, "mine", FAULT, RESET)
    assert rules.rule(48) == health_rules(30).rule(48)
    assert rules.rule(4711).action is XidAction.REPORT


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "xids.yaml"
    mine.touch()
    assert health_rules(30, mine) == health_rules(30)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("xids: [{code: 1, name: x, action: panic}]", "xids[0].action"),
        ("xids: [{code: one, name: x, action: fault}]", "xids[0].code"),
        ("xids: [{code: 1, name: x, action: fault, cure: none}]", "cure"),
        ("xid: []", "xid"),
        ("[]", "array"),
        ("{", "expected"),
        ("xids: [{code: 1, name: x, action: fault}, {code: 1, name: y, action: ignore}]", "code 1"),
    ],
)
def test_a_wrong_file_is_refused_by_the_key(tmp_path: Path, text: str, named: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refusal:
        health_rules(30, mine)
    assert "mine.yaml" in str(refusal.value)
    assert named in str(refusal.value)


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        health_rules(30, tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("disabled", "enabled", "faults"),
    [
        ("", "", {48, 79, 999}),
        ("79", "", {48, 999}),
        ("all", "", set()),
        ("xids", "", set()),
        ("XIDs", "", set()),
        ("79, ALL", "", set()),
        ("some,79,-1,4x", "0x0d", {48, 999}),
        ("all", "79,13", {13, 79}),
        ("79", "79", {48, 79, 999}),
        ("all", "all", {13, 48, 63, 79, 999}),
        ("", "13", {13, 48, 79, 999}),
    ],
)
def test_health_checks_are_disabled_and_enabled_by_xid(
    disabled: str, enabled: str, faults: set[int]
) -> None:
    """R-709: what is enabled goes before what is disabled, also before `all`."""
    rules = health_rules(30, None, xid_choice(disabled), xid_choice(enabled))
    codes = (13, 48, 63, 79, 999)

    assert {code for code in codes if rules.rule(code).action is XidAction.FAULT} == faults


def test_what_is_no_xid_is_skipped_and_told() -> None:
    """As by NVIDIA's plugin; the agent logs it (R-709)."""
    settings = load_settings({"node_name": "n"}, {"DP_DISABLE_HEALTHCHECKS": "79,x,4 8"}, None)

    assert settings.disable_healthchecks == XidChoice(frozenset({79}), malformed=("x", "4 8"))
