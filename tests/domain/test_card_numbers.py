"""The promise: a card keeps its number, and no other card gets it while anybody holds units by it."""

from gpu_device_plugin.domain.cards.card import MAX_CARDS, CardNumber
from gpu_device_plugin.domain.grants.card_numbers import assign_numbers

FULL = {f"GPU-{number:02d}": CardNumber(number) for number in range(MAX_CARDS)}


def test_a_new_card_takes_a_number_that_nothing_names() -> None:
    """Not even units of a card whose UUID is not known any more."""
    known, held = {"GPU-a": CardNumber(0)}, {CardNumber(1)}
    assert assign_numbers(known, ["GPU-a", "GPU-b"], held) == {"GPU-a": 0, "GPU-b": 2}


def test_with_all_numbers_taken_a_new_card_gets_that_of_a_free_one_which_is_gone() -> None:
    """Never that of a card that is there, wherever it stands in the list, nor of one that is held."""
    shown = ["GPU-new", *(f"GPU-{number:02d}" for number in range(MAX_CARDS - 2))]

    found = assign_numbers(FULL, shown, {CardNumber(MAX_CARDS - 2)})

    assert found["GPU-new"] == MAX_CARDS - 1
    assert FULL.items() - found.items() == {(f"GPU-{MAX_CARDS - 1}", MAX_CARDS - 1)}


def test_where_every_number_may_be_in_use_a_new_card_is_left_out() -> None:
    """All are held, or the kubelet's checkpoint cannot be read."""
    assert assign_numbers(FULL, ["GPU-new"], FULL.values()) == FULL
    assert assign_numbers(FULL, ["GPU-new"], None) == FULL
