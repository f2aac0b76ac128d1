"""`kubectl gpu explain WORD` says what a word means and what to do, by the tables of the docs, without a cluster."""

import pytest
from click.testing import CliRunner
from tests.reasons import raised_reasons

from gpu_device_plugin.cli.overview import gpu, main
from gpu_device_plugin.overview.explanation import explain


def said(word: str) -> str:
    """What the command prints."""
    found = CliRunner().invoke(gpu, ["explain", word])
    assert found.exit_code == 0, found.output
    return found.output


def test_every_reason_that_is_raised_has_a_meaning() -> None:
    """Whoever has one word and no docs learns what it means."""
    assert {word for word in raised_reasons() if not explain(word)} == {"Over", "XID"}
    assert explain("StateNotWritableOver") == explain("StateNotWritable")


def test_no_cure_sends_the_reader_to_a_file_that_they_may_lack() -> None:
    """They have the command; of the docs at most what a browser shows."""
    found = [each for word in raised_reasons() for each in explain(word)]
    assert len(found) > 100
    assert [each.word for each in found if ".md" in each.cure] == []


def test_a_word_is_told_with_every_place_where_it_is_met_whatever_its_case() -> None:
    """A reason may be of a refusal and of a node's Event, with a cure each."""
    text = said("statenotwritable")
    assert text.startswith("StateNotWritable: a refusal of a pod\n  means   ")
    assert "StateNotWritable: an Event on a node\n  means   stops the node: " in text
    assert text.count("  ->      free space") == 2


def test_an_xid_is_told_with_what_operators_do_about_it() -> None:
    """79: reboot, then replace; nothing to do about one that is ignored; others are in no table."""
    assert "card fell off the bus" in said("XID79")
    assert "  ->      reboot the node; if it comes again, check power and riser" in said("xid 79")
    assert "->" not in said("XID13")
    assert "an XID that is not in the table" in said("XID 777")


def test_an_alert_is_told_with_its_runbook() -> None:
    """Whatever its case: the anchor of the page has it in small letters."""
    text = said("gpucardhangs")
    assert text.startswith(
        "GpuCardHangs: an alert, warning\n  means   NVML's calls on one card take 5 s or longer"
    )
    assert "drain and reset it" in text.lower()
    assert said("GpuControllerWithoutLeader").startswith(
        "GpuControllerWithoutLeader: an alert, critical\n"
    )


def test_a_word_that_is_not_known_is_told_with_those_like_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A typing error leads on."""
    for word, hint in (
        ("NoRom", "; like it are: NoRoom"),
        ("qqqqqqq", "is no word of this plugin\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["explain", word])
        assert ended.value.code
        assert hint in capsys.readouterr().err
