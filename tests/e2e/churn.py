"""200 pods with a slice that come and go, for the tests of what they leave behind."""

from functools import partial

from tools.harness.cluster.cluster import Cluster
from tools.harness.cluster.pods import container, pod, slice_of
from tools.harness.cluster.waiting import wait_for

BATCHES = 4
BATCH = 50


def create_and_delete_200_pods(cluster: Cluster) -> None:
    """Run them to their end, 50 at a time, and delete each 50 while the next ones start."""
    body = container("main", "true", resources=slice_of(1, 5))
    for batch in range(BATCHES):
        selector = f"batch=b{batch}"
        made = [pod(f"brief-{batch}-{number}", body) for number in range(BATCH)]
        for each in made:
            each["metadata"]["labels"]["batch"] = f"b{batch}"
        cluster.apply(*made)
        wait_for(f"batch {batch} has run", partial(_have_ended, cluster, selector), 180, 0.5)
        cluster.kubectl("delete", "pod", "-l", selector, "--wait=false")
    cluster.kubectl("delete", "pod", "--all", "--wait=true", seconds=360)


def _have_ended(cluster: Cluster, selector: str) -> bool:
    """Whether all of a batch have; none may fail."""
    found = [each["status"] for each in cluster.every("pod", selector=selector)]
    failed = [status for status in found if status["phase"] == "Failed"]
    assert not failed, failed
    return [status["phase"] for status in found] == ["Succeeded"] * BATCH
