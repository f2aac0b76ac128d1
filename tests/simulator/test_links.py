"""Links between cards are told as the machine's own driver tells them."""

import pytest
from tests.simulator.conftest import MakeNode
from tests.simulator.programs import run

_READ = """
nvml.nvmlInit()
cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
buses = [nvml.nvmlDeviceGetPciInfo(card).busId for card in cards]
def ends(card):
    found = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(card, link):
                found.append(nvml.nvmlDeviceGetNvLinkRemotePciInfo(card, link).busId)
        except nvml.NVMLError as error:
            return found, error.value
    return found, 0
"""


def test_a_dgx_1_is_a_hybrid_cube_mesh_and_every_link_has_two_ends(make_node: MakeNode) -> None:
    """Six NVLinks a card, as `nvidia-smi topo -m` shows them; the PCI bus by switch and socket."""
    seen = run(
        make_node("dgx-1", driver_version="535.309.01"),
        _READ
        + """
found = [[ends(card)[0].count(bus) for bus in buses] for card in cards]
levels = [nvml.nvmlDeviceGetTopologyCommonAncestor(cards[0], card) for card in cards[1:]]
say([found, levels, nvml.nvmlDeviceGetNvLinkRemoteDeviceType(cards[0], 5)])
""",
    )

    assert isinstance(seen, list)
    links, levels, kind = seen
    assert links[0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert links == [list(column) for column in zip(*links, strict=True)]
    assert [sum(row) for row in links] == [6] * 8
    assert levels == [10, 30, 30, 50, 50, 50, 50]
    assert kind == 0


@pytest.mark.parametrize(("profile", "count"), [("dgx-a100", 12), ("dgx-h100", 18)])
def test_links_of_a_switched_machine_end_at_switches(
    make_node: MakeNode, profile: str, count: int
) -> None:
    """None at another card."""
    seen = run(
        make_node(profile),
        _READ
        + """
found = ends(cards[3])[0]
say([len(found), sum(found.count(bus) for bus in buses),
     nvml.nvmlDeviceGetNvLinkRemoteDeviceType(cards[3], 0)])
""",
    )

    assert seen == [count, 0, 2]


def test_a_card_without_links_says_so(make_node: MakeNode) -> None:
    """Not supported on a T4; on a V100 a seventh link does not exist, one to a lost card is down."""
    assert run(make_node("t4"), _READ + "say(ends(cards[0]))") == [[], 3]
    levels = "[nvml.nvmlDeviceGetTopologyCommonAncestor(cards[0], card) for card in cards[1:]]"
    assert run(make_node("v100"), _READ + f"say({levels})") == [30, 30, 30]
    node = make_node("dgx-1")
    node.unplug(3)
    found = run(node, _READ + "say(ends(cards[0]))")
    assert isinstance(found, list)
    assert (len(found[0]), found[1]) == (4, 2)
