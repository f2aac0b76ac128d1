"""Source documents on a real cluster: the steps of tests/sources that need one, in each document's order.

The sources' images cannot be had. Under their names stand images with programs that print and do what
theirs do (tests/sources/programs). The other two documents are walked through in test_nvidia.py.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.controller.test_webhook import DRIVER, MODEL
from tests.e2e.conftest import STATE
from tests.e2e.submission import Submission
from tests.e2e.tenants import cuda_images
from tests.e2e.test_models import controller, labelled, stored  # noqa: F401 - a fixture
from tests.sources.conftest import PROGRAMS
from tests.sources.documents import Step, walk
from tests.told import compile_program
from tools.harness.cluster.agent import Agent, AgentDirectories, resources
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.images import Image
from tools.harness.cluster.node import Node
from tools.harness.cluster.waiting import wait_for

from gpu_device_plugin.disk.native_library import native_library

ACK = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample"
IMAGES = (
    f"{ACK}:benchmark-tensorflow-2.2.3",
    f"{ACK}:tensorflow-1.5",
    "registry.cn-beijing.aliyuncs.com/acs/tensorflow-mnist-sample:v1.5",
)
SCRIPTS = {
    "bin/bash": '#!/bin/sh\nexec sh "$@"\n',
    "root/run.sh": 'exec bandwidth "$@"\n',
    "gpushare/run.sh": "exec bandwidth --num_batches=500000000 --batch_size=8\n",
}
Serve = Callable[..., AbstractContextManager[Agent]]


@pytest.fixture(scope="module")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the stand-in images, and the only one that takes pods."""
    place = tmp_path_factory.mktemp("stand-ins")
    bandwidth, smi = (compile_program(place, source) for source in PROGRAMS)
    libraries = [native_library(name) for name in ("libnvidia-ml.so.1", "libgpuslice.so")]
    base, _ = cuda_images(bandwidth, [smi, *libraries])
    programs = {"bin/bandwidth": bandwidth, "bin/nvidia-smi": smi, "usr/bin/nvidia-smi": smi}
    files = {name: path.read_bytes() for name, path in programs.items()}
    scripts = {name: text.encode() for name, text in SCRIPTS.items()}
    with cluster.another_node() as further:
        for name in IMAGES:
            further.load(Image(name, {**base.files, **files, **scripts}, base.links, ()))
        cluster.kubectl("cordon", NODE)
        try:
            yield further
        finally:
            cluster.kubectl("uncordon", NODE)


@pytest.fixture
def serve(cluster: Cluster, node: Node, results: Path) -> Serve:
    """Runs an agent in a mode on simulated cards; words are those of `simulate create`."""

    @contextmanager
    def served(mode: str, profile: str, *words: str, **flags: str) -> Iterator[Agent]:
        label = f"ack.node.gpu.schedule={mode}"
        cluster.kubectl("label", "node", node.name, "--overwrite", label)
        directories = AgentDirectories(
            STATE / "sources" / profile / mode, results / "sources", node
        )
        given = {key.replace("_", "-"): value for key, value in flags.items()}
        place = {"simulator-dir": str(directories.simulated_node), "nvml-library": ""}
        agent = Agent(cluster, directories, {**place, **given})
        agent.prepare(*words, profile=profile)
        try:
            agent.start()
            yield agent
        finally:
            everything = "job,statefulset,pod"
            cluster.kubectl("delete", everything, "--all", "--wait=true", "--grace-period=1")
            agent.stop()

    return served


def apply(cluster: Cluster, step: Step, place: Path) -> dict[str, Any]:
    """`kubectl apply -f` as the document says, of its manifest in a file of its name; the manifest."""
    verb, flag, path = step.words() if step.command else ("apply", "-f", f"{step.name}.yaml")
    assert (verb, flag) == ("apply", "-f")
    file = place / Path(path).name
    file.write_text(yaml.safe_dump(step.data))
    cluster.kubectl(verb, flag, str(file))
    return dict(step.data)


def name_of_pod(cluster: Cluster, labels: str) -> str:
    """The only pod with these labels, once it runs."""

    def running() -> str:
        found = cluster.every("pod", selector=labels)
        phases = [each["status"].get("phase") for each in found]
        return str(found[0]["metadata"]["name"]) if phases == ["Running"] else ""

    return wait_for(f"the pod with {labels} runs", running, 180, 0.5)


def test_the_document_on_shared_compute(
    cluster: Cluster, node: Node, serve: Serve, tmp_path: Path
) -> None:
    """R-105, R-113, R-114, R-120: labels, the node, the Job, its pod, its log and its end."""
    with walk("shared_compute", "cluster") as step:
        schedule, mode, placement, policy = step("labels of the node pool").text.split()
        assert schedule == "ack.node.gpu.schedule"
        cluster.kubectl("label", "node", node.name, "--overwrite", f"{placement}={policy}")
        with serve(mode, "v100", "--driver-version", "450.102.04") as agent:
            shown = step("the node")
            wanted = shown.data["status"]
            what = f"{node.name} offers what the source shows"
            wait_for(
                what, lambda: resources(cluster, "allocatable", node.name) == wanted["allocatable"]
            )
            told = yaml.safe_load(cluster.kubectl(*shown.words(node=node.name)))["status"]
            for side in ("allocatable", "capacity"):
                assert {k: v for k, v in told[side].items() if k.startswith("aliyun.")} == wanted[
                    side
                ]

            apply(cluster, step("the job"), tmp_path)
            pod = name_of_pod(cluster, "app=cuda-sample")
            runs = step("the job's pod")
            wait_for("the pod is ready", lambda: runs.shows(cluster.kubectl(*runs.words())))
            assert [grant.pod.name for grant in agent.grants()] == [pod]
            log = step("the log")
            words = [word for word in log.words(pod=pod) if word != "-f"]  # it has no end
            lines = len(log.meaning.splitlines())

            def written() -> list[str]:
                found = cluster.kubectl(*words).splitlines()
                return found[:lines] if len(found) >= lines else []

            log.check("\n".join(wait_for("the Job has logged as much", written)))
            cluster.kubectl(*step("the end of the job").words())
            wait_for("its pod is gone", lambda: not cluster.every("pod"), 60, 0.3)


def test_the_document_on_the_unit(
    cluster: Cluster, node: Node, serve: Serve, tmp_path: Path
) -> None:
    """R-401, R-408: the StatefulSet of the source as it is, in units of 128 MiB."""
    with walk("unit", "cluster") as step, serve("share", "v100", memory_unit="128MiB") as agent:

        def offered() -> bool:
            found = resources(cluster, "allocatable", node.name)
            return found.get("aliyun.com/gpu-mem") == str(4 * 126)

        wait_for("the node offers small units", offered)
        manifest = apply(cluster, step("the StatefulSet"), tmp_path)
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        pod = name_of_pod(cluster, f"app={labels['app']}")
        values = step("the memory of its pod").data
        assert values["units"] * values["MiB"] == values["GiB"] * 1024
        environment = cluster.kubectl("exec", pod, "--", "env").splitlines()
        assert f"ALIYUN_COM_GPU_MEM_CONTAINER={values['units']}" in environment
        assert "ALIYUN_COM_GPU_MEM_DEV=126" in environment
        assert [grant.pod.name for grant in agent.grants()] == [pod]


@pytest.mark.usefixtures("controller")
def test_the_document_on_models_and_drivers(
    cluster: Cluster, node: Node, serve: Serve, tmp_path: Path
) -> None:
    """R-006, R-012, R-013: drivers by label, the profile, the pod, and nvidia-smi in it.

    The last of this node: the kubelet names its resource for minutes, which agents of slices refuse to stand beside.
    """
    with walk("model_and_driver", "cluster") as step:
        (key,) = re.findall(r"\[ *(\S+)\]", step("field of the driver").text)
        asking = labelled("other", model="T4", compute_class="gpu")
        asking["metadata"]["labels"][key] = "999"
        step("drivers that are served")
        assert "'999' is not served for T4. Served: " in Submission(cluster).create(asking).text
        apply(cluster, step("the profile"), tmp_path)
        hpn = labelled("hpn", compute_class="gpu-hpn")

        def driver() -> str:
            return str(stored(cluster, hpn)["metadata"]["labels"].get(DRIVER))

        wait_for("the profile counts", lambda: driver() == "1.5.0", 30, 0.3)
        wanted = {MODEL: "T4", DRIVER: "535.161.08"}
        with serve("default", "t4", "--cards=1", "--driver-version", wanted[DRIVER]):

            def labels() -> dict[str, str]:
                return dict(cluster.get("node", node.name)["metadata"]["labels"])

            wait_for("the node is labelled", lambda: wanted.items() <= labels().items(), 60, 0.3)
            name = apply(cluster, step("the pod"), tmp_path)["metadata"]["name"]
            cluster.wait_for_phase(name, "Running")
            shown, table = step("the pod runs"), step("nvidia-smi in the pod")
            wait_for("the pod is ready", lambda: shown.shows(cluster.kubectl(*shown.words())))
            printed = cluster.kubectl(*table.words())
            table.check(printed.partition("\n\n")[0].split("\n", 1)[1])
