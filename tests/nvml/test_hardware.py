"""A card's capability and MIG instances arrive as NVML tells them, and a new cut is followed."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tests.nvml.conftest import Start
from tests.nvml.watch import PATIENT

from gpu_device_plugin.domain.cards.card import Hardware, Instance
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import Inventory
from gpu_device_plugin.simulation.driver_library import set_fields
from gpu_device_plugin.simulation.simulated_node import SimulatedNode


async def test_a_whole_card_has_a_capability_and_no_instances(
    node: SimulatedNode, start: Start
) -> None:
    """A V100 knows no MIG mode."""
    inventory = await start(node.library, PATIENT).seen(Inventory)

    assert {card.hardware.compute_capability for card in inventory.cards} == {(7, 0)}
    assert {(c.hardware.is_mig_capable, c.hardware.is_mig) for c in inventory.cards} == {
        (False, False)
    }


@pytest.mark.usefixtures("node")
async def test_a_cut_card_has_its_instances(tmp_path: Path, start: Start) -> None:
    """With everything that offers and labels need."""
    (tmp_path / "mig").mkdir()
    mig = SimulatedNode.create("a100-mig", tmp_path / "mig")
    inventory = await start(mig.library, PATIENT).seen(Inventory)
    shown = mig.view().cards[3]
    found = inventory.cards[3].hardware

    assert replace(found, instances=(), links={}) == Hardware(
        (8, 0), 0, is_mig_capable=True, is_mig=True
    )
    assert [instance.uuid for instance in found.instances] == [
        each.uuid for each in shown.instances
    ]
    first = found.instances[0]
    assert replace(first, engines={}) == Instance(
        uuid=shown.instances[0].uuid,
        index=0,
        gpu_instance=7,
        compute_instance=0,
        profile="1g.5gb",
        memory_mib=MiB(4864),
        gpu_slices=1,
        compute_slices=1,
        multiprocessors=14,
    )
    assert first.engines.keys() == {"copy", "decoder", "encoder", "jpeg", "ofa"}


@pytest.mark.usefixtures("node")
async def test_a_new_cut_of_a_card_is_a_new_inventory(tmp_path: Path, start: Start) -> None:
    """Also one with as many instances as before."""
    (tmp_path / "mig").mkdir()
    mig = SimulatedNode.create("a100-mig", tmp_path / "mig", cards=2)
    watch = start(mig.library, replace(PATIENT, reopen_seconds=600))
    before = await watch.seen(Inventory)
    mig.cut(1, ["3g.20gb", "4g.20gb"])
    after = await watch.seen(Inventory, lambda each: each != before)

    assert [i.profile for i in after.cards[1].hardware.instances] == ["3g.20gb", "4g.20gb"]
    assert after.cards[0] == before.cards[0]

    mig.cut(0, ["1g.5gb"] * 7)
    again = await watch.seen(Inventory, lambda each: each != after)
    assert not {i.uuid for i in again.cards[0].hardware.instances} & {
        i.uuid for i in before.cards[0].hardware.instances
    }


@pytest.mark.usefixtures("node")
async def test_a_card_that_joins_an_nvlink_domain_is_a_new_inventory(
    tmp_path: Path, start: Start
) -> None:
    """Its driver does that some time after the start."""
    (tmp_path / "h200").mkdir()
    node = SimulatedNode.create("h200", tmp_path / "h200", cards=2)
    watch = start(node.library, replace(PATIENT, reopen_seconds=600))
    before = await watch.seen(Inventory)
    set_fields(node.state, ["cards.0.clique=3", "cards.0.virtualization=2"])
    after = await watch.seen(Inventory, lambda each: each != before)

    found = [(card.hardware.fabric, card.hardware.is_virtual) for card in after.cards]
    assert found == [(f"{UUID('5a' * 16)}.3", True), ("", False)]
