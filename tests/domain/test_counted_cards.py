"""Which cards a node counts that NVML does not offer."""

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber, Hardware
from gpu_device_plugin.domain.cards.counted_cards import CountedCards
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport, Inventory, UnreadableCard


def _card(uuid: str, index: int, *, is_mig: bool = False) -> Card:
    place = CardNumber(index), CardIndex(index), index
    return Card(uuid, *place, "V100", MiB(16160), Hardware(is_mig=is_mig))


def _report(uuid: str, index: int) -> CardReport:
    memory = MiB(16160)
    return CardReport(uuid, CardIndex(index), index, "V100", memory, is_mig=True)


_CARDS = _card("GPU-a", 0), _card("GPU-b", 1), _card("GPU-c", 2)


def _counted(*unreadable: UnreadableCard, cards: tuple[CardReport, ...] = ()) -> CountedCards:
    return CountedCards(Inventory("535", "12.2", "", cards, unreadable), _CARDS)


def test_at_the_start_a_card_of_the_last_run_counts_that_nvml_shows_and_cannot_open() -> None:
    slots = UnreadableCard(CardIndex(5), "lost", "GPU-b"), UnreadableCard(CardIndex(2), "lost")
    numbers = {card.uuid: card.number for card in _CARDS}
    assert [card.uuid for card in _counted(*slots).at_start(numbers)] == ["GPU-b", "GPU-c"]


def test_at_the_start_a_card_whose_number_pods_hold_of_another_does_not_count() -> None:
    slot = UnreadableCard(CardIndex(1), "lost", "GPU-b")
    assert _counted(slot).at_start({"GPU-b": CardNumber(7)}) == []


def test_a_card_that_is_gone_stays_without_an_index() -> None:
    kept = _counted(UnreadableCard(CardIndex(4), "lost", "GPU-c")).kept(_CARDS, {"GPU-a"})
    assert [(card.uuid, card.index) for card in kept] == [("GPU-b", -1), ("GPU-c", 4)]


def test_a_card_in_mig_mode_whose_instances_are_offered_no_more_does_not_stay() -> None:
    cut = _card("GPU-d", 3, is_mig=True)
    assert _counted(cards=(_report("GPU-d", 3),)).kept([cut], ()) == []
    assert [card.index for card in _counted().kept([cut], ())] == [-1]
