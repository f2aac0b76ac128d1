"""An installation from its first day to its last, by the chart and the image, under running jobs.

The tests are the steps of one life, in their order; each leaves the source's two jobs running.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.agent_image import AgentImage
from tests.e2e.image_parts import take_libraries, write_next_version
from tests.e2e.installation import (
    MODE_LABEL,
    OFFERED,
    RELEASE_SECONDS,
    SHARED_RELEASE,
    Installation,
    granted_pods,
)
from tests.e2e.source_jobs import BINPACK, CUDA_SAMPLE, source_job
from tests.e2e.tenants import CUDA_TEST, INSIDE, Tenant, check_capped, cuda_images
from tests.told import compile_program
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.helm import RELEASE, RELEASE_NAMESPACE, left_on_nodes
from tools.harness.cluster.node import AGENT_LIBRARY, AGENT_RUN, AGENT_STATE, Node
from tools.harness.cluster.processes import ProgramError
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.durable import SealedFile
from gpu_device_plugin.disk.grant_file import KIND, VERSION

NEXT_VERSION = "0.2.0"
# Ended from outside it is no success: a Job replaces the pod then.
STAY = "env >/told-environment; trap 'exit 143' TERM; while :; do sleep 1; done"
APPS = {RELEASE: "cuda-sample", SHARED_RELEASE: "binpack-1"}
MARKS = ("gpu-device-plugin/uninstall", "gpu-device-plugin/withdrawn")


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
        libraries = take_libraries(agent_image, tmp_path_factory.mktemp("libraries"))
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
        cluster.kubectl("annotate", "nodes", "--all", *(f"{mark}-" for mark in MARKS))


@pytest.fixture(scope="module")
def life(installation: Installation, agent_image: AgentImage, results: Path) -> Installation:
    """Both releases of the first version, and the source's two jobs at work."""
    jobs = (source_job(CUDA_SAMPLE, STAY, CUDA_TEST), source_job(BINPACK, STAY, CUDA_TEST))
    try:
        for release in OFFERED:
            installation.bring(release, agent_image.tag)
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
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return [(one.get("containerID", ""), one["restartCount"]) for one in statuses]


def test_an_empty_cluster_offers_60_400_4_and_runs_the_sources_jobs(life: Installation) -> None:
    assert life.offered(RELEASE) == OFFERED[RELEASE]
    assert life.offered(SHARED_RELEASE) == OFFERED[SHARED_RELEASE]
    check_works(life)


def library_versions(node: Node) -> set[str]:
    """Versions of the isolation library on a node."""
    return {path.name for path in (node.place.directory / AGENT_LIBRARY).iterdir()}


def test_an_upgrade_restarts_no_container_and_keeps_what_they_have_mounted(
    life: Installation,
) -> None:
    """The new library lies beside the old one, which goes with the last pod that mounts it."""
    node = life.node(RELEASE)
    (old,) = library_versions(node)
    before = {release: running(life, release) for release in OFFERED}
    for release in OFFERED:
        life.bring(release, NEXT_VERSION)
    for release, pod in before.items():
        after = life.cluster.get("pod", pod["metadata"]["name"])
        assert containers(after) == containers(pod), release
    check_works(life)
    (new,) = library_versions(node) - {old}
    assert new.startswith(f"{NEXT_VERSION}-")
    assert old in library_versions(node)
    life.cluster.kubectl("delete", "pod", before[RELEASE]["metadata"]["name"], "--wait=true")
    check_works(life)
    wait_for("the old library is gone", lambda: library_versions(node) == {new}, RELEASE_SECONDS)
    check_works(life)


def test_after_a_reboot_every_container_is_capped_as_before(life: Installation) -> None:
    """The node's /run is empty then, its boot id another one, and no agent is there at first."""
    node, tag = life.cluster.node, life.agent_tag(RELEASE)
    job, agent, boot = running(life, RELEASE), life.agent_pod(RELEASE), boot_id(life.cluster)
    node.power_off()
    pretend_another_boot(node)
    node.power_on()
    wait_for("the node tells of its boot", lambda: boot_id(life.cluster) != boot, 90, 0.5)

    def has_started_again() -> bool:
        return containers(life.agent_pod(RELEASE)) != containers(agent)

    wait_for("the agent has started again", has_started_again, 120, 0.5)
    life.wait_until_served(RELEASE, tag)

    def runs_again() -> bool:
        return containers(running(life, RELEASE)) != containers(job)

    wait_for("the job runs again", runs_again, 180, 0.5)
    check_works(life)


def boot_id(cluster: Cluster) -> str:
    """Which boot of the first node its kubelet tells of."""
    return str(cluster.get("node", NODE)["status"]["nodeInfo"]["bootID"])


def pretend_another_boot(node: Node) -> None:
    """Let the agent's grants be of another boot than the one that the kernel tells containers of."""
    kept = SealedFile(node.place.directory / AGENT_STATE / KIND, KIND, VERSION)
    sealed = kept.read()
    assert sealed is not None
    kept.write([sealed.payload], "the-boot-before")


def test_an_upgrade_to_another_unit_is_refused_and_lists_who_holds_slices(
    life: Installation,
) -> None:
    """The agents go on as they are, and nothing of the hook stays; the other release, of another unit, does not matter (R-402, R-403)."""
    tag, holder = life.agent_tag(RELEASE), running(life, RELEASE)
    agent = life.agent_pod(RELEASE)["metadata"]["uid"]
    other_unit = ("mode=share", "gpuMemoryUnit=128MiB")
    with pytest.raises(ProgramError) as refused:
        life.helm(RELEASE).install(*life.values(RELEASE, tag), *other_unit)
    for words in (f"default/{holder['metadata']['name']}", f"node {NODE}", "GiB", "128MiB"):
        assert words in str(refused.value)
    listed = ("get", "jobs,serviceaccounts,roles", "-n", RELEASE_NAMESPACE, "-o", "name")
    assert f"{RELEASE}-upgrade" not in life.cluster.kubectl(*listed)
    assert life.agent_pod(RELEASE)["metadata"]["uid"] == agent
    assert life.offered(RELEASE) == OFFERED[RELEASE]
    check_works(life)


def test_a_node_is_drained_removed_and_comes_back(life: Installation) -> None:
    """Its agent stays through the drain; the other node's job notices nothing."""
    cluster, second, tag = life.cluster, life.second, life.agent_tag(SHARED_RELEASE)
    other = running(life, RELEASE)
    running(life, SHARED_RELEASE)
    cluster.kubectl("drain", second.name, "--ignore-daemonsets", "--timeout=300s", seconds=330)
    # The scheduler would send its successor to the node of the other kind, again and again.
    cluster.kubectl("scale", "statefulset/binpack", "--replicas=0")
    assert life.agent_tag(SHARED_RELEASE) == tag
    wait_for("its slice has ended", lambda: not granted_pods(second), RELEASE_SECONDS, 1)
    second.power_off()
    cluster.kubectl("delete", "node", second.name)
    wait_for("its agent's pod is gone", lambda: not life.agent_pod(SHARED_RELEASE), 180, 1)
    assert containers(running(life, RELEASE)) == containers(other)
    second.power_on()
    cluster.wait_until_ready(second)
    cluster.kubectl("label", "node", second.name, f"{MODE_LABEL}=share")
    life.wait_until_served(SHARED_RELEASE, tag)
    cluster.kubectl("scale", "statefulset/binpack", "--replicas=1")
    check_works(life)


def test_an_uninstall_leaves_running_jobs_what_they_use_and_cleanup_takes_the_rest(
    life: Installation,
) -> None:
    """The hook waits for the agents; only what a grant names stays, and the resources at 0."""
    node, tag = life.node(RELEASE), life.agent_tag(RELEASE)
    before = {release: running(life, release) for release in OFFERED}
    name = before[RELEASE]["metadata"]["name"]
    told = life.helm(RELEASE).uninstall()
    life.helm(SHARED_RELEASE).uninstall()
    assert not life.cluster.every("daemonset", RELEASE_NAMESPACE)
    assert not left_on_nodes(life.cluster)
    assert set(life.offered(RELEASE).values()) == {"0"}
    assert set(life.offered(SHARED_RELEASE).values()) == {"0"}
    assert granted_pods(node) == {name}, told
    assert len(list((node.place.directory / AGENT_RUN / "slices").iterdir())) == 1
    assert len(library_versions(node)) == 1
    for release, pod in before.items():
        assert containers(running(life, release)) == containers(pod)
    check_works(life)
    for job in ("job/cuda-sample", "statefulset/binpack"):
        life.cluster.kubectl("delete", job, "--cascade=foreground")
    assert "slice" in clean_up(life, node, tag)
    for kept in (AGENT_STATE, AGENT_RUN, AGENT_LIBRARY):
        assert not list((node.place.directory / kept).iterdir()), kept


def clean_up(life: Installation, node: Node, tag: str) -> str:
    """Run the pod of docs/operations/uninstall.md on a node until it ends well; what it said."""
    page = Path("docs/operations/uninstall.md").read_text()
    blocks = page.split("```yaml\n")
    (text,) = [one.partition("```")[0] for one in blocks if "gpu-device-plugin-cleanup" in one]
    body = yaml.safe_load(
        text.replace("IMAGE", f"{life.repository}:{tag}").replace("NODE", node.name)
    )
    life.cluster.apply(body)
    place = ("-n", RELEASE_NAMESPACE, "pod/gpu-device-plugin-cleanup")
    wait = ("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=300s")
    try:
        life.cluster.kubectl(*wait, *place, seconds=330)
    finally:
        said = life.cluster.kubectl("logs", *place)
    life.cluster.kubectl("delete", *place)
    return said
