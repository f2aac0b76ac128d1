"""Quantities count as the kubelet counts them."""

import pytest

from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.quantity import whole_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2", 2),
        ("+2", 2),
        ("100", 100),
        ("2k", 2_000),
        ("2Ki", 2_048),
        ("1.5Ki", 1_536),
        ("3M", 3_000_000),
        ("1Gi", 2**30),
        ("2e3", 2_000),
        ("2E3", 2_000),
        ("1E", 10**18),
        ("2000m", 2),
        ("2e-3", 1),
        (".5k", 500),
        ("2.", 2),
        ("1500m", 2),
        ("16148316Ki", 16_148_316 * 1024),
    ],
)
def test_a_quantity_is_a_whole_number_rounded_up(text: str, expected: int) -> None:
    """The table of notations that the API server keeps as they were written."""
    assert whole_number(text) == expected


@pytest.mark.parametrize(
    "text", ["", "two", "2 ", "2K", "2KI", "1e", "0x2", "2kk", "NaN", "1e9999"]
)
def test_anything_else_is_refused_with_its_text(text: str) -> None:
    """A notation that Kubernetes does not know never becomes a number."""
    with pytest.raises(ClusterError, match="is not a Kubernetes quantity"):
        whole_number(text)


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000, "9223372036854775808", "8Ei"])
def test_what_no_64_bits_can_hold_is_refused_in_few_words(text: str) -> None:
    """Nobody could print the number either."""
    with pytest.raises(ClusterError, match="larger than a Kubernetes quantity") as raised:
        whole_number(text)
    assert len(str(raised.value)) < 120
