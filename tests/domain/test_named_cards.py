"""How people name cards of a node."""

import pytest

from gpu_device_plugin.domain.cards.named_cards import list_entries, named_cards

_CARDS = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 12, "GPU-gone": -1}


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("0", "a"),
        ("12", "c"),
        ("0-1", "ab"),
        ("1-99", "bc"),
        ("GPU-B", "b"),
        ("gpu-gone", ["gone"]),
        ("ALL", ["a", "b", "c", "gone"]),
        ("1-0", ""),
        ("-1", ""),
        ("٣", ""),
        ("99999", ""),
        ("MIG-a", ""),
        ("GPU-", ""),
    ],
)
def test_an_entry_is_an_index_a_range_a_uuid_or_all(entry: str, named: str | list[str]) -> None:
    """A card that is not shown has no index."""
    assert named_cards(entry, _CARDS) == {f"GPU-{each}" for each in named}


def test_a_list_is_separated_by_commas_or_space_and_bounded() -> None:
    """As a file of one entry a line is too."""
    assert list_entries("0,\n1 2,,") == ("0", "1", "2")
    assert len(list_entries("0," * 100_000)) < 5000
