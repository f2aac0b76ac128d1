"""The promise: MIG profiles are those of each model, and no other can be asked for."""

import pytest

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.nvidia.mig_devices import MODELS, model_of, profile_of, resource_of
from gpu_device_plugin.errors import ConfigError

A100_40, A100_80 = ("NVIDIA A100-SXM4-40GB", MiB(40960)), ("NVIDIA A100 80GB PCIe", MiB(81920))
A30, H100, H200 = (
    ("NVIDIA A30", MiB(24576)),
    ("NVIDIA H100 80GB HBM3", MiB(81559)),
    ("NVIDIA H200", MiB(143771)),
)
RTX_PRO = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", MiB(97887))
H100_NVL, B200 = ("NVIDIA H100 NVL", MiB(95830)), ("NVIDIA B200", MiB(183359))


def test_eight_a100_have_the_counts_of_the_source() -> None:
    """R-202, R-203, R-207: 56, 24, 16, 8 and 8 on the eight cards of Standard_ND96asr_v4."""
    names = ("MIG1g", "MIG2g", "MIG3g", "MIG4g", "MIG7g")
    found = [profile_of(name, *A100_40) for name in names]

    assert [8 * profile.count for profile in found] == [56, 24, 16, 8, 8]
    assert [(p.name, p.compute_slices, p.memory_slices) for p in found] == [
        ("1g.5gb", 1, 1),
        ("2g.10gb", 2, 2),
        ("3g.20gb", 3, 4),
        ("4g.20gb", 4, 4),
        ("7g.40gb", 7, 8),
    ]


@pytest.mark.parametrize(
    ("asked", "card", "name", "count"),
    [
        ("MIG1g", A100_80, "1g.10gb", 7),
        ("MIG3g", A100_80, "3g.40gb", 2),
        ("MIG1g", A30, "1g.6gb", 4),
        ("MIG4g", A30, "4g.24gb", 1),
        ("MIG2g", H100, "2g.20gb", 3),
        ("MIG1g", H100_NVL, "1g.12gb", 7),
        ("MIG1g", H200, "1g.18gb", 7),
        ("MIG7g", H200, "7g.141gb", 1),
        ("MIG7g", B200, "7g.180gb", 1),
        ("MIG1g", ("NVIDIA A800-SXM4-80GB", 81920), "1g.10gb", 7),
        ("MIG2g", ("NVIDIA A800 40GB Active", 40960), "2g.10gb", 3),
        ("MIG1g", ("NVIDIA A100X", 81920), "1g.10gb", 7),
        ("MIG3g", ("NVIDIA H800", 81559), "3g.40gb", 2),
        ("MIG3g", ("NVIDIA H20", 97871), "3g.48gb", 2),
        ("MIG3g", ("NVIDIA GB200", 189471), "3g.93gb", 2),
        ("MIG1g", ("NVIDIA B300 SXM6 AC", 275040), "1g.34gb", 7),
        ("MIG1g", RTX_PRO, "1g.24gb", 4),
        ("2g.48gb+me.all", RTX_PRO, "2g.48gb+me.all", 1),
        ("4g.96gb+gfx", RTX_PRO, "4g.96gb+gfx", 1),
        ("1g.20gb", A100_80, "1g.20gb", 4),
        ("1g.5gb+me", A100_40, "1g.5gb+me", 1),
        ("1g.5gb.me", A100_40, "1g.5gb+me", 1),  # a label's value has no +
    ],
)
def test_a_name_means_a_profile_of_the_model(
    asked: str, card: tuple[str, MiB], name: str, count: int
) -> None:
    """R-203: the aliases, and the model's own names."""
    profile = profile_of(asked, *card)

    assert (profile.name, profile.count) == (name, count)


@pytest.mark.parametrize(
    ("asked", "card", "words"),
    [
        ("2g.7gb", A100_40, "it has MIG1g, MIG2g, MIG3g, MIG4g, MIG7g, 1g.5gb, 1g.5gb+me"),
        ("MIG3g", A30, "it has MIG1g, MIG2g, MIG4g, 1g.6gb"),
        ("1g.5gb", A100_80, "none of NVIDIA A100 80GB PCIe"),
        ("MIG1g", ("NVIDIA X9", 15079), "has no NVIDIA X9 with 15079 MiB; it has A100, A100X"),
        ("MIG1g", ("NVIDIA RTX 6000 Ada Generation", 49140), "has no NVIDIA RTX 6000 Ada"),
        ("MIG7g", RTX_PRO, "it has MIG1g, MIG2g, MIG4g, 1g.24gb"),
        ("mig1g", A100_40, "'mig1g'"),
    ],
)
def test_a_name_that_the_model_lacks_is_refused(
    asked: str, card: tuple[str, MiB], words: str
) -> None:
    """R-309: the set is closed, and the text says what there is."""
    with pytest.raises(ConfigError, match="MIG profile") as refused:
        profile_of(asked, *card)

    assert words in str(refused.value)


def test_no_profile_is_larger_than_its_card() -> None:
    """Nor are all of its instances together."""
    for model in MODELS:
        for profile in model.profiles:
            assert profile.count * profile.compute_slices <= model.compute_slices
            assert profile.count * profile.memory_slices <= model.memory_slices


def test_a_model_with_spaces_as_hyphens_is_the_same() -> None:
    """Both spellings are in use."""
    assert model_of("NVIDIA-A100-80GB-PCIe", MiB(81920)) is model_of(*A100_80) is not None


def test_a_resource_has_a_dot_for_the_plus() -> None:
    """R-706; a plus is not allowed in a resource's name."""
    assert resource_of("2g.20gb") == "nvidia.com/mig-2g.20gb"
    assert resource_of("1g.10gb+me") == "nvidia.com/mig-1g.10gb.me"
