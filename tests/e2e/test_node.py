"""Four simulated V100s are what the node offers and what its labels say."""

import json

import pytest
from tools.harness.cluster.agent import resources
from tools.harness.cluster.cluster import NODE, Cluster
from tools.harness.cluster.pods import FOUR_CARDS
from tools.harness.cluster.waiting import wait_for

pytestmark = pytest.mark.usefixtures("agent")


def test_four_cards_of_16160_mib_are_60_400_4_in_capacity_and_allocatable(cluster: Cluster) -> None:
    """R-108, R-109."""
    assert resources(cluster, "allocatable") == FOUR_CARDS
    assert resources(cluster, "capacity") == FOUR_CARDS


def test_labels_and_annotation_describe_the_cards(cluster: Cluster) -> None:
    """R-510."""

    def published() -> bool:
        return "gpu-device-plugin/cards" in cluster.get("node", NODE)["metadata"]["annotations"]

    wait_for("the cards are published", published)
    metadata = cluster.get("node", NODE)["metadata"]
    labels = metadata["labels"]
    assert labels["aliyun.accelerator/nvidia_count"] == "4"
    assert labels["aliyun.accelerator/nvidia_mem"] == "16160MiB"
    assert labels["aliyun.accelerator/nvidia_name"] == "Tesla-V100-SXM2-16GB"
    cards = json.loads(metadata["annotations"]["gpu-device-plugin/cards"])
    assert cards["mode"] == "core_mem"
    assert [card["units"] for card in cards["cards"]] == [15, 15, 15, 15]
    assert [card["index"] for card in cards["cards"]] == [0, 1, 2, 3]
