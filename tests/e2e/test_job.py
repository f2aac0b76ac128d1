"""The source's own Job, with only its image and command replaced, gets its slice of a card."""

import json

import pytest
from tests.e2e.source_jobs import CUDA_SAMPLE, source_job
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import TELL, environment_of

pytestmark = pytest.mark.usefixtures("agent")

SCRIPT = f"{TELL}; cat /run/gpu-device-plugin/config/limits; cat /proc/mounts"


def cards_by_uuid(cluster: Cluster) -> dict[str, int]:
    """UUIDs of the node's cards with the index that NVML gives them."""
    annotations = cluster.get("node", NODE)["metadata"]["annotations"]
    cards = json.loads(annotations["gpu-device-plugin/cards"])["cards"]
    return {card["uuid"]: card["index"] for card in cards}


def test_the_sample_job_runs_with_two_units_and_thirty_percent_of_one_card(
    cluster: Cluster,
) -> None:
    """R-101, R-301; its limits are mounted read-only."""
    cluster.apply(source_job(CUDA_SAMPLE, SCRIPT))
    cluster.kubectl("wait", "--for=condition=complete", "job/cuda-sample", "--timeout=300s")
    log = cluster.kubectl("logs", "-l", "app=cuda-sample", "--tail=-1")
    received = environment_of(log)
    uuid = received["NVIDIA_VISIBLE_DEVICES"]
    assert received["ALIYUN_COM_GPU_MEM_IDX"] == str(cards_by_uuid(cluster)[uuid])
    assert received["ALIYUN_COM_GPU_MEM_DEV"] == "15"
    assert received["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
    assert received["ALIYUN_COM_GPU_MEM_POD"] == "2"
    # 2 of 15 units of 16160 MiB are 2154 MiB.
    assert f"device={uuid} memory_bytes={2154 * 2**20} core_percent=30" in log
    mounts = {fields[1]: fields[3] for line in log.splitlines() if len(fields := line.split()) == 6}
    options = {path: text.split(",")[0] for path, text in mounts.items()}
    assert options["/run/gpu-device-plugin/config"] == "ro"
    assert options["/run/gpu-device-plugin/state/region"] == "rw"
    assert options["/etc/ld.so.preload"] == "ro"
    assert options["/usr/local/lib/gpu-device-plugin/libgpuslice.so"] == "ro"
