"""The promise: a card that is enumerated late, in a thread of its own, disturbs nobody who walks the others."""

from types import SimpleNamespace
from typing import Any

from gpu_device_plugin.nvml.driver import Driver
from gpu_device_plugin.nvml.driver_queries import both_ways


class _Busy(str):
    """A UUID whose comparison takes so long that another card is written meanwhile."""

    __slots__ = ("meanwhile",)
    meanwhile: Any

    def __eq__(self, other: object) -> bool:
        self.meanwhile()
        return str(self) == other

    __hash__ = str.__hash__

    def __ne__(self, other: object) -> bool:
        return not self == other


def busy(book: dict[Any, Any]) -> _Busy:
    """One that writes to this book."""
    uuid = _Busy("GPU-a")
    uuid.meanwhile = lambda: book.setdefault(len(book), {"uuid": "late"})
    return uuid


def test_an_xid_is_told_while_a_card_is_written() -> None:
    """Nobody locks the books, because a call on one card may take forever."""
    driver: Any = object.__new__(Driver)
    driver.cards, driver._instance_at = {}, {}
    driver.cards[0] = {"uuid": busy(driver.cards), "hardware": {"instances": []}}
    event = SimpleNamespace(gpuInstanceId=0, computeInstanceId=0)
    assert driver._named_instances(event, "GPU-a", 1) == []
    assert len(driver.cards) > 1


def test_links_are_asked_for_while_a_card_is_written() -> None:
    """Those to the cards that were there before."""
    driver: Any = object.__new__(Driver)
    driver._handles = {}
    driver._handles[busy(driver._handles)] = None
    assert driver._read_links("GPU-a", None) == {}
    assert len(driver._handles) > 1


def test_links_to_a_card_whose_own_are_not_known_yet_are_told() -> None:
    """Its handle is known before them."""
    assert both_ways({"a": {"b": [1]}}) == {"a": {"b": [1]}, "b": {"a": [1]}}
