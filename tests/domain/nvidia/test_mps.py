"""Replicas of MPS have a server with limits, and are offered only while a daemon serves just these."""

from dataclasses import replace

import pytest
from tests.domain.nvidia.nodes import whole

from gpu_device_plugin.domain.grants.container_edits import ContainerEdits
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    Configuration,
    Devices,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.mps import as_client, limit_to_served, served_text, servers
from gpu_device_plugin.domain.nvidia.offers import Offers, offers

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
        (2, 5, "serves another configuration"),
        (0, 4, "does not serve yet"),
    ],
)
def test_replicas_are_offered_only_as_they_are_served(
    served_cards: int, served_replicas: int, problem: str
) -> None:
    """Two cards with four replicas each are to be offered."""
    served = served_text(offered(served_cards, served_replicas).resources)
    found = limit_to_served(offered(2, 4), configured(4), ROOT, served)

    assert problem in found.problem
    assert bool(found.problem) is bool(problem)
    assert len(found.resources.get(GPU, ())) == (0 if problem else 8)


def test_a_card_that_came_since_the_daemon_began_waits_and_keeps_no_other() -> None:
    """The daemon serves it when no pod holds a replica of the others."""
    served = served_text(offered(1, 4).resources)
    found = limit_to_served(offered(2, 4), configured(4), ROOT, served)

    assert {each.card.uuid for each in found.resources[GPU]} == {"GPU-0"}
    assert found.waiting == (
        f"card 1 (GPU-1) waits for the MPS daemon of {ROOT}, which does not serve it yet",
    )
    assert not found.problem


def test_a_node_without_replicas_says_what_its_daemon_waits_for() -> None:
    """In the daemon's words."""
    found = limit_to_served(offered(2, 4), configured(4), ROOT, "", "process 7 uses card 0")

    assert found.problem == f"the MPS daemon of {ROOT} does not serve yet: process 7 uses card 0"


def test_time_slicing_needs_no_daemon() -> None:
    sliced = configured(4, SharingKind.TIME_SLICING)

    assert limit_to_served(offers(whole(1), sliced), sliced, ROOT, "").resources


def test_a_daemon_that_has_not_given_its_cards_back_serves_none_of_them() -> None:
    found = limit_to_served(offered(2, 4), configured(4), ROOT, "GPU-0\nGPU-1\n")

    assert found.problem == f"the MPS daemon of {ROOT} does not serve yet"


@pytest.mark.parametrize(
    "served", [served_text(offered(1, 4).resources), "GPU-0"], ids=["serves", "has it still"]
)
def test_a_card_that_the_daemon_has_not_given_back_waits(served: str) -> None:
    """It is in exclusive mode still; the other one is offered."""
    sliced = replace(configured(4, SharingKind.TIME_SLICING), mps_root="")  # no longer named
    found = limit_to_served(offers(whole(2), sliced), sliced, ROOT, served)

    assert {each.card.uuid for each in found.resources[GPU]} == {"GPU-1"}
    assert found.waiting == (
        f"card 0 (GPU-0) waits for the MPS daemon of {ROOT}, which has not given it back",
    )
    assert not found.problem


def test_a_card_that_is_shared_no_more_waits_beside_one_that_is() -> None:
    """The daemon serves both until no pod holds a replica; who got the whole card could not use it."""

    def shared(count: int) -> Configuration:
        entry = SharedResource(GPU, 4, f"{GPU}.shared", Devices(count))
        return replace(configured(4), sharing=Sharing(SharingKind.MPS, (entry,)))

    served = served_text(offers(whole(3), shared(2)).resources)
    found = limit_to_served(offers(whole(3), shared(1)), shared(1), ROOT, served)

    given = {name: {each.card.uuid for each in them} for name, them in found.resources.items()}
    assert given == {f"{GPU}.shared": {"GPU-0"}, GPU: {"GPU-2"}}
    assert [text.split()[:3] for text in found.waiting] == [["card", "1", "(GPU-1)"]]


def test_a_daemon_of_another_directory_serves_no_client_of_this_one() -> None:
    """`mpsRoot` was changed while it served."""
    served = served_text(offered(2, 4).resources)
    found = limit_to_served(offered(2, 4), configured(4), "/run/before", served)

    assert found.problem == (
        f"the MPS daemon of {ROOT} does not serve yet: that of /run/before has not given its cards back"
    )


def test_a_client_keeps_what_it_has_and_finds_the_server_of_its_resource() -> None:
    """R-705: its pipe directory and shared memory, from the daemon's directory on the host."""
    edits = as_client(ContainerEdits(envs={"A": "b"}), "nvidia.com/gpu.shared", ROOT + "/")

    assert edits.envs == {"A": "b", "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu.shared/pipe"}
    assert [(m.container_path, m.host_path, m.is_read_only) for m in edits.mounts] == [
        ("/mps/nvidia.com/gpu.shared/pipe", f"{ROOT}/nvidia.com/gpu.shared/pipe", False),
        ("/dev/shm", f"{ROOT}/shm", False),  # noqa: S108 - a path in the container
    ]
