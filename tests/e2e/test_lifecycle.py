"""An installation from its first day to its last, by the chart and the image, under running jobs.

The tests are the steps of one life, in their order; each leaves the source's two jobs running.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agent import Agent
from tests.e2e.agent_image import AgentImage
from tests.e2e.cluster.cluster import NODE, Cluster
from tests.e2e.cluster.node import AGENT_LIBRARY, AGENT_RUN, AGENT_STATE, Node
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.helm import RELEASE
from tests.e2e.installation import MODE_LABEL, OFFERED, SHARED_RELEASE, Installation
from tests.e2e.newer_image import write_next_version
from tests.e2e.source_jobs import BINPACK, CUDA_SAMPLE, source_job
from tests.e2e.tenants import CUDA_TEST, INSIDE, Tenant, check_capped, cuda_images
from tests.told import compile_program

from gpu_device_plugin.store.durable import read_sealed, seal, write_durably
from gpu_device_plugin.store.grants import KIND, VERSION
from gpu_device_plugin.store.native import native_library

NEXT_VERSION = "0.2.0"
# Ended from outside it is no success: a Job replaces the pod then.
STAY = "env >/told-environment; trap 'exit 143' TERM; while :; do sleep 1; done"
APPS = {RELEASE: "cuda-sample", SHARED_RELEASE: "binpack-1"}
# A grant ends when the kubelet lacks it twice, 30 s apart.
RELEASE_SECONDS = 150

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def installation(
    cluster: Cluster,
    serving_agent: Agent,
    agent_image: AgentImage,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installation]:
    """Two nodes with the image and no agent; whatever is installed is removed at the end."""
    serving_agent.stop()
    place = tmp_path_factory.mktemp("images")
    with cluster.another_node() as second:
        cluster.kubectl("label", "node", second.name, f"{MODE_LABEL}=share")
        found = Installation(cluster, second, agent_image.repository)
        following = write_next_version(agent_image, NEXT_VERSION, place / "next.tar")
        agent_image.load_into(second)
        libraries = [native_library(n) for n in ("libnvidia-ml.so.1", "libgpuslice.so")]
        program = compile_program(tmp_path_factory.mktemp("client"))
        for node in (cluster.node, second):
            following.load_into(node)
            for image in cuda_images(program, libraries):
                node.load(image)
        yield found
        for kind in ("job", "statefulset"):
            cluster.kubectl("delete", kind, "--all", "--cascade=foreground")
        for release in OFFERED:
            found.helm(release)("uninstall", release, "--ignore-not-found", "--no-hooks", "--wait")


@pytest.fixture(scope="module")
def life(installation: Installation, agent_image: AgentImage, results: Path) -> Installation:
    """Both releases of the first version, and the source's two jobs at work."""
    jobs = (source_job(CUDA_SAMPLE, STAY, CUDA_TEST), source_job(BINPACK, STAY, CUDA_TEST))
    try:
        for release in OFFERED:
            installation.bring(release, agent_image.tag)
            installation.show_cards(release)
        installation.cluster.apply(*jobs)
        check_works(installation)
    except Exception:
        installation.cluster.collect(results / "life")
        raise
    return installation


def running(life: Installation, release: str) -> dict[str, Any]:
    """The pod of a release's job, once it runs and is ready."""

    def found() -> dict[str, Any]:
        for one in life.cluster.every("pod", selector=f"app={APPS[release]}"):
            told = {each["type"]: each["status"] for each in one["status"].get("conditions", [])}
            if told.get("Ready") == "True" and "deletionTimestamp" not in one["metadata"]:
                return one
        return {}

    return wait_for(f"{APPS[release]} runs", found, 180, 0.5)


def check_works(life: Installation) -> None:
    """Assert that both jobs run where they belong, each with the slice that it asked for."""
    timed, shared = (running(life, release) for release in OFFERED)
    assert (timed["spec"]["nodeName"], shared["spec"]["nodeName"]) == (NODE, life.second.name)
    tenant = Tenant(life.cluster, timed["metadata"]["name"])
    check_capped(tenant)
    assert "FAILED" not in tenant.run(f"{INSIDE}/gpu-selftest")
    told = Tenant(life.cluster, shared["metadata"]["name"]).run("cat", "/told-environment")
    assert "ALIYUN_COM_GPU_MEM_CONTAINER=16\n" in told
    assert "ALIYUN_COM_GPU_MEM_DEV=126\n" in told


def containers(pod: dict[str, Any]) -> list[tuple[str, int]]:
    """Which containers a pod has, and how often each was restarted."""
    return [(one["containerID"], one["restartCount"]) for one in pod["status"]["containerStatuses"]]


def test_an_empty_cluster_offers_60_400_4_and_runs_the_sources_jobs(life: Installation) -> None:
    assert life.offered(RELEASE) == OFFERED[RELEASE]
    assert life.offered(SHARED_RELEASE) == OFFERED[SHARED_RELEASE]
    check_works(life)


def library_versions(life: Installation) -> set[str]:
    """Versions of the isolation library on the first node."""
    return {path.name for path in (life.node(RELEASE).place.directory / AGENT_LIBRARY).iterdir()}


def test_an_upgrade_restarts_no_container_and_keeps_what_they_have_mounted(
    life: Installation,
) -> None:
    """The new library lies beside the old one, which goes with the last pod that mounts it."""
    (old,) = library_versions(life)
    before = {release: running(life, release) for release in OFFERED}
    for release in OFFERED:
        life.bring(release, NEXT_VERSION)
    for release, pod in before.items():
        after = life.cluster.get("pod", pod["metadata"]["name"])
        assert containers(after) == containers(pod), release
    check_works(life)
    (new,) = library_versions(life) - {old}
    assert new.startswith(f"{NEXT_VERSION}-")
    assert old in library_versions(life)
    life.cluster.kubectl("delete", "pod", before[RELEASE]["metadata"]["name"], "--wait=true")
    wait_for("the old library is gone", lambda: library_versions(life) == {new}, RELEASE_SECONDS)
    check_works(life)


def test_after_a_reboot_every_container_is_capped_as_before(life: Installation) -> None:
    """The node's /run is empty then, its boot id another one, and no agent is there at first."""
    node = life.cluster.node
    node.power_off()
    pretend_another_boot(node)
    node.power_on()
    assert not any((node.place.directory / AGENT_RUN).iterdir())
    life.cluster.wait_until_ready()
    life.wait_until_served(RELEASE, NEXT_VERSION)
    check_works(life)


def pretend_another_boot(node: Node) -> None:
    """Let the agent's grants be of another boot than the one that the kernel tells containers of."""
    path = node.place.directory / AGENT_STATE / "grants"
    sealed = read_sealed(path, KIND, VERSION)
    assert sealed is not None
    write_durably(path, seal(KIND, VERSION, "the-boot-before", [sealed.payload]))
