"""The promise: after our own file was lost, the kubelet's witnesses make the same grants again."""

from dataclasses import replace

from tests.domain.words import CORE, COUNT, INIT, MEM, V100_MIB, cards, container, pod
from tests.held import fraction

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.fraction import units_per_card
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, HeldUnits, PodRef
from gpu_device_plugin.domain.node.state import NodeState

CARDS = cards(V100_MIB, V100_MIB)  # card 0 is number 1
MEM_IDS, CORE_IDS = frozenset({"m10", "m11"}), frozenset({"c10", "c11", "c12", "c13", "c14"})
BY_UID, BY_NAME = PodRef("", "", "uid-a"), PodRef("default", "a")
CHECKPOINT = [
    HeldUnits(BY_UID, "main", MEM, MEM_IDS, "s1", "0.1"),
    HeldUnits(BY_UID, "main", CORE, CORE_IDS),
]
LIST = [HeldUnits(BY_NAME, "main", MEM, MEM_IDS), HeldUnits(BY_NAME, "main", CORE, CORE_IDS)]
SPEC = pod("a", container("setup", kind=INIT), container("main", 2, 5, index=0))
WHOLE = fraction(
    "s1",
    PodRef("default", "a", "uid-a"),
    "main",
    units={Resource.MEM: ("m10", "m11"), Resource.CORE: ("c10", "c11", "c12", "c13", "c14")},
    cards=("GPU-0",),
    mem_units=2,
    core_percent=5,
    pod_units=2,
    library_version="0.1",
)


def node(mode: NodeMode = NodeMode.CORE_MEM, cards: tuple[Card, ...] = CARDS) -> NodeState:
    """Node `node-a`."""
    return NodeState("node-a", mode=mode, cards=cards)


def test_checkpoint_and_text_make_the_whole_grant() -> None:
    """With all witnesses nothing is lost but the time of its first writing."""
    assert AliyunScheme().adopt(CHECKPOINT, [SPEC], node()) == (WHOLE,)


def test_list_and_checkpoint_tell_of_one_grant() -> None:
    """In any order; the same container is not counted twice."""
    assert AliyunScheme().adopt([*LIST, *CHECKPOINT], [SPEC], node()) == (WHOLE,)
    assert AliyunScheme().adopt([*CHECKPOINT, *LIST], [SPEC], node()) == (WHOLE,)


def test_without_the_api_list_names_the_checkpoints_pods() -> None:
    """List has names, the checkpoint uids: the same units in the same container join them."""
    assert AliyunScheme().adopt([*CHECKPOINT, *LIST], [], node()) == (
        replace(WHOLE, is_checked=False),
    )


def test_a_pod_that_nobody_names_keeps_its_uid() -> None:
    """Its slice is held all the same."""
    (found,) = AliyunScheme().adopt(CHECKPOINT, [], node())

    assert (found.pod, found.ids(Resource.MEM), found.is_checked) == (
        BY_UID,
        WHOLE.ids(Resource.MEM),
        False,
    )


def test_a_mirror_pod_is_found_by_its_name() -> None:
    """A static pod's uid in the checkpoint is not the one that the API knows."""
    mirror = replace(SPEC, ref=PodRef("default", "a", "uid-of-the-mirror"))

    (found,) = AliyunScheme().adopt([*CHECKPOINT, *LIST], [mirror], node())

    assert (found.pod, found.is_checked) == (mirror.ref, True)


def test_an_answer_without_mounts_gives_an_id_that_stays() -> None:
    """In `share` there are no files; adopting twice must not make a second slice."""
    shared = [HeldUnits(BY_UID, "main", MEM, MEM_IDS)]

    (first,) = AliyunScheme().adopt(shared, [SPEC], node(NodeMode.SHARE))
    (second,) = AliyunScheme().adopt(shared, [], node(NodeMode.SHARE))

    assert first.slice_id == second.slice_id
    assert (first.is_isolated, first.library_version) == (False, "")


def test_units_on_several_cards_name_all_of_them() -> None:
    """A container with the label for two cards."""
    (found,) = AliyunScheme().adopt(
        [HeldUnits(BY_UID, "main", MEM, frozenset({"m00", "m10"}))], [], node(NodeMode.CGPU)
    )

    assert (found.devices, units_per_card(found)) == (("GPU-0", "GPU-1"), 1)


def test_counted_cards_and_empty_entries_are_no_slices() -> None:
    """gpu-count is never granted."""
    held = [
        HeldUnits(BY_UID, "main", COUNT, frozenset({"n0"})),
        HeldUnits(BY_NAME, "x", MEM, frozenset()),
    ]

    assert AliyunScheme().adopt(held, [SPEC], node()) == ()


def test_an_init_containers_grant_is_known_as_one() -> None:
    """Only then may later containers take its units over."""
    spec = pod("a", container("setup", 2, 5, INIT, index=0), container("main", 2, 5))

    (found,) = AliyunScheme().adopt(
        [replace(e, container="setup") for e in CHECKPOINT], [spec], node()
    )

    assert found.holder.kind is ContainerKind.INIT


def test_units_of_a_card_that_is_away_wait_for_it() -> None:
    """A grant without its card could never be served, and would keep the right one from coming."""
    assert AliyunScheme().adopt(CHECKPOINT, [SPEC], node(cards=CARDS[1:])) == ()
    assert AliyunScheme().adopt(CHECKPOINT, [SPEC], node()) == (WHOLE,)
