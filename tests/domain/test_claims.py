"""Claims on the ledger: what one gets, and what is told of it."""

from dataclasses import replace

import pytest
from tests.held import fraction

from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.cdi_spec import cdi_spec, claim_of_spec, prepare_devices
from gpu_device_plugin.domain.grants.claims import AllocatedDevice, Claim, ClaimRef, taints
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, DeviceNode, Mount
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import (
    AllocationApi,
    has_claims_api,
    parse_allocation_api,
)
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import RequestError

CARDS = tuple(
    Card(f"GPU-{i}", CardNumber(i), CardIndex(i), i, "V100", MiB(16160)) for i in range(3)
)
NODE = NodeState("n1", NodeMode.CORE_MEM, cards=CARDS, library_version="0.1")
SCHEMES = Schemes()


def allocated(card: int, units: int, percent: int) -> AllocatedDevice:
    """What the scheduler has counted for a claim on a card."""
    return AllocatedDevice(
        "gpu-device-plugin", "n1", f"gpu-{card}", "slice", "", MiB(units * 1024), percent
    )


def by_units(name: str, card: int, units: int, percent: int) -> Ledger:
    """A container that holds units of a card."""
    ids = {
        str(Resource.MEM): unit_ids(Resource.MEM, card, units),
        str(Resource.CORE): unit_ids(Resource.CORE, card, percent),
    }
    pod = PodRef("default", name, f"uid-{name}")
    return Ledger().hold(fraction(name, pod, "main", units=ids, cards=(f"GPU-{card}",)))


def test_a_sick_card_is_tainted_with_its_reason_and_a_node_fault_taints_every_card() -> None:
    sick = replace(NODE, unhealthy={"GPU-1": "XID79"})
    broken = replace(NODE, faults={"StateNotWritable": "disk full"})

    assert taints("GPU-1", sick) == {"gpu-device-plugin/unhealthy": "XID79"}
    assert taints("GPU-0", sick) == {}
    assert taints("GPU-0", broken) == {"gpu-device-plugin/unhealthy": "StateNotWritable"}
    assert taints("GPU-0", replace(NODE, mark="uid")) == {"gpu-device-plugin/uninstall": "true"}


def test_what_a_card_offers_follows_mode_unit_and_the_most_pods() -> None:
    """Whole units; compute where the mode divides it; nothing in other modes (R-404)."""
    scheme = SCHEMES.fractions
    share = replace(NODE, mode=NodeMode.SHARE, max_pods=3)

    capacity = scheme.capacity(CARDS[0], NODE)
    assert capacity is not None
    assert (capacity.memory_mib, capacity.step_mib) == (15 * 1024, 1024)
    small = scheme.capacity(CARDS[0], replace(NODE, unit=MemoryUnit.MIB128))
    assert small is not None
    assert (small.memory_mib, small.step_mib) == (126 * 128, 128)
    assert (capacity.core_percent, capacity.core_step, capacity.slots) == (100, 5, 16)
    of_share = scheme.capacity(CARDS[0], share)
    assert of_share is not None
    assert (of_share.core_percent, of_share.slots) == (0, 3)
    assert scheme.capacity(CARDS[0], replace(NODE, max_pods=0)) is None
    assert scheme.capacity(CARDS[0], replace(NODE, mode=NodeMode.DISABLED)) is None


@pytest.mark.parametrize(
    "devices",
    [
        [allocated(0, 0, 30)],
        [allocated(0, 2, 0)],
        [replace(allocated(0, 2, 30), memory_mib=MiB(1500))],
        [allocated(0, 2, 30), allocated(1, 3, 30)],
    ],
)
def test_amounts_of_another_mode_or_unit_are_refused(devices: list[AllocatedDevice]) -> None:
    scheme, view = SCHEMES.fractions, SCHEMES.dividing_view(NODE)
    with pytest.raises(RequestError, match="another mode or unit"):
        scheme.claim_demand(devices, view)


def test_a_claim_of_several_cards_holds_the_same_of_each() -> None:
    """As the label for several cards does."""
    state = replace(NODE, mode=NodeMode.CGPU)
    scheme, view = SCHEMES.fractions, SCHEMES.dividing_view(state)
    needed = scheme.claim_demand([allocated(0, 4, 0), allocated(2, 4, 0)], view)

    assert (needed.mem_units, needed.cards, needed.core_percent) == (8, 2, 0)


def test_the_cdi_file_says_what_an_allocate_would_answer() -> None:
    """And the first device of the claim carries it, so that a container gets it once."""
    edits = ContainerEdits(
        envs={"A": "1"},
        mounts=(
            Mount("/in", "/out", is_read_only=True),
            Mount("/region", "/r", is_read_only=False),
        ),
        devices=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rw"),),
        cdi_names=("nvidia.com/gpu=GPU-0",),
        annotations={"cdi.k8s.io/x": "nvidia.com/gpu=GPU-0,nvidia.com/gpu=GPU-1"},
    )
    claim = Claim(ClaimRef("default", "c", "u1"))

    assert cdi_spec(claim.ref, "0a1b", edits) == {
        "cdiVersion": "0.6.0",
        "kind": "gpu-device-plugin/slice",
        "annotations": {"gpu-device-plugin/claim": "default/c", "gpu-device-plugin/slice": "0a1b"},
        "devices": [
            {
                "name": "u1",
                "containerEdits": {
                    "env": ["A=1"],
                    "mounts": [
                        {"containerPath": "/in", "hostPath": "/out",
                         "options": ["ro", "nosuid", "nodev", "rbind"]},
                        {"containerPath": "/region", "hostPath": "/r",
                         "options": ["rw", "nosuid", "nodev", "rbind"]},
                    ],
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0", "permissions": "rw"}
                    ],
                },
            }
        ],
    }  # fmt: skip
    assert claim_of_spec("u1", cdi_spec(claim.ref, "0a1b", edits)) == (claim.ref, "0a1b")
    for damaged in ({}, {"annotations": 1}, {"annotations": {"gpu-device-plugin/claim": "c"}}):
        assert claim_of_spec("u1", damaged) is None
    devices = (allocated(0, 2, 30), allocated(1, 2, 30))
    first, second = prepare_devices(replace(claim, devices=devices), edits)
    names = ("gpu-device-plugin/slice=u1", "nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1")
    assert (first.cdi_ids, second.cdi_ids) == (names, ())


def test_an_allocation_api_has_a_name_and_needs_a_kubelet_that_has_it() -> None:
    assert [parse_allocation_api(text) for text in ("dra", "device-plugin", "DRA", "")] == [
        AllocationApi.DRA, AllocationApi.DEVICE_PLUGIN, None, None,
    ]  # fmt: skip
    versions = ("v1.36.0", "v1.40.1-gke.7", "v1.35.9", "v2.0.0", "x", "")
    assert [version for version in versions if has_claims_api(version)] == [*versions[:2]]
