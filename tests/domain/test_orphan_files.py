"""Files that no grant names are removed late, and never while anybody might still name them."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.domain.grants.lifetime import (
    ABSENT_SECONDS,
    KUBELET_SETTLE_SECONDS,
    orphan_files,
)

UP_SINCE = -KUBELET_SETTLE_SECONDS


def passes(
    *seen: tuple[float, Collection[str] | None], since: float | None = UP_SINCE
) -> list[frozenset[str]]:
    """What each pass removes of the slices a and b: its time, and which slices are named."""
    unnamed: Mapping[str, float] = {}
    removed = []
    for now, named in seen:
        over, unnamed = orphan_files({"a", "b"}, named, unnamed, now, since)
        removed.append(over)
    return removed


def test_a_slice_goes_when_nobody_named_it_twice_thirty_seconds_apart() -> None:
    assert passes((0, "a"), (29.9, "a"), (30, "a")) == [frozenset(), frozenset(), {"b"}]


def test_a_slice_that_is_named_in_between_starts_anew() -> None:
    assert passes((0, "a"), (20, "ab"), (40, "a"), (65, "a")) == [frozenset()] * 4


def test_without_a_checkpoint_nothing_goes_and_the_wait_starts_anew() -> None:
    assert passes((0, "a"), (30, None), (60, "a"), (89, "a")) == [frozenset()] * 4


@pytest.mark.parametrize("since", [None, 0.0])
def test_nothing_goes_before_the_kubelet_has_settled(since: float | None) -> None:
    assert passes((1, ""), (31, ""), (59, ""), since=since) == [frozenset()] * 3


NAMED = st.none() | st.frozensets(st.sampled_from("ab"))


@given(st.lists(st.tuples(st.floats(0, 40), NAMED), max_size=12))
def test_over_any_history_what_goes_was_named_by_nobody_for_thirty_seconds(
    history: list[tuple[float, Collection[str] | None]],
) -> None:
    now, seen = 0.0, []
    for pause, named in history:
        now += pause
        seen.append((now, named))
    for number, removed in enumerate(passes(*seen)):
        end = seen[number][0]
        for slice_id in removed:
            recent = [named for at, named in seen[: number + 1] if at >= end - ABSENT_SECONDS]
            assert all(named is not None and slice_id not in named for named in recent)
