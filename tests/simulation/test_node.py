"""A simulated node does what it is told, and says what is there when it cannot."""

from pathlib import Path

import pytest

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation import driver_library
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    """Two V100."""
    return SimulatedNode.create("v100", tmp_path / "state", cards=2)


def test_a_node_in_a_directory_needs_nothing_but_its_library(tmp_path: Path) -> None:
    """The library stands beside the state, so a path to it is all that a program needs."""
    node = SimulatedNode.create("t4", tmp_path)

    assert node.library == tmp_path / "libnvidia-ml.so.1"
    assert node.state == tmp_path / "gpu-simulator.state"


def test_any_user_may_use_a_node(node: SimulatedNode) -> None:
    """Containers run as anyone who they like."""
    assert node.state.stat().st_mode & 0o777 == 0o666


def test_making_a_node_again_replaces_it_in_one_step(node: SimulatedNode) -> None:
    """Who mapped the old one keeps it: nothing is written over."""
    before = node.state.stat().st_ino

    again = SimulatedNode.create("t4", node.state)

    assert node.state.stat().st_ino != before
    assert [card.name for card in again.view().cards] == ["Tesla T4"]
    assert list(node.state.parent.iterdir()) == [node.state]


def test_a_change_of_several_fields_happens_whole_or_not_at_all(node: SimulatedNode) -> None:
    """A wrong line leaves the right ones before it undone."""
    with pytest.raises(ConfigError, match=r'"cards.1.no_such=1": there is no such field'):
        driver_library.set_fields(node.state, ["cards.0.lost=1", "cards.1.no_such=1"])

    assert not node.view().cards[0].is_lost


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param("hang", "there is no '='", id="no value"),
        pytest.param("cards.99.lost=1", "there is no such field", id="card out of range"),
        pytest.param("cards.0.lost=-1", "not a number", id="negative"),
        pytest.param("cards.0.lost=4294967296", "does not fit 32 bits", id="too large"),
        pytest.param("cards.0.serial=" + "9" * 40, "too long", id="long text"),
        pytest.param("cards_count=17", "17 cards, at most 16 fit", id="too many cards"),
    ],
)
def test_a_wrong_line_is_refused(node: SimulatedNode, line: str, reason: str) -> None:
    """Named, with what is wrong."""
    with pytest.raises(ConfigError, match=reason):
        driver_library.set_fields(node.state, [line])


def test_a_card_that_is_not_there_is_named_with_those_that_are(node: SimulatedNode) -> None:
    """The message tells what may be asked instead."""
    with pytest.raises(ConfigError, match=r"there is no card 2: .* has cards 0 to 1"):
        node.xid(2, 79)


def test_an_unplugged_card_can_only_be_plugged_in(node: SimulatedNode) -> None:
    """And a plugged one not once more."""
    node.unplug(1)
    with pytest.raises(ConfigError, match=r"card 1 \(GPU-.*\) is unplugged"):
        node.xid(1, 79)

    node.plug(1)

    with pytest.raises(ConfigError, match="plugged in already"):
        node.plug(1)


def test_a_card_cannot_be_used_beyond_itself(node: SimulatedNode) -> None:
    """Neither more memory than it has, nor more than all of its time."""
    with pytest.raises(ConfigError, match="has 16160 MiB, not 16161"):
        node.use(0, memory_mib=16161)
    with pytest.raises(ConfigError, match="0 to 100 percent, not 101"):
        node.use(0, gpu_percent=101)


def test_a_node_that_is_not_there_is_named_with_the_cure(tmp_path: Path) -> None:
    """Somebody forgot to make it."""
    with pytest.raises(ConfigError, match="make one with `simulate create`"):
        SimulatedNode(tmp_path / "none").hang()


def test_a_file_that_is_no_node_is_refused(tmp_path: Path) -> None:
    """It is not written to."""
    path = tmp_path / "letter"
    path.write_text("Dear reader")

    with pytest.raises(ConfigError, match="is no simulated node of this version"):
        SimulatedNode(path).hang()

    assert path.read_text() == "Dear reader"


def test_a_node_that_is_kept_stays_the_same_file_and_other_cards_make_it_again(
    tmp_path: Path,
) -> None:
    """Containers have the file mounted: one made again would be another node to them."""
    node = SimulatedNode.keep("v100", tmp_path, seed="n1")
    node.use(0, memory_mib=100)
    before = node.state.stat().st_ino

    assert SimulatedNode.keep("v100", tmp_path, seed="n1").state.stat().st_ino == before
    other = SimulatedNode.keep("v100", tmp_path, seed="n1", driver_version="535.309.01")
    assert other.view().driver_version == "535.309.01"
    assert SimulatedNode.keep("t4", tmp_path, seed="n1").state.stat().st_ino != before
    assert {card.name for card in node.view().cards} == {"Tesla T4"}


def test_a_file_that_is_no_node_is_not_kept(tmp_path: Path) -> None:
    """A container runtime makes directories of missing files; others may be cut."""
    (tmp_path / STATE_NAME).write_bytes(b"cut")
    node = SimulatedNode.keep("t4", tmp_path, cards=1)

    assert len(node.view().cards) == 1
