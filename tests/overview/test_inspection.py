"""`kubectl inspect cgpu` prints the source's tables byte for byte (R-570), and the unit (R-409)."""

import json
from collections.abc import Sequence

import msgspec
from tools.harness.objects import held, node, pod

from gpu_device_plugin.domain.grants.node_annotations import CARDS_ANNOTATION
from gpu_device_plugin.kubernetes.client.wire import Pod
from gpu_device_plugin.kubernetes.objects.cluster_watch import ClusterNode, ClusterPod
from gpu_device_plugin.kubernetes.objects.pod_spec import pod_request
from gpu_device_plugin.overview.inspection import details, summary
from gpu_device_plugin.overview.node_cards import NodeCards, node_cards

# From "Install and use ack-ai-installer and the GPU scheduling inspection tool".
EMPTY = """\
NAME                       IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.192.168.6.104  192.168.6.104  0/15                   0/15
----------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
0/15 (0%)
"""
# From "Run GPU sharing": two cards of 7 units.
TWO_CARDS = """\
NAME                     IPADDRESS    GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
cn-shanghai.192.168.0.4  192.168.0.4  0/7                    0/7                    0/14
---------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
0/14 (0%)
"""
# From "Monitor and isolate GPU resources".
DETAILS = """\
NAME:       cn-hangzhou.192.168.2.167
IPADDRESS:  192.168.2.167

NAME         NAMESPACE  GPU0(Allocated)
app-3g-v1-0  default    4
app-3g-v1-1  default    4
Allocated :  8 (53%)
Total :      15
--------------------------------------------------------

Allocated/Total GPU Memory In Cluster:  8/15 (53%)
"""


def view(
    name: str,
    memory_mib: Sequence[int],
    pods: Sequence[dict[str, object]] = (),
    unit_mib: int = 1024,
    without: int | None = None,
    *,
    sick: int | None = None,
) -> NodeCards:
    """A node with cards of these sizes; the card of an index may be left out, or be unhealthy."""
    made = node(name, 0, mode="cgpu" if unit_mib == 1024 else "share")
    told = json.loads(made["metadata"]["annotations"][CARDS_ANNOTATION])
    told["unit_mib"] = unit_mib
    told["cards"] = [
        {"index": index, "uuid": f"GPU-{index}", "memory_mib": mib, "healthy": index != sick}
        for index, mib in enumerate(memory_mib)
        if index != without
    ]
    asking = []
    for each in pods:
        parsed = msgspec.convert(each, Pod)
        asking.append(ClusterPod(pod_request(parsed), name, parsed.metadata.annotations or {}, ""))
    return node_cards(ClusterNode(name, json.dumps(told), {}), asking)


def test_the_documented_summaries_are_printed_byte_for_byte() -> None:
    """R-570."""
    one, two = "cn-shanghai.192.168.6.104", "cn-shanghai.192.168.0.4"

    assert summary([view(one, [16160])], {one: "192.168.6.104"}) == EMPTY
    assert summary([view(two, [7611, 7611])], {two: "192.168.0.4"}) == TWO_CARDS


def test_percentages_are_cut_off_not_rounded() -> None:
    """3 of 45 units are 6 %, 3 of 14 are 21 %."""
    pods = [pod("p", 3, on="n", annotations=held(0, 3, 0))]

    assert summary([view("n", [16160] * 3, pods)], {}).endswith("3/45 (6%)\n")
    assert summary([view("n", [15079], pods)], {}).endswith("3/14 (21%)\n")


def test_the_documented_details_are_printed_byte_for_byte() -> None:
    """R-570."""
    name = "cn-hangzhou.192.168.2.167"
    pods = [pod(f"app-3g-v1-{n}", 4, on=name, annotations=held(0, 4, 0)) for n in (1, 0)]
    for each in pods:
        each["metadata"]["namespace"] = "default"

    assert details([view(name, [16160], pods)], {name: "192.168.2.167"}) == DETAILS


def test_nodes_are_divided_by_a_line_and_cards_are_columns() -> None:
    """A pod on two cards has a line for each of them."""
    both = held(0, 3, 0)
    both["scheduler.framework.gpushare.allocation"] = '{"0":{"0":3,"1":3}}'
    both["gpushare.alibabacloud.com/core-percentage"] = "{}"
    asking = pod("p", 6, on="a", annotations=both)
    asking["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    text = details([view("a", [16160] * 2, [asking]), view("b", [16160])], {})

    assert [line.split() for line in text.splitlines() if line.startswith("p ")] == [
        ["p", "ns", "3", "0"],
        ["p", "ns", "0", "3"],
    ]
    assert "\n\nNAME:       b\nIPADDRESS:  unknown\n\n" in text


def test_a_pod_without_a_card_is_pending_and_missing_cards_are_zero() -> None:
    """Nodes with fewer cards than another one have columns too."""
    pods = [pod("waits", 4, on="a")]
    nodes = [view("a", [16160], pods), view("b", [16160, 16160])]
    heading, first, second, *_ = summary(nodes, {"a": "10.0.0.1", "b": "10.0.0.2"}).splitlines()

    assert "PENDING(Allocated)" in heading
    assert first.split() == ["a", "10.0.0.1", "0/15", "0/0", "4", "4/15"]
    assert second.split() == ["b", "10.0.0.2", "0/15", "0/15", "0/30"]


def test_of_an_unhealthy_card_nothing_is_free() -> None:
    """Scripts take total less allocated for what a node can still give."""
    pods = [pod("p", 5, on="n", annotations=held(1, 5, 0))]
    node = view("n", [16160] * 2, pods, sick=1)

    assert summary([node], {}).splitlines()[1].split()[2:] == ["0/15", "5/5", "5/20"]
    assert "Total :      20\n" in details([node], {})


def test_the_heading_names_the_unit_that_is_configured() -> None:
    """Also where a card has more than a hundred units, which the source's tool took for MiB (R-409)."""
    assert "GPU Memory(128MiB)" in summary([view("n", [16160], unit_mib=128)], {})
    assert "GPU Memory(GiB)" in summary([view("n", [143771])], {})
    mixed = [view("n", [16160]), view("m", [16160], unit_mib=128)]
    assert "GPU Memory(128MiB and GiB)" in summary(mixed, {})


def test_a_card_stands_below_its_index_also_where_another_is_left_out() -> None:
    """An agent leaves out a card that it cannot offer, such as one in MIG mode."""
    pods = [pod("p", 5, on="n", annotations=held(2, 5, 0))]
    node = view("n", [16160] * 3, pods, without=1)

    assert summary([node], {}).splitlines()[1].split() == [
        "n",
        "unknown",
        "0/15",
        "0/0",
        "5/15",
        "5/30",
    ]
    listed = details([node], {}).splitlines()
    assert "GPU2(Allocated)" in listed[3]
    assert listed[4].split() == ["p", "ns", "0", "0", "5"]
