"""The promise: histories that explore less than is stated fail, and one line says what they explored."""

import pytest
from tests.histories import explored
from tests.histories.explored import Explored


def test_a_thousand_histories_have_to_explore_what_is_stated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of half as many, half, and never none; fewer than two hundred are not judged, because chance decides."""
    monkeypatch.setattr(explored, "AT_LEAST", {"steps: swap": 10})
    seen = Explored({"steps: swap": 5})

    assert list(seen.too_little(500)) == []
    assert list(seen.too_little(1000)) == ["steps: swap: 5 of at least 10"]
    assert list(seen.too_little(501)) == ["steps: swap: 5 of at least 6"]
    assert list(Explored().too_little(199)) == []
    monkeypatch.setattr(explored, "AT_LEAST", {"steps: swap": 2})
    assert list(Explored().too_little(999)) == []
    assert list(Explored().too_little(1000)) == ["steps: swap: 0 of at least 2"]


def test_what_was_explored_is_told_by_group() -> None:
    """A name's group stands before its colon."""
    seen = Explored({"steps: swap": 2, "steps: create": 3, "quiet moments": 1})

    assert list(seen.story()) == ["in all: quiet moments 1", "steps: create 3, swap 2"]
