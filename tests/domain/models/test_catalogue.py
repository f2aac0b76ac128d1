"""The promise: a node's series follows from what NVML calls its cards, or it has none."""

import pytest

from gpu_device_plugin.domain.models.model_catalogue import Catalogue, Series
from gpu_device_plugin.errors import ConfigError

T4, A10 = Series("T4", ("Tesla T4", "NVIDIA T4")), Series("A10", ("NVIDIA A10",))
CATALOGUE = Catalogue({"T4": T4, "A10": A10})


@pytest.mark.parametrize(
    ("models", "series"),
    [
        (["Tesla T4"], "T4"),
        (["Tesla-T4", "NVIDIA-T4"], "T4"),
        (["Tesla T4", "NVIDIA A10"], ""),
        (["Tesla T4", "NVIDIA H200"], ""),
        (["NVIDIA H200"], ""),
        ([], ""),
    ],
)
def test_a_node_has_a_series_if_all_its_cards_are_of_it(models: list[str], series: str) -> None:
    """R-004. A node of two series can promise neither."""
    assert CATALOGUE.series_of(models) == series


@pytest.mark.parametrize(
    ("series", "text"),
    [
        ([Series("a b")], "'a b' cannot be the value of a label"),
        ([Series("T4", drivers=("5 3",))], "series 'T4': '5 3' cannot be the value of a label"),
        (
            [Series("T4", drivers=("1", "2"), default="3")],
            r"series T4: the default 3 is none of its drivers \(1, 2\)",
        ),
        (
            [Series("A", ("Tesla T4",)), Series("B", ("Tesla-T4",))],
            "the card Tesla-T4 is of series A and of B",
        ),
    ],
)
def test_a_wrong_catalogue_is_named(series: list[Series], text: str) -> None:
    """Before any pod is judged by it."""
    with pytest.raises(ConfigError, match=text):
        Catalogue({each.name: each for each in series})
