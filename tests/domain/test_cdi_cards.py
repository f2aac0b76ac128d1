"""Which CDI specification of a node names its cards, and which container runtimes read one unasked."""

import pytest

from gpu_device_plugin.domain.grants.cdi_spec import CdiCards, cards_in_cdi, has_cdi
from gpu_device_plugin.domain.grants.container_edits import CARD_KIND, NVIDIA_KIND, CardsInCdi

CARDS = frozenset({"GPU-a", "GPU-b"})
DRIVER = "535.309.01"


def spec(kind: str, names: frozenset[str] = CARDS, driver: str = DRIVER) -> CdiCards:
    libraries = {f"/usr/lib/libnvidia-ml.so.{driver}", "/usr/lib/libnvidia-egl-gbm.so.1.1.0"}
    return CdiCards(kind, names, frozenset(libraries))


def test_our_own_kind_goes_before_that_of_others_and_a_fitting_one_before_one_that_does_not() -> (
    None
):
    ours, theirs = spec(CARD_KIND), spec(NVIDIA_KIND)
    assert cards_in_cdi([theirs, ours], CARDS, DRIVER) == CardsInCdi(CARD_KIND)
    for bad in (spec(CARD_KIND, driver="470.1.2"), spec(CARD_KIND, frozenset({"GPU-a"}))):
        assert cards_in_cdi([bad, theirs], CARDS, DRIVER) == CardsInCdi(NVIDIA_KIND)


def test_several_files_of_a_kind_may_name_the_cards_together() -> None:
    parts = [spec(CARD_KIND, frozenset({name})) for name in CARDS]
    assert cards_in_cdi(parts, CARDS, DRIVER).problem == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([], f"no CDI specification is of kind {CARD_KIND} or {NVIDIA_KIND}"),
        ([spec("a.b/c")], f"no CDI specification is of kind {CARD_KIND} or {NVIDIA_KIND}"),
        (
            [spec(NVIDIA_KIND, frozenset({"GPU-b", "0"}))],
            f"the CDI specification of {NVIDIA_KIND} does not name GPU-a",
        ),
        (
            [spec(CARD_KIND, driver="470.1.2")],
            f"the CDI specification of {CARD_KIND} brings driver 470.1.2, and {DRIVER} runs",
        ),
    ],
)
def test_what_is_missing_is_named(found: list[CdiCards], problem: str) -> None:
    """And which kind it is missing from, which containers get all the same where CDI is asked for."""
    told = cards_in_cdi(found, CARDS, DRIVER)
    assert told.problem == problem
    assert told.is_misfit == (found != [] and found[0].kind == told.kind)


def test_a_driver_that_nobody_tells_is_not_compared() -> None:
    """The driver hangs at the agent's start, or the specification has no library with a version in its name."""
    assert cards_in_cdi([spec(CARD_KIND, driver="470.1.2")], CARDS, "") == CardsInCdi(CARD_KIND)
    bare = CdiCards(CARD_KIND, CARDS, frozenset({"/usr/lib/libnvidia-ml.so.1"}))
    assert cards_in_cdi([bare], CARDS, DRIVER) == CardsInCdi(CARD_KIND)


@pytest.mark.parametrize(
    ("runtime", "is_on"),
    [
        ("containerd://2.4.2", True),
        ("containerd://v2.0.0-rc.1", True),
        ("containerd://1.7.28", False),
        ("containerd://unknown", False),
        ("cri-o://1.36.0", True),
        ("docker://27.1.1", False),
        ("", False),
    ],
)
def test_cdi_is_on_by_default_from_containerd_2_on_and_in_crio(
    runtime: str, *, is_on: bool
) -> None:
    assert has_cdi(runtime) is is_on
