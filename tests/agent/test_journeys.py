"""The promise: one can follow what goes through the agent, because it passes through few files.

It is an Allocate's list of ids, an XID, the reference of a claim, and what a configuration file says;
not every value that is made from it: a fault of a card, a grant of a claim, what a node offers.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.agent.agent_parts import running
from tests.agent.claim_node import ClaimsOnly, node_at
from tests.conftest import MakeNode
from tools.harness.claim_kubelet import ClaimKubelet
from tools.harness.waiting import until

import gpu_device_plugin
from gpu_device_plugin.agent.kubelet_calls.caller_lookup import Sources
from gpu_device_plugin.domain.cards.nvml_reports import Xid
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.claims import ClaimRef
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)
from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.kubelet._proto import dra_pb2
from gpu_device_plugin.nvml.child_messages import XidLine
from gpu_device_plugin.nvml.nvml_source import NvmlSource
from gpu_device_plugin.settings.nvidia_configuration import ConfigFile

PACKAGE = str(Path(gpu_device_plugin.__file__).parent)
XID = 94  # the driver asks for no recovery after it, whose fault could come first
REPLICAS = "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
IsIt = Callable[[Any], bool]


@dataclass
class Journey:
    """Files of the package whose functions get what is followed, and those that hand it back to another."""

    entered: set[str] = field(default_factory=set)
    returned: list[str] = field(default_factory=list)

    def check(self, files: int, returns: int) -> None:
        """Something was followed, and went through no more than that."""
        assert self.entered
        assert len(self.entered) <= files, sorted(self.entered)
        assert len(self.returned) <= returns, self.returned


def has(value: Any, is_it: IsIt, depth: int = 2) -> bool:
    """Whether a value is what is followed, or a call, grant, claim or result with it."""
    if is_it(value):
        return True
    if not depth or not is_dataclass(value):
        return False
    return any(has(getattr(value, each.name, None), is_it, depth - 1) for each in fields(value))


@contextmanager
def followed(is_it: IsIt, *, has_threads: bool = False) -> Iterator[Journey]:
    """Its journey in this thread, and where asked in those that start meanwhile."""
    journey = Journey()

    def note(frame: FrameType, event: str, result: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if not code.co_filename.startswith(PACKAGE):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if event == "call" and any(has(frame.f_locals.get(name), is_it) for name in names):
            journey.entered.add(code.co_filename)
        is_left = back is None or back.f_code.co_filename != code.co_filename
        if event == "return" and is_left and has(result, is_it):
            journey.returned.append(code.co_filename)

    before, of_threads = sys.getprofile(), threading.getprofile()
    if has_threads:
        threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield journey
    finally:
        sys.setprofile(before)
        threading.setprofile(of_threads)


async def test_the_ids_of_an_allocate_pass_through_few_files(short_dir: Path) -> None:
    """In this thread, from `FractionCalls.allocate` on: 11 files, and 12 are allowed.

    With `has_threads=True` the same scenario gives 13: disk/grant_file.py and domain/scheme_registry.py are added.
    kubelet/device_plugin_servicer.py, which receives the ids and calls `allocate`, makes 14.
    """
    wiring = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN).wiring
    ref = PodRef("default", "p", "uid-p")
    amounts = {str(Resource.MEM): 2, str(Resource.CORE): 30}
    spec = PodRequest(ref, (ContainerRequest("main", ContainerKind.APP, 0, amounts),))

    async def listed() -> Sequence[ListedPod]:
        return [ListedPod(PodRef("default", "p"))]

    async def fetch(_namespace: str, _name: str) -> PodRequest | None:
        return spec

    wiring.caller_lookup.sources = Sources(
        listed, lambda: {ref.key: spec}, fetch, wiring.snapshots.witnesses
    )
    free = [text for number in (0, 1) for text in unit_ids(Resource.MEM, number, 15)]
    given = await wiring.fraction_calls.prefer(Resource.MEM, free, (), 2)
    ids = frozenset(given)

    def is_it(value: Any) -> bool:
        if not isinstance(value, frozenset | list | tuple):
            return False
        return all(isinstance(each, str) for each in value) and frozenset(value) == ids

    with followed(is_it) as journey:
        await wiring.fraction_calls.allocate(Resource.MEM, given)

    journey.check(files=12, returns=12)


async def test_an_xid_passes_through_few_files(short_dir: Path, make_node: MakeNode) -> None:
    """From the line of NVML's child until it is a fault of its card, which takes that off the list."""
    wiring = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN).wiring
    wiring.node_store.update(cards=())
    node = make_node("v100")
    uuid = node.view().cards[2].uuid
    state = wiring.node_store.read

    def is_it(value: Any) -> bool:
        return isinstance(value, Xid | XidLine) or (type(value) is int and value == XID)

    async with running(NvmlSource(node.library, wiring.cards.observe).run()):
        await until(lambda: bool(state().cards) and not state().unhealthy, 30)
        node.xid(2, XID)
        with followed(is_it) as journey:
            await until(lambda: state().unhealthy == {uuid: f"XID{XID}"}, 30)
    pools = wiring.offered_pools(state())
    healthy = [group.card for pool in pools for group in pool.groups if group.is_healthy]

    assert healthy
    assert uuid not in healthy
    journey.check(files=7, returns=12)


async def test_a_claim_in_prepare_passes_through_few_files(short_dir: Path) -> None:
    """From the kubelet's call to the CDI file."""
    node = node_at(short_dir, ClaimsOnly())
    ref, kubelet = node.cluster.allocate("a", 1), ClaimKubelet(short_dir / "k")

    def is_it(value: Any) -> bool:
        return isinstance(value, ClaimRef | dra_pb2.Claim) and value.uid == ref.uid

    node.wiring.claim_endpoint.begin()
    async with running(node.wiring.claim_endpoint.run()):
        await until(lambda: kubelet.registry_socket.exists(), 30)
        with followed(is_it) as journey:
            answers = await kubelet.prepare("a")

    assert answers[ref.uid].devices
    assert node.files == [ref.uid]
    journey.check(files=6, returns=12)


async def test_a_changed_configuration_file_passes_through_few_files(short_dir: Path) -> None:
    """From its YAML to what the node offers."""
    file = short_dir / "config.yaml"
    file.write_text("{}")
    node = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN, config_file=str(file))
    wiring = node.wiring
    wiring.node_store.update(mode=NodeMode.DEFAULT)
    wiring.holders.has_passed = True
    file.write_text(f"sharing: {REPLICAS}")
    os.utime(file, (1, 1))  # one that was written just now is read later

    def is_it(value: Any) -> bool:
        if isinstance(value, Configuration | ConfigFile):
            return bool(value.sharing.resources)
        return isinstance(value, dict) and "sharing" in value

    def offered() -> int:
        return sum(len(pool.groups) for pool in wiring.offered_pools(wiring.node_store.read()))

    assert offered() == 2
    async with running(wiring.configuration.follow()):
        with followed(is_it, has_threads=True) as journey:
            wiring.configuration.run()
            await until(lambda: bool(wiring.in_force.current.sharing.resources), 30)
            after = offered()

    assert after == 8
    journey.check(files=8, returns=12)
