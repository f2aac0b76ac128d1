"""The promise: NVIDIA's configuration is checked before a card is asked, and errors name the key."""

import pytest

from gpu_device_plugin.domain.nvidia.configuration import (
    ALL_DEVICES,
    GPU,
    Configuration,
    Devices,
    MigStrategy,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
    check,
    devices,
    resource_name,
)
from gpu_device_plugin.errors import ConfigError

UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"


def shared(*entries: SharedResource, renamed: bool = False) -> Configuration:
    return Configuration(sharing=Sharing(SharingKind.TIME_SLICING, entries, is_renamed=renamed))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("n" * 52, "nvidia.com/" + "n" * 52),
    ],
)
def test_a_resource_gets_nvidias_prefix(given: str, wanted: str) -> None:
    """With or without it in the file."""
    assert resource_name(given) == wanted


@pytest.mark.parametrize("given", ["", "GPU", "-gpu", "g_pu", "example.com/gpu", "n" * 53])
def test_what_kubernetes_takes_for_no_name_is_refused(given: str) -> None:
    """At most 63 characters, in lower case, with NVIDIA's prefix only."""
    with pytest.raises(ConfigError):
        resource_name(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("all", ALL_DEVICES),
        (3, Devices(count=3)),
        ([0, "1", "0:1", UUID], Devices(references=("0", "1", "0:1", UUID))),
        ([f"MIG-{UUID[4:]}"], Devices(references=(f"MIG-{UUID[4:]}",))),
        ([f"MIG-{UUID}/3/0"], Devices(references=(f"MIG-{UUID}/3/0",))),
    ],
)
def test_devices_are_all_a_number_or_a_list(given: object, wanted: Devices) -> None:
    """Indices, MIG indices and UUIDs of either form (R-211)."""
    assert devices(given) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["some", 0, -1, [], ["GPU-1"], ["x"], ["0:"], [f"{UUID}/1/0"]])
def test_other_devices_are_refused(given: object) -> None:
    """Also a list without an entry, which would mean nothing."""
    with pytest.raises(ConfigError):
        devices(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "model", "matches"),
    [
        ("*", "Tesla T4", True),
        ("Tesla", "Tesla V100-SXM2-16GB", False),
        ("V100*", "Tesla V100-SXM2-16GB", False),
        ("*V100*", "Tesla V100-SXM2-16GB", True),
        ("NVIDIA A100*40GB", "NVIDIA-A100-SXM4-40GB", True),
        ("1g.5gb", "1g.5gb+me", False),
        ("1g.5gb+me", "1g.5gb+me", True),
        ("*A100*80GB", "NVIDIA A100-SXM4-40GB", False),
        ("Tesla T.", "Tesla T4", False),
        ("Tesla T?", "Tesla T4", False),
        ("Tesla T[4]", "Tesla T4", False),
        ("A[1]", "A[1]", True),
        ("*A" * 20 + "*B", "A" * 60, False),  # not tried in every way that it could match
        ("*0*A*", "A100", False),
    ],
)
def test_a_pattern_matches_the_whole_text_and_knows_only_the_star(
    pattern: str, model: str, *, matches: bool
) -> None:
    """As NVIDIA's since 0.20."""
    assert Pattern(pattern, GPU).matches(model) is matches


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        pytest.param(
            shared(SharedResource(GPU, 1)),
            "sharing.timeSlicing.resources[0].replicas: 1: number of replicas must be >= 2",
            id="one replica",
        ),
        pytest.param(
            shared(SharedResource(GPU, 2, devices=Devices(count=1))),
            "would have one name",
            id="part of the cards under the same name",
        ),
        pytest.param(
            shared(
                SharedResource(GPU, 2, "nvidia.com/a", Devices(references=("0", "1"))),
                SharedResource(GPU, 4, "nvidia.com/b", Devices(references=("2", "1"))),
            ),
            "resources[1].devices: '1' stands in another entry",
            id="a card in two entries",
        ),
        pytest.param(
            shared(SharedResource(GPU, 2), SharedResource(GPU, 4), renamed=True),
            "must both list their devices",
            id="all cards in two entries",
        ),
        pytest.param(
            Configuration(sharing=Sharing(SharingKind.MPS, (SharedResource(GPU, 2),))),
            "sharing.mps: needs flags.mpsRoot (--mps-root)",
            id="MPS without its root",
        ),
        pytest.param(
            Configuration(
                mig_strategy=MigStrategy.MIXED,
                mps_root="/run/nvidia/mps",
                sharing=Sharing(SharingKind.MPS, (SharedResource(GPU, 2),)),
            ),
            "sharing.mps: is not possible with flags.migStrategy mixed",
            id="MPS with mixed",
        ),
    ],
)
def test_what_no_node_can_mend_is_refused(configuration: Configuration, words: str) -> None:
    """With the path of the key (R-704)."""
    with pytest.raises(ConfigError) as refused:
        check(configuration)

    assert words in str(refused.value)


def test_disjoint_entries_of_one_resource_go_together() -> None:
    """Cards 0 and 1 in two, card 2 in four, the others whole."""
    check(
        shared(
            SharedResource(GPU, 2, "nvidia.com/half", Devices(references=("0", "1"))),
            SharedResource(GPU, 4, "nvidia.com/quarter", Devices(references=("2",))),
        )
    )


def test_part_of_the_cards_may_be_shared_under_the_default_new_name() -> None:
    """`renameByDefault` is another name."""
    check(shared(SharedResource(GPU, 2, devices=Devices(count=1)), renamed=True))
