"""NVIDIA's names on a real cluster: the sources' own manifests, and NVIDIA's nvidia-smi in their pods.

A node of its own in mode default; each test has an agent of its own, on the cards that it needs.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.agent_image import AgentImage
from tests.e2e.conftest import STATE
from tests.e2e.tenants import cuda_images
from tests.e2e.test_image import NO_HOOKS
from tests.nvidia_smi import NvidiaSmi
from tests.sources.documents import walk
from tests.told import compile_program
from tools.harness.cluster.agent import Agent, AgentDirectories
from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.helm import Helm
from tools.harness.cluster.images import Image
from tools.harness.cluster.node import AGENT_RUN, Node
from tools.harness.cluster.pods import container, pod
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.domain.node.modes import MIG_PROFILE_LABEL
from gpu_device_plugin.nvml.card_session import EXCLUSIVE_PROCESS
from gpu_device_plugin.simulation.simulated_node import STATE_NAME, SimulatedNode

RENAMED = Path("samples/time-slicing/time-slicing.yaml")
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
SEVENTH, HALF = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"
CHOICE = "nvidia.com/device-plugin.config"
CUDA_IMAGE = "docker.io/nvidia/cuda:12.1.1-base-ubuntu22.04"
TEN_ONE_AT_A_TIME = """\
version: v1
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
      - name: nvidia.com/gpu
        replicas: 10
"""
FOUR_BY_MPS = (
    "mps.enabled=true,gfd.enabled=true,config.default=four",
    # Each node of these tests has a directory of its own there.
    "mps.root=/run/gpu-device-plugin/mps",
    "config.map.whole.version=v1,config.map.four.version=v1",
    "config.map.four.sharing.mps.resources[0].name=nvidia.com/gpu",
    "config.map.four.sharing.mps.resources[0].replicas=4",
)
Serve = Callable[..., AbstractContextManager[Agent]]


@pytest.fixture(scope="module")
def node(
    cluster: Cluster, nvidia_smi: NvidiaSmi, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node whose cards are whole, and which knows the sources' image: nvidia-smi and no driver."""
    libraries = [native_library(name) for name in ("libnvidia-ml.so.1", "libgpuslice.so")]
    program = compile_program(tmp_path_factory.mktemp("client"))
    base, _ = cuda_images(program, [nvidia_smi.path, *libraries])
    files = {**base.files, "bin/nvidia-smi": nvidia_smi.path.read_bytes()}
    with cluster.another_node() as further:
        cluster.kubectl("label", "node", further.name, "ack.node.gpu.schedule=default")
        further.load(Image(CUDA_IMAGE, files, base.links, ()))
        yield further


@pytest.fixture
def serve(cluster: Cluster, node: Node, nvidia_smi: NvidiaSmi, results: Path) -> Serve:
    """Runs an agent on the cards of a profile, with NVIDIA's flags by name with underscores."""

    @contextmanager
    def served(profile: str, *cards: str, **flags: str) -> Iterator[Agent]:
        directories = AgentDirectories(STATE / "nvidia" / profile, results / "nvidia", node)
        given = {key.replace("_", "-"): value for key, value in flags.items()}
        place = {"simulator-dir": str(directories.simulated_node), "nvml-library": ""}
        agent = Agent(cluster, directories, {**place, **given})
        agent.prepare("--driver-version", nvidia_smi.driver_version, *cards, profile=profile)
        agent.start()
        try:
            yield agent
        finally:
            cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
            agent.stop()

    return served


def wait_until_offered(cluster: Cluster, node: Node, expected: dict[str, str]) -> None:
    """Return when these of NVIDIA's names are allocatable, and no other above 0."""

    def offered() -> bool:
        told = cluster.get("node", node.name)["status"]["allocatable"]
        return expected == {n: v for n, v in told.items() if n.startswith("nvidia.") and v != "0"}

    wait_for(f"{node.name} offers {expected}", offered, 60, 0.3)


def asking(name: str, resource: str, amount: int) -> dict[str, Any]:
    """A pod with nvidia-smi that asks for so many."""
    limits = {"limits": {resource: str(amount)}}
    return pod(name, container("main", image=CUDA_IMAGE, resources=limits))


def listed(cluster: Cluster, name: str) -> list[str]:
    """The lines of `nvidia-smi -L` in a pod, once it runs."""
    cluster.wait_for_phase(name, "Running")
    return cluster.kubectl("exec", name, "--", "nvidia-smi", "-L").splitlines()


def finished(cluster: Cluster, manifest: dict[str, Any]) -> list[str]:
    """What a pod has printed at its end; it is gone then."""
    cluster.apply(manifest)
    name = manifest["metadata"]["name"]
    cluster.wait_for_phase(name, "Succeeded")
    printed = cluster.kubectl("logs", name).splitlines()
    cluster.kubectl("delete", "pod", name, "--grace-period=1")
    return printed


def test_the_blog_on_time_slicing(
    cluster: Cluster, node: Node, serve: Serve, tmp_path: Path
) -> None:
    """R-304, R-305: the node of one card offers 1, and 4 after the file was written, without a restart."""
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\n")
    card = {"config_file": str(config)}
    with walk("time_slicing", "cluster") as step:
        with serve("v100", "--cards=1", **card) as agent:
            wait_until_offered(cluster, node, {GPU: "1"})
            line = f"GPU 0: Tesla V100-SXM2-16GB (UUID: {agent.uuids()[0]})"
            assert finished(cluster, step("a pod with a GPU").data) == [line]
            config.write_text(step("the file").meaning)
            wait_until_offered(cluster, node, {GPU: "4"})
            names = [f"sliced-{number}" for number in range(4)]
            cluster.apply(*(asking(name, GPU, 1) for name in names))
            assert [listed(cluster, name) for name in names] == [[line]] * 4
        config.write_text(yaml.safe_load(RENAMED.read_text())["data"]["default"])
        with serve("v100", "--cards=1", **card):
            wait_until_offered(cluster, node, {SHARED: "4"})
            assert finished(cluster, step("a pod with a replica").data) == [line]


def test_eighty_replicas_of_eight_cards_and_two_at_once_are_an_unexpected_admission_error(
    cluster: Cluster, node: Node, serve: Serve, tmp_path: Path
) -> None:
    """R-701, R-702: 8 x 10, and NVIDIA's words in the pod's status."""
    config = tmp_path / "config.yaml"
    config.write_text(TEN_ONE_AT_A_TIME)
    with serve("a100", config_file=str(config)):
        wait_until_offered(cluster, node, {GPU: "80"})
        cluster.apply(asking("two", GPU, 2))
        status = cluster.wait_for_phase("two", "Failed")["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert (
            'invalid allocation request for "nvidia.com/gpu": invalid request: maximum request '
            "size for shared resources is 1; found 2"
        ) in status["message"]


def test_the_document_on_instances(cluster: Cluster, node: Node, serve: Serve) -> None:
    """R-207, R-209, R-210: 56 of eight A100, and nvidia-smi -L shows one card with one instance."""
    lists, seen = [], []
    with walk("instances", "cluster") as step:
        assert node.name in cluster.kubectl(*step("the nodes").words())
        shown = step("the node")
        for strategy, resource in (("single", GPU), ("mixed", SEVENTH)):
            manifest = step(f"the pod of strategy {strategy}").data
            seen.append(step(f"nvidia-smi in the pod of strategy {strategy}"))
            with serve("a100-pcie-mig", mig_strategy=strategy):
                wait_until_offered(cluster, node, {resource: "56"})
                told = cluster.kubectl(*shown.words(pool=node.name))
                allocatable = told.partition("Allocatable:")[2].partition("System Info:")[0]
                wanted = f"{resource}: 56".split()
                assert f"Allocatable: {' '.join(wanted)}" in shown.text.splitlines()
                assert wanted in [line.split() for line in allocatable.splitlines()]
                cluster.apply(manifest)
                lists.append("\n".join(listed(cluster, manifest["metadata"]["name"])))
    # The source shows one instance of two strategies, and of the other all that its card has.
    for output in lists:
        seen[-1].check(output)


def test_a_pod_of_two_on_a_dgx_1_gets_the_two_that_are_linked_twice_without_waste(
    cluster: Cluster, node: Node, serve: Serve
) -> None:
    """R-703: cards 0 and 3, as NVIDIA's own choice on its hybrid cube mesh."""
    with serve("dgx-1") as agent:
        wait_until_offered(cluster, node, {GPU: "8"})
        cluster.apply(asking("pair", GPU, 2))
        seen = [line.rpartition("UUID: ")[2].removesuffix(")") for line in listed(cluster, "pair")]
        assert seen == [agent.uuids()[0], agent.uuids()[3]]


@pytest.fixture
def install(
    cluster: Cluster, node: Node, nvidia_smi: NvidiaSmi, agent_image: AgentImage
) -> Iterator[Callable[..., None]]:
    """Installs the chart on that node with these values; all else says which image, node and cards."""
    agent_image.load_into(node)
    helm = Helm(cluster, "nvdp")
    image = (f"image.repository={agent_image.repository}", f"image.tag={agent_image.tag}")
    place = r"nodeSelector.ack\.node\.gpu\.schedule=default"

    def installed(profile: str, *values: str) -> None:
        cards = (
            f"simulate.profile={profile}",
            f"simulate.driverVersion={nvidia_smi.driver_version}",
        )
        helm.install(*values, *image, place, *cards, *NO_HOOKS)

    yield installed
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--grace-period=1")
    helm.uninstall()
    cluster.kubectl("label", "node", node.name, f"{CHOICE}-", f"{MIG_PROFILE_LABEL}-")


def labels(cluster: Cluster, node: Node) -> dict[str, str]:
    """The node's, now."""
    found: dict[str, str] = cluster.get("node", node.name)["metadata"]["labels"]
    return found


def wait_for_event(cluster: Cluster, reason: str, words: str) -> None:
    """Return when an Event of that reason has these words."""
    asked = ("get", "events", "-A", "--field-selector", f"reason={reason}")
    path = "-o=jsonpath={..message}"
    wait_for(f"{reason}: {words}", lambda: words in cluster.kubectl(*asked, path), 60, 0.5)


def test_the_sources_values_for_helm_offer_56_and_write_the_labels(
    cluster: Cluster, node: Node, install: Callable[..., None]
) -> None:
    """R-208: migStrategy and gfd.enabled."""
    install("a100-mig", "migStrategy=single", "gfd.enabled=true")
    wait_until_offered(cluster, node, {GPU: "56"})
    wait_for("the labels are there", lambda: "nvidia.com/mig.strategy" in labels(cluster, node))
    found = labels(cluster, node)
    assert found["nvidia.com/mig.strategy"] == "single"
    assert found["nvidia.com/gpu.count"] == "56"
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"


def test_the_mig_manager_cuts_as_the_label_asks_and_waits_for_the_pod_that_holds_an_instance(
    cluster: Cluster, node: Node, install: Callable[..., None]
) -> None:
    """R-203, R-204: eight whole A100 become 16 halves and, when no pod is left, 56 sevenths."""
    install("a100", "migStrategy=mixed", "migManager.enabled=true")
    wait_until_offered(cluster, node, {GPU: "8"})
    cluster.kubectl("label", "node", node.name, f"{MIG_PROFILE_LABEL}=MIG3g")
    wait_until_offered(cluster, node, {HALF: "16"})
    cluster.apply(asking("holder", HALF, 1))
    card, instance = listed(cluster, "holder")
    assert "MIG 3g.20gb" in instance

    cluster.kubectl("label", "node", node.name, f"{MIG_PROFILE_LABEL}=MIG1g", "--overwrite")
    wait_for_event(cluster, "MigProfileWaits", "default/holder holds GPUs")
    wait_for_event(cluster, "MigProfileRefused", "default/holder hold cards; drain the node")
    wait_until_offered(cluster, node, {HALF: "16"})
    assert listed(cluster, "holder") == [card, instance]
    cluster.kubectl("delete", "pod", "holder", "--grace-period=1")
    wait_until_offered(cluster, node, {SEVENTH: "56"})


def test_replicas_of_mps_are_offered_while_the_daemons_pod_serves_and_cards_are_given_back(
    cluster: Cluster, node: Node, install: Callable[..., None]
) -> None:
    """R-308, R-705: over a kill -9 of the daemon, and a change of the node's label under a client."""
    simulator = node.place.directory / AGENT_RUN / "simulator"
    control = simulator / "nvidia-cuda-mps-control"

    def modes() -> list[int]:
        return [card.compute_mode for card in SimulatedNode(simulator / STATE_NAME).view().cards]

    install("v100", *FOUR_BY_MPS)
    wait_until_offered(cluster, node, {GPU: "16"})
    assert modes() == [EXCLUSIVE_PROCESS] * 4
    cluster.apply(asking("client", GPU, 1))
    cluster.wait_for_phase("client", "Running")
    pipe = cluster.kubectl("exec", "client", "--", "sh", "-c", "ls $CUDA_MPS_PIPE_DIRECTORY")
    assert "nvidia-cuda-mps-control.pid" in pipe.split()

    control.chmod(0o644)  # so that it is seen that nothing is offered before the next start serves
    os.kill(process_of("mps-daemon"), signal.SIGKILL)
    wait_until_offered(cluster, node, {})
    wait_for("the next start undoes the mode", lambda: modes() == [0] * 4)
    control.chmod(0o755)
    wait_until_offered(cluster, node, {GPU: "16"})
    assert modes() == [EXCLUSIVE_PROCESS] * 4

    cluster.kubectl("label", "node", node.name, f"{CHOICE}=whole")
    wait_for_event(cluster, "ConfigurationWaits", "waits for the MPS daemon")
    assert modes() == [EXCLUSIVE_PROCESS] * 4
    cluster.kubectl("delete", "pod", "client", "--grace-period=1")
    wait_until_offered(cluster, node, {GPU: "4"})
    assert modes() == [0] * 4
    wait_for("its label goes", lambda: labels(cluster, node)["nvidia.com/mps.capable"] == "false")


def process_of(command: str) -> int:
    """The only process of our program with that command, as this namespace of processes numbers it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            found += [int(path.parent.name)] * (command.encode() in words)
    (process,) = found
    return process
