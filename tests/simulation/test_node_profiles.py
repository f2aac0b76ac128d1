"""Profiles are data, and what cannot be simulated is refused with a reason."""

import pytest

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.node_profiles import (
    driver_lines,
    load_models,
    load_profile,
    node_lines,
    profile_names,
)


def test_every_profile_and_model_can_be_read() -> None:
    """An unknown key, a missing model or an impossible cut would raise here."""
    for name in profile_names():
        assert node_lines(name, seed="n1")

    assert {group.model for name in profile_names() for group in load_profile(name).cards} == set(
        load_models()
    )


def test_equal_seeds_give_equal_cards_and_others_other_ones() -> None:
    """Two nodes of a cluster must not share a UUID; a node made again keeps its own."""
    first = node_lines("v100", seed="n1")

    assert first == node_lines("v100", seed="n1")
    uuids = {
        line for seed in ("n1", "n2") for line in node_lines("v100", seed=seed) if "uuid" in line
    }
    assert len(uuids) == 8


@pytest.mark.parametrize(
    ("driver", "nvml", "cuda"),
    [
        pytest.param("450.102.04", "11.450.102.04", "11000", id="the vendor's"),
        pytest.param("535.309.01", "12.535.309.01", "12020", id="nvidia-smi's"),
        pytest.param("537.13", "12.537.13", "12020", id="a branch between two known ones"),
        pytest.param("999.1", "13.999.1", "13040", id="newer than all known ones"),
    ],
)
def test_the_driver_decides_nvml_and_cuda(driver: str, nvml: str, cuda: str) -> None:
    """They come together, as they are installed together."""
    assert driver_lines(driver) == [
        f"driver_version={driver}",
        f"nvml_version={nvml}",
        f"cuda_version={cuda}",
    ]


@pytest.mark.parametrize(
    ("profile", "choices", "reason"),
    [
        pytest.param("k80", {}, "'k80' is unknown; there are a10, a100", id="profile"),
        pytest.param("v100", {"cards": 17}, "17 cards asked for", id="cards"),
        pytest.param("v100", {"driver_version": "new"}, "'new' is not of the form", id="driver"),
        pytest.param("v100", {"driver_version": "340.1"}, "older than 418", id="old driver"),
    ],
)
def test_what_cannot_be_is_refused(profile: str, choices: dict[str, object], reason: str) -> None:
    """With what was asked and what there is."""
    with pytest.raises(ConfigError, match=reason):
        node_lines(profile, seed="n1", **choices)  # type: ignore[arg-type]


def test_more_cards_than_the_profile_has_repeat_its_models() -> None:
    """A mixed node stays mixed."""
    lines = node_lines("mixed", seed="n1", cards=4)

    names = [line.split("=")[1] for line in lines if line.split("=")[0].endswith(".name")]
    assert names == ["Tesla T4", "Tesla V100-SXM2-16GB"] * 2
