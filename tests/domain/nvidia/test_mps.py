"""Replicas of MPS have a server with limits, and are offered only while a daemon serves just these."""

import pytest
from tests.domain.nvidia.nodes import whole

from gpu_device_plugin.domain.container_edits import ContainerEdits
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    GPU,
    Configuration,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.schemes.nvidia.mps import (
    as_client,
    served_text,
    servers,
    while_served,
)
from gpu_device_plugin.domain.schemes.nvidia.offers import Offers, offers

ROOT = "/run/nvidia/mps"


def configured(replicas: int, kind: SharingKind = SharingKind.MPS) -> Configuration:
    return Configuration(sharing=Sharing(kind, (SharedResource(GPU, replicas),)), mps_root=ROOT)


def offered(cards: int, replicas: int) -> Offers:
    return offers(whole(cards), configured(replicas))


def test_a_server_is_told_of_each_card_by_its_place_and_of_the_threads() -> None:
    """R-705, with its numbers: the total divided by the replicas in MiB, and 100 by the replicas."""
    (server,) = servers(offered(2, 10).resources)

    assert server.commands == (
        "set_default_device_pinned_mem_limit 0 4096M",
        "set_default_device_pinned_mem_limit 1 4096M",
        "set_default_active_thread_percentage 10",
    )


@pytest.mark.parametrize(
    ("served_cards", "served_replicas", "problem"),
    [
        (2, 4, ""),
        (3, 4, ""),  # a card has gone since
        (1, 4, "serves another configuration"),
        (2, 5, "serves another configuration"),
        (0, 4, "does not serve yet"),
    ],
)
def test_replicas_are_offered_only_as_they_are_served(
    served_cards: int, served_replicas: int, problem: str
) -> None:
    """Two cards with four replicas each are to be offered."""
    served = served_text(offered(served_cards, served_replicas).resources)
    found = while_served(offered(2, 4), configured(4), served)

    assert problem in found.problem
    assert bool(found.problem) is bool(problem)
    assert len(found.resources.get(GPU, ())) == (0 if problem else 8)


def test_time_slicing_needs_no_daemon() -> None:
    sliced = configured(4, SharingKind.TIME_SLICING)

    assert while_served(offers(whole(1), sliced), sliced, "").resources


def test_a_daemon_that_has_not_given_its_cards_back_serves_none_of_them() -> None:
    found = while_served(offered(2, 4), configured(4), "GPU-0\nGPU-1\n")

    assert found.problem == f"the MPS daemon of {ROOT} does not serve yet"


@pytest.mark.parametrize(
    "served", [served_text(offered(1, 4).resources), "GPU-0"], ids=["serves", "has it still"]
)
def test_a_card_that_the_daemon_has_not_given_back_waits(served: str) -> None:
    """It is in exclusive mode still; the other one is offered."""
    sliced = configured(4, SharingKind.TIME_SLICING)
    found = while_served(offers(whole(2), sliced), sliced, served)

    assert {each.card.uuid for each in found.resources[GPU]} == {"GPU-1"}
    assert found.waiting == (
        f"card 0 (GPU-0) waits for the MPS daemon of {ROOT}, which still serves it",
    )
    assert not found.problem


def test_a_client_keeps_what_it_has_and_finds_the_server_of_its_resource() -> None:
    """R-705: its pipe directory and shared memory, from the daemon's directory on the host."""
    edits = as_client(ContainerEdits(envs={"A": "b"}), "nvidia.com/gpu.shared", ROOT + "/")

    assert edits.envs == {
        "A": "b",
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe",
    }
    assert [(m.container_path, m.host_path, m.is_read_only) for m in edits.mounts] == [
        ("/mps/nvidia.com/gpu.shared/pipe", f"{ROOT}/nvidia.com/gpu.shared/pipe", False),
        ("/dev/shm", f"{ROOT}/shm", False),  # noqa: S108 - a path in the container
    ]
