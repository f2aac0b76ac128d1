"""What the service decides is what the kubelet hears, refusals word for word."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from tests.kubelet.rig import CORE, MEM, Rig, container, pod

from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.node.pods import ContainerKind
from gpu_device_plugin.errors import (
    ClusterError,
    DoesNotFitError,
    GpuPluginError,
    KubeletError,
    NodeError,
    RequestError,
    StateError,
    StorageError,
    UnknownPodError,
)
from gpu_device_plugin.kubelet.device_plugin_servicer import status_of

WORDS = "pod default/p container main asks 7 %: only 5, 10, … 100 % can be had"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestError("x", reason="X"), grpc.StatusCode.INVALID_ARGUMENT),
        (DoesNotFitError("x", reason="X"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnknownPodError("x", reason="X"), grpc.StatusCode.FAILED_PRECONDITION),
        (NodeError("x", reason="X"), grpc.StatusCode.UNAVAILABLE),
        (KubeletError("x"), grpc.StatusCode.UNAVAILABLE),
        (ClusterError("x"), grpc.StatusCode.UNAVAILABLE),
        (StorageError("x"), grpc.StatusCode.UNAVAILABLE),
        (StateError("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_each_error_has_its_status(error: GpuPluginError, expected: grpc.StatusCode) -> None:
    """One table, by the nearest class."""
    assert status_of(error) is expected


async def test_a_container_receives_the_answer_of_its_resources(rig: Rig) -> None:
    """Environment and mounts arrive at its start, and each resource was asked once."""
    await rig.serve()
    admission = await rig.kubelet.admit(pod("p", container(mem=2, core=30)))
    start = await rig.kubelet.start_container("uid-p", "main")

    assert admission.is_admitted
    assert start.env["FROM"] in {MEM, CORE}
    assert set(start.mounts) == {"/in/the/container"}
    assert start.mounts["/in/the/container"][1]
    made = [(call, resource) for call, resource, _ in rig.service.calls]
    assert sorted(made) == sorted(
        (call, resource)
        for call in ("prefer", "allocate", "pre_start")
        for resource in (Resource.MEM, Resource.CORE)
    )


async def test_the_preferred_units_are_the_ones_given(rig: Rig) -> None:
    """Exactly as many as asked: the kubelet takes all of them."""
    await rig.serve(units=15, cards=4)

    async def second_card(available: Sequence[str], _must: Sequence[str], size: int) -> list[str]:
        return sorted(text for text in available if text[1] == "1")[:size]

    rig.service.choose = second_card
    await rig.kubelet.admit(pod("p", container(mem=2, core=5)))
    held = rig.kubelet.held("uid-p")

    assert held["main", MEM] == {"m10", "m11"}
    assert held["main", CORE] == {"c10", "c11", "c110", "c111", "c112"}


@pytest.mark.parametrize("place", ["prefer", "allocate"])
async def test_a_refusal_reaches_the_pods_message_word_for_word(rig: Rig, place: str) -> None:
    """Out of either call."""
    await rig.serve()

    async def refuse(*_: object) -> list[str]:
        raise RequestError(WORDS, reason="BadPercentage")

    async def refuse_allocate(*_: object) -> None:
        await refuse()

    if place == "prefer":
        rig.service.choose = refuse
    else:
        rig.service.before_allocate = refuse_allocate
    admission = await rig.kubelet.admit(pod("p", container(mem=1)))

    assert not admission.is_admitted
    assert admission.reason == "UnexpectedAdmissionError"
    assert f"rpc error: code = InvalidArgument desc = {WORDS}" in admission.message


async def test_a_refusal_at_the_start_of_a_container_stops_it(rig: Rig) -> None:
    """PreStartContainer is the second guard; the kubelet tries again later."""
    await rig.serve()
    await rig.kubelet.admit(pod("p", container(mem=1)))

    async def refuse(_: str) -> None:
        raise NodeError("its files are gone", reason="FilesMissing")

    rig.service.before_start = refuse
    with pytest.raises(KubeletError, match=r"PreStartContainer rpc failed.*its files are gone"):
        await rig.kubelet.start_container("uid-p", "main")
    rig.service.before_start = None

    assert (await rig.kubelet.start_container("uid-p", "main")).env["FROM"] == MEM


async def test_a_service_that_hangs_is_answered_for(rig: Rig) -> None:
    """The kubelet would wait for ever, and every pod of the node with it."""
    await rig.serve()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    rig.service.before_allocate = hang
    admission = await rig.kubelet.admit(pod("p", container(mem=1)))

    assert not admission.is_admitted
    assert "DeadlineExceeded" in admission.message
    assert f"Allocate of {MEM}: no answer after 4 s" in admission.message


async def test_an_error_nobody_foresaw_refuses_and_the_next_pod_is_served(rig: Rig) -> None:
    """A bug in the service is a failed call, not a dead endpoint."""
    await rig.serve()

    async def stumble(*_: object) -> None:
        raise ValueError("a bug")

    rig.service.before_allocate = stumble
    first = await rig.kubelet.admit(pod("p", container(mem=1)))
    rig.service.before_allocate = None
    second = await rig.kubelet.admit(pod("q", container(mem=1)))

    assert not first.is_admitted
    assert second.is_admitted


async def test_units_of_an_init_container_are_taken_over_without_being_asked(rig: Rig) -> None:
    """The kubelet skips GetPreferredAllocation: Allocate alone is called for the app container."""
    await rig.serve()
    await rig.kubelet.admit(
        pod("p", container("first", mem=3, kind=ContainerKind.INIT), container(mem=3))
    )
    calls = [(call, ids) for call, _, ids in rig.service.calls]
    held = rig.kubelet.held("uid-p")

    assert [call for call, _ in calls] == ["prefer", "allocate", "allocate"]
    assert set(calls[1][1]) == set(calls[2][1]) == held["main", MEM] == held["first", MEM]


async def test_a_preference_that_names_9024_units_arrives(rig: Rig) -> None:
    """The server takes messages of any size."""
    await rig.serve(units=1128, cards=8)
    admission = await rig.kubelet.admit(pod("p", container(mem=1128)))

    assert admission.is_admitted
    assert len(rig.service.calls[0][2]) == 9024
