"""Health comes back from the state file as it was, and a damaged file is named, not believed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.faults import CardHealth, Fault, Health, Outage, Recovery
from gpu_device_plugin.domain.saved import health_from_plain, health_to_plain
from gpu_device_plugin.errors import StateError

SECONDS = st.floats(min_value=0, max_value=1e9)
FAULTS = st.builds(
    lambda reason, text, recovery, seconds, is_asked: Fault(
        reason, text, recovery, seconds, seconds, is_asked
    ),
    *(
        st.text(),
        st.text(),
        st.sampled_from([Recovery.PROBE, Recovery.RESET]),
        SECONDS,
        st.booleans(),
    ),
)
CARDS = st.builds(
    CardHealth, st.text(), st.lists(FAULTS, max_size=3).map(tuple), st.none(), st.booleans()
)
HEALTHS = st.builds(
    Health,
    st.text(),
    st.text(),
    st.none() | st.builds(Outage, st.text(), st.text()),
    st.lists(CARDS, max_size=4, unique_by=lambda card: card.uuid).map(
        lambda cards: tuple(sorted(cards, key=lambda card: card.uuid))
    ),
)


@given(HEALTHS)
def test_health_survives_the_way_through_json(health: Health) -> None:
    assert health_from_plain(json.loads(json.dumps(health_to_plain(health)))) == health


def test_a_fault_that_every_inventory_tells_anew_is_not_saved() -> None:
    """So that a release which does not know it reads the file, too."""
    mig = Fault("MigEnabled", "in MIG mode", Recovery.INVENTORY, 1, 1)
    found = health_from_plain(health_to_plain(Health("b", cards=(CardHealth("GPU-a", (mig,)),))))
    assert found.cards == (CardHealth("GPU-a"),)


@given(FAULTS, SECONDS)
def test_a_fault_that_is_seen_again_is_no_news_for_the_disk(fault: Fault, later: float) -> None:
    again = replace(fault, last_seconds=later)
    first, second = (Health("b", cards=(CardHealth("GPU-a", (f,)),)) for f in (fault, again))
    assert health_to_plain(first) == health_to_plain(second)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "health.version"),
        ({"boot_id": 7}, "health.boot_id"),
        ({"cards": None}, "health.cards"),
        ({"outage": []}, "health.outage"),
        ({"cards": [{"uuid": "GPU-a", "is_shown": 1, "faults": []}]}, "health.cards[0].is_shown"),
        (
            {"cards": [{"uuid": "a", "is_shown": True, "faults": [{"recovery": "pray"}]}]},
            "health.cards[0].faults[0].recovery",
        ),
        (
            {
                "cards": [
                    {
                        "uuid": "a",
                        "is_shown": True,
                        "faults": [
                            {"reason": "", "text": "", "recovery": "probe", "since_seconds": True}
                        ],
                    }
                ]
            },
            "health.cards[0].faults[0].since_seconds",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_the_name_of_its_key(
    change: dict[str, object], named: str
) -> None:
    with pytest.raises(StateError) as refusal:
        health_from_plain(health_to_plain(Health("boot")) | change)
    assert named in str(refusal.value)


def test_something_that_is_no_table_is_refused() -> None:
    with pytest.raises(StateError, match="not a table"):
        health_from_plain([1])
