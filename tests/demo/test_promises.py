"""The promise: what is expected and what is seen are compared, and shown, in the same words."""

from tools.demo.demo_output import show_value, wait_for


def test_values_are_shown_without_brackets() -> None:
    """A person reads them; entries of entries are told apart."""
    assert show_value((60, 400, 4)) == "60, 400, 4"
    assert show_value({1: 8, 0: 6}) == "0: 6, 1: 8"
    assert show_value({"b": (1, 2), "a": {}}) == "a: nothing; b: 1, 2"
    assert show_value([]) == "nothing"


async def test_a_wait_ends_as_soon_as_the_thing_is_seen() -> None:
    """It looks again and again."""
    looks = iter([1, 2, 3, 4])

    async def look() -> int:
        return next(looks)

    assert await wait_for(look, 3, seconds=10) == 3
    assert next(looks) == 4


async def test_a_wait_that_is_over_tells_what_was_seen_last() -> None:
    """That is what the promise is held against."""

    async def look() -> str:
        return "45"

    assert await wait_for(look, "60", seconds=0.1) == "45"
