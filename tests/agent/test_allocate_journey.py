"""The promise: one can follow an Allocate's list of ids, because it passes through few files."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.agent.claim_node import ClaimsOnly, node_at

import gpu_device_plugin
from gpu_device_plugin.agent.kubelet_calls.caller_lookup import Sources
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import (
    ContainerKind,
    ContainerRequest,
    ListedPod,
    PodRef,
    PodRequest,
)

PACKAGE = str(Path(gpu_device_plugin.__file__).parent)
MOST = 12


def has(value: Any, ids: frozenset[str], depth: int = 2) -> bool:
    """Whether a value is these ids, or a call or grant of them."""
    if isinstance(value, frozenset | list | tuple):
        return all(isinstance(each, str) for each in value) and frozenset(value) == ids
    if not depth or not is_dataclass(value):
        return False
    return any(has(getattr(value, each.name, None), ids, depth - 1) for each in fields(value))


@contextmanager
def followed(ids: frozenset[str]) -> Iterator[tuple[set[str], list[str]]]:
    """Files of the package whose functions get these ids, and those that hand them back to another."""
    entered: set[str] = set()
    returned: list[str] = []

    def note(frame: FrameType, event: str, result: Any) -> None:
        code, back = frame.f_code, frame.f_back
        if not code.co_filename.startswith(PACKAGE):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if event == "call" and any(has(frame.f_locals.get(name), ids) for name in names):
            entered.add(code.co_filename)
        is_left = back is None or back.f_code.co_filename != code.co_filename
        if event == "return" and is_left and has(result, ids):
            returned.append(code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield entered, returned
    finally:
        sys.setprofile(before)


async def test_the_ids_of_an_allocate_pass_through_few_files(short_dir: Path) -> None:
    """Kubelet's messages and the file of grants, which is written by another thread, are two more."""
    wiring = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN).wiring
    ref = PodRef("default", "p", "uid-p")
    amounts = {str(Resource.MEM): 2, str(Resource.CORE): 30}
    spec = PodRequest(ref, (ContainerRequest("main", ContainerKind.APP, 0, amounts),))

    async def listed() -> Sequence[ListedPod]:
        return [ListedPod(PodRef("default", "p"))]

    async def fetch(_namespace: str, _name: str) -> PodRequest | None:
        return spec

    wiring.caller_lookup.sources = Sources(listed, lambda: {ref.key: spec}, fetch)
    free = [text for number in (0, 1) for text in unit_ids(Resource.MEM, number, 15)]
    given = await wiring.calls.prefer(Resource.MEM, free, (), 2)
    with followed(frozenset(given)) as (entered, returned):
        await wiring.calls.allocate(Resource.MEM, given)

    assert sorted(entered)
    assert len(entered) <= MOST, sorted(entered)
    assert len(returned) <= MOST, returned
