"""The promise: a node has the labels of NVIDIA's feature discovery, with its values."""

from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import card, sevenths, whole

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber, Hardware
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    MigStrategy,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.feature_labels import family, feature_labels

MACHINE = Machine("535.309.01", "12.2", "PowerEdge (R750)", timestamp=1700000000)
SINGLE, MIXED = MigStrategy.SINGLE, MigStrategy.MIXED
PRODUCT = "NVIDIA-A100-SXM4-40GB"


def labels(cards: list[Card], configuration: Configuration) -> dict[str, str]:
    """Without NVIDIA's prefix."""
    found = feature_labels(cards, configuration, MACHINE)
    assert all(name.startswith("nvidia.com/") for name in found)
    return {name.removeprefix("nvidia.com/"): value for name, value in found.items()}


def sliced(
    name: str = GPU, *, renamed: bool = False, strategy: MigStrategy = MIXED
) -> Configuration:
    return Configuration(
        mig_strategy=strategy,
        sharing=Sharing(SharingKind.TIME_SLICING, (SharedResource(name, 2),), is_renamed=renamed),
    )


def test_eight_whole_cards_have_every_label() -> None:
    """R-740, R-741, the whole set."""
    assert labels(whole(8), Configuration()) == {
        "gfd.timestamp": "1700000000",
        "cuda.driver-version.major": "535",
        "cuda.driver-version.minor": "309",
        "cuda.driver-version.revision": "01",
        "cuda.driver-version.full": "535.309.01",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "2",
        "cuda.runtime-version.full": "12.2",
        "cuda.driver.major": "535",
        "cuda.driver.minor": "309",
        "cuda.driver.rev": "01",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "2",
        "gpu.machine": "PowerEdge-R750",
        "gpu.mode": "compute",
        "gpu.product": PRODUCT,
        "gpu.count": "8",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": "40960",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "mig.capable": "true",
        "mps.capable": "false",
        "vgpu.present": "false",
    }


@pytest.mark.parametrize(
    ("configuration", "product", "replicas", "strategy"),
    [
        (Configuration(), PRODUCT, "1", "none"),
        (sliced(), f"{PRODUCT}-SHARED", "2", "time-slicing"),
        (sliced(renamed=True), PRODUCT, "2", "time-slicing"),
        (sliced("nvidia.com/other"), PRODUCT, "1", "none"),
    ],
)
def test_replicas_are_those_of_one_card(
    configuration: Configuration, product: str, replicas: str, strategy: str
) -> None:
    """R-741, R-742: `-SHARED` only where the name is the same."""
    found = labels(whole(8), configuration)

    assert (found["gpu.product"], found["gpu.replicas"]) == (product, replicas)
    assert (found["gpu.sharing-strategy"], found["gpu.count"]) == (strategy, "8")


def test_single_puts_the_instances_in_the_place_of_the_cards() -> None:
    """R-201, R-743: 56 of them."""
    found = labels(sevenths(8), Configuration(mig_strategy=SINGLE))

    assert {name: value for name, value in found.items() if name.startswith(("gpu.", "mig."))} == {
        "mig.capable": "true",
        "mig.strategy": "single",
        "gpu.machine": "PowerEdge-R750",
        "gpu.mode": "compute",
        "gpu.product": f"{PRODUCT}-MIG-1g.5gb",
        "gpu.count": "56",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": "4864",
        "gpu.family": "ampere",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.multiprocessors": "14",
        "gpu.slices.gi": "1",
        "gpu.slices.ci": "1",
        "gpu.engines.copy": "1",
        "gpu.engines.decoder": "0",
        "gpu.engines.encoder": "0",
        "gpu.engines.jpeg": "0",
        "gpu.engines.ofa": "0",
    }


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param([*sevenths(1), card(1)], id="on and off"),
        pytest.param([card(0, "1g.5gb", "2g.10gb")], id="two profiles"),
        pytest.param([*sevenths(1), card(1, is_mig=True)], id="one not cut"),
        pytest.param([card(0, is_mig=True)], id="none cut"),
    ],
)
def test_a_layout_that_single_cannot_serve_says_so(cards: list[Card]) -> None:
    """R-743."""
    found = labels(cards, Configuration(mig_strategy=SINGLE))

    assert found["gpu.product"] == f"{PRODUCT}-MIG-INVALID"
    assert [
        found[f"gpu.{name}"] for name in ("count", "replicas", "sharing-strategy", "memory")
    ] == ["0", "0", "", "0"]
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    found = labels(
        [replace(each, model=model) for each in cards], Configuration(mig_strategy=SINGLE)
    )
    cut = "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edi"
    assert found["gpu.product"] == f"{cut}-MIG-INVALID"


def test_single_without_mig_is_as_none_but_for_the_strategy() -> None:
    """R-706."""
    found = labels(whole(2), Configuration(mig_strategy=SINGLE))

    assert found.pop("mig.strategy") == "single"
    assert found == labels(whole(2), Configuration())


def test_mixed_has_labels_of_each_profile_beside_the_cards() -> None:
    """R-744; the cards' replicas are 0 where all are in MIG mode (R-742)."""
    cards = [card(i, "3g.20gb", "1g.5gb", "1g.5gb+me") for i in range(2)]
    found = labels(cards, sliced("nvidia.com/mig-1g.5gb"))

    assert found["mig.strategy"] == "mixed"
    assert (found["gpu.count"], found["gpu.replicas"]) == ("2", "0")
    assert found["mig-3g.20gb.count"] == "2"
    assert found["mig-3g.20gb.slices.gi"] == "3"
    assert found["mig-1g.5gb.product"] == f"{PRODUCT}-MIG-1g.5gb-SHARED"
    assert found["mig-1g.5gb.replicas"] == "2"
    assert found["mig-1g.5gb.me.product"] == f"{PRODUCT}-MIG-1g.5gb.me"


def test_cards_in_mig_mode_are_not_shared_cards() -> None:
    """Under none their instances have no labels, and the cards no replicas."""
    found = labels(sevenths(2), sliced(strategy=MigStrategy.NONE))

    assert (found["gpu.product"], found["gpu.replicas"]) == (PRODUCT, "0")
    assert found["gpu.sharing-strategy"] == "none"
    assert not [name for name in found if name.startswith("mig-")]


def test_of_two_models_the_labels_are_those_of_the_larger_group() -> None:
    """NVIDIA's tool takes any; a tie goes to the lowest index."""
    t4 = [
        Card(f"T-{i}", CardNumber(i), CardIndex(i), i, "Tesla-T4", MiB(15079), Hardware((7, 5)))
        for i in (5, 6)
    ]

    assert labels([*whole(3), *t4], Configuration())["gpu.count"] == "3"
    assert labels([card(0), *t4], Configuration())["gpu.product"] == "Tesla-T4"
    assert labels([*t4, *whole(2)], Configuration())["gpu.family"] == "turing"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("To be filled by O.E.M.", "To-be-filled-by-O.E.M"),
        ("ThinkSystem SR670 V2 -[7Z22CTOLWW]-", "ThinkSystem-SR670-V2--7Z22CTOLWW"),
        ("-[7X06CTO1WW]-", "7X06CTO1WW"),
        ("a" * 62 + "-b", "a" * 62),
        ("...", "unknown"),
    ],
)
def test_a_value_begins_and_ends_as_the_api_server_wants_it(given: str, wanted: str) -> None:
    """One refused value would keep every other label and annotation from the node (R-741)."""
    machine = Machine("535.309.01", "12.2", given)

    assert feature_labels(whole(1), Configuration(), machine)["nvidia.com/gpu.machine"] == wanted


def test_without_a_card_there_is_only_the_timestamp() -> None:
    """And not even that where it is switched off."""
    assert feature_labels([], Configuration(), Machine("", "")) == {}
    assert list(labels([], Configuration())) == ["gfd.timestamp"]


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ((0x0302, 0x0302), "compute"),
        ((0x0300,), "graphics"),
        ((0x0380,), "unknown"),
        ((0x0302, 0x0300), "unknown"),
    ],
)
def test_a_mode_follows_from_the_pci_class(classes: tuple[int, ...], mode: str) -> None:
    """R-745; of cards that differ it is not known."""
    cards = [
        replace(card(n), hardware=replace(card(n).hardware, pci_class=each))
        for n, each in enumerate(classes)
    ]
    assert labels(cards, Configuration())["gpu.mode"] == mode


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 4), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 8), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
        ((11, 0), "undefined"),
    ],
)
def test_a_family_follows_from_the_compute_capability(
    capability: tuple[int, int], name: str
) -> None:
    """R-745."""
    assert family(capability) == name


def test_a_long_model_is_cut_and_its_profile_and_sharing_stay() -> None:
    """A selector by size would else take the whole card for its part, or the other way round."""
    long = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition of a Vendor"
    cards = [replace(card(0, "1g.24gb+me.all"), model=long)]
    entry = SharedResource("nvidia.com/mig-1g.24gb.me.all", 2)
    sharing = Sharing(SharingKind.TIME_SLICING, (entry,))
    found = labels(cards, Configuration(mig_strategy=MigStrategy.MIXED, sharing=sharing))
    product = found["mig-1g.24gb.me.all.product"]

    assert len(product) == 63
    assert product.startswith("NVIDIA-RTX-PRO-6000-Blackwell")
    assert product.endswith("-MIG-1g.24gb.me.all-SHARED")
