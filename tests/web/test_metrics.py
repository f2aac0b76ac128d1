"""Names, labels and values of the metrics are an interface; what is gone leaves no series."""

from gpu_device_plugin.domain.node.state import UnitCount
from gpu_device_plugin.web.agent_metrics import AgentMetrics, CardSample, SliceSample, Snapshot

GOLDEN = """\
# HELP gpu_device_plugin_build_info Version of the running agent.
# TYPE gpu_device_plugin_build_info gauge
gpu_device_plugin_build_info{version="1.2.3"} 1.0
# HELP gpu_device_plugin_card_healthy Whether the card is in service.
# TYPE gpu_device_plugin_card_healthy gauge
gpu_device_plugin_card_healthy{card="0",uuid="GPU-a"} 1.0
gpu_device_plugin_card_healthy{card="1",uuid="GPU-b"} 0.0
# HELP gpu_device_plugin_card_fault Why a card is out of service.
# TYPE gpu_device_plugin_card_fault gauge
gpu_device_plugin_card_fault{card="1",reason="XID79",uuid="GPU-b"} 1.0
# HELP gpu_device_plugin_card_memory_unexplained_bytes Memory of a card in use that no slice on it accounts for.
# TYPE gpu_device_plugin_card_memory_unexplained_bytes gauge
gpu_device_plugin_card_memory_unexplained_bytes{card="0",uuid="GPU-a"} 0.0
# HELP gpu_device_plugin_card_allocation_api API by which pods ask for the card.
# TYPE gpu_device_plugin_card_allocation_api gauge
gpu_device_plugin_card_allocation_api{api="dra",card="0",uuid="GPU-a"} 1.0
# HELP gpu_device_plugin_card_memory_enforcer Who holds new slices of the card to their memory, how or why.
# TYPE gpu_device_plugin_card_memory_enforcer gauge
gpu_device_plugin_card_memory_enforcer{card="0",enforcer="driver (dmem)",uuid="GPU-a"} 1.0
# HELP gpu_device_plugin_units Units of a resource on a card.
# TYPE gpu_device_plugin_units gauge
gpu_device_plugin_units{card="0",resource="aliyun.com/gpu-mem",state="free",uuid="GPU-a"} 13.0
gpu_device_plugin_units{card="0",resource="aliyun.com/gpu-mem",state="held",uuid="GPU-a"} 2.0
# HELP gpu_device_plugin_node_fault What keeps the whole node from serving.
# TYPE gpu_device_plugin_node_fault gauge
gpu_device_plugin_node_fault{reason="OtherPlugin"} 1.0
# HELP gpu_device_plugin_slice_memory_limit_bytes Memory of a card that a container may use.
# TYPE gpu_device_plugin_slice_memory_limit_bytes gauge
gpu_device_plugin_slice_memory_limit_bytes{card="0",container="c",namespace="ns",pod="p"} 2.258632704e+09
# HELP gpu_device_plugin_slice_core_percent Percent of a card's compute that a container may use; 0 is no cap.
# TYPE gpu_device_plugin_slice_core_percent gauge
gpu_device_plugin_slice_core_percent{card="0",container="c",namespace="ns",pod="p"} 30.0
# HELP gpu_device_plugin_slice_claim The claim (DRA) that holds a slice.
# TYPE gpu_device_plugin_slice_claim gauge
gpu_device_plugin_slice_claim{card="0",claim="slice-2-30-c0",container="c",namespace="ns",pod="p"} 1.0
# HELP gpu_device_plugin_slice_enforcers Who holds a slice to its memory, and to its share of compute.
# TYPE gpu_device_plugin_slice_enforcers gauge
gpu_device_plugin_slice_enforcers{card="0",compute="library",container="c",memory="library",namespace="ns",pod="p"} 1.0
# HELP gpu_device_plugin_slice_memory_used_bytes Memory of a card that a container uses, contexts included.
# TYPE gpu_device_plugin_slice_memory_used_bytes gauge
gpu_device_plugin_slice_memory_used_bytes{card="0",container="c",namespace="ns",pod="p"} 3.53370112e+08
# HELP gpu_device_plugin_slice_core_used_ratio Share of a card's time that a container with a compute cap used recently, 0 to 1.
# TYPE gpu_device_plugin_slice_core_used_ratio gauge
gpu_device_plugin_slice_core_used_ratio{card="0",container="c",namespace="ns",pod="p"} 0.25
# HELP gpu_device_plugin_slice_refused_total Allocations refused because the container's slice was full.
# TYPE gpu_device_plugin_slice_refused_total counter
gpu_device_plugin_slice_refused_total{card="0",container="c",namespace="ns",pod="p"} 3.0
# HELP gpu_device_plugin_reconcile_drift Differences from the kubelet that the last reconcile found.
# TYPE gpu_device_plugin_reconcile_drift gauge
gpu_device_plugin_reconcile_drift 1.0
# HELP gpu_device_plugin_api_reachable Whether the API server answers.
# TYPE gpu_device_plugin_api_reachable gauge
gpu_device_plugin_api_reachable 1.0
# HELP gpu_device_plugin_ready Whether /readyz answers 200.
# TYPE gpu_device_plugin_ready gauge
gpu_device_plugin_ready 1.0
# HELP gpu_device_plugin_allocate_seconds Time to answer Allocate.
# TYPE gpu_device_plugin_allocate_seconds histogram
gpu_device_plugin_allocate_seconds_bucket{le="0.0005"} 0.0
gpu_device_plugin_allocate_seconds_bucket{le="0.001"} 0.0
gpu_device_plugin_allocate_seconds_bucket{le="0.002"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.005"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.01"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.025"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.05"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.1"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.25"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="0.5"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="1.0"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="2.5"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="5.0"} 1.0
gpu_device_plugin_allocate_seconds_bucket{le="+Inf"} 1.0
gpu_device_plugin_allocate_seconds_count 1.0
gpu_device_plugin_allocate_seconds_sum 0.0015
# HELP gpu_device_plugin_allocations_total Allocate and GetPreferredAllocation decisions.
# TYPE gpu_device_plugin_allocations_total counter
gpu_device_plugin_allocations_total{outcome="granted",reason="",resource="aliyun.com/gpu-mem"} 1.0
gpu_device_plugin_allocations_total{outcome="refused",reason="NoRoom",resource="aliyun.com/gpu-mem"} 2.0
# HELP gpu_device_plugin_registrations_total Registrations with the kubelet.
# TYPE gpu_device_plugin_registrations_total counter
gpu_device_plugin_registrations_total{resource="aliyun.com/gpu-mem"} 1.0
# HELP gpu_device_plugin_card_changes_total Changes of a card's health.
# TYPE gpu_device_plugin_card_changes_total counter
gpu_device_plugin_card_changes_total{reason="XID79",uuid="GPU-b"} 1.0
# HELP gpu_device_plugin_nvml_restarts_total Restarts of the NVML child process.
# TYPE gpu_device_plugin_nvml_restarts_total counter
gpu_device_plugin_nvml_restarts_total 1.0
# HELP gpu_device_plugin_claims_total Calls to prepare a claim (DRA).
# TYPE gpu_device_plugin_claims_total counter
gpu_device_plugin_claims_total{outcome="granted",reason=""} 1.0
# HELP gpu_device_plugin_slice_repairs_total Repairs of slices, by what was wrong.
# TYPE gpu_device_plugin_slice_repairs_total counter
gpu_device_plugin_slice_repairs_total{reason="RegionGrown"} 1.0
# HELP gpu_device_plugin_state_files_set_aside_total Files of the state directory that could not be trusted.
# TYPE gpu_device_plugin_state_files_set_aside_total counter
gpu_device_plugin_state_files_set_aside_total 1.0
# HELP gpu_device_plugin_events_dropped_total Kubernetes Events that could not be written.
# TYPE gpu_device_plugin_events_dropped_total counter
gpu_device_plugin_events_dropped_total 1.0
"""
MEM = "aliyun.com/gpu-mem"


def ours(metrics: AgentMetrics, accept: str = "", *, is_ready: bool = False) -> str:
    """The page without the process metrics, whose values nobody can foretell."""
    page, _ = metrics.page(accept, is_ready=is_ready)
    lines = page.decode().splitlines(keepends=True)
    return "".join(line for line in lines if "process_" not in line.split("{")[0][:20])


def test_the_page_is_the_golden_one() -> None:
    """One of everything."""
    metrics = AgentMetrics("1.2.3")
    metrics.publish(
        Snapshot(
            cards=(
                CardSample(
                    0,
                    "GPU-a",
                    is_healthy=True,
                    units=(UnitCount(MEM, 13, 2),),
                    unexplained_bytes=0,
                    api="dra",
                    enforcer="driver (dmem)",
                ),
                CardSample(1, "GPU-b", is_healthy=False, reason="XID79"),
            ),
            slices=(
                SliceSample(
                    "ns", "p", "c", 0, 2154 * 2**20, 30, 337 * 2**20, 0.25, 3, "slice-2-30-c0"
                ),
            ),
            drift=1,
            is_api_reachable=True,
            faults=("OtherPlugin",),
        )
    )
    metrics.observe_allocate(0.0015)
    metrics.count("allocations", MEM, "granted")
    metrics.count("allocations", MEM, "refused", "NoRoom")
    metrics.count("allocations", MEM, "refused", "NoRoom")
    metrics.count("claims", "granted")
    metrics.count("registrations", MEM)
    metrics.count("card_changes", "GPU-b", "XID79")
    metrics.show_nvml_restarts(1)
    metrics.count("slice_repairs", "RegionGrown")
    metrics.count("state_files_set_aside")
    metrics.count("events_dropped")

    assert ours(metrics, is_ready=True) == GOLDEN


def test_what_a_new_snapshot_lacks_leaves_no_series() -> None:
    """A pod that is gone and a card that was unplugged are not remembered."""
    metrics = AgentMetrics("1.2.3")
    card = CardSample(0, "GPU-a", is_healthy=True)
    metrics.publish(Snapshot((card,), (SliceSample("ns", "p", "c", 0, 1, 30),)))
    assert 'uuid="GPU-a"' in ours(metrics)
    assert 'pod="p"' in ours(metrics)

    metrics.publish(Snapshot())

    assert 'uuid="' not in ours(metrics)
    assert 'pod="' not in ours(metrics)
    assert "api_reachable" not in ours(metrics)


def test_a_slice_whose_use_nobody_knows_has_no_series_of_use() -> None:
    """A nought would say that the container uses nothing."""
    metrics = AgentMetrics("1.2.3")
    metrics.publish(Snapshot((), (SliceSample("ns", "p", "c", 0, 1, 30),)))

    assert "slice_memory_limit_bytes{" in ours(metrics)
    for name in ("memory_used_bytes", "core_used_ratio", "refused_total"):
        assert f"slice_{name}{{" not in ours(metrics)


def test_two_agents_in_one_process_do_not_share_a_count() -> None:
    """The registry is its own, so that tests and the demo can run several nodes."""
    one, other = AgentMetrics("1"), AgentMetrics("1")

    one.show_nvml_restarts(1)

    assert "nvml_restarts_total 1.0" in ours(one)
    assert "nvml_restarts_total 0.0" in ours(other)


def test_readiness_is_of_the_scrape() -> None:
    """What was true a minute ago is of no use to an alert."""
    metrics = AgentMetrics("1")

    assert "gpu_device_plugin_ready 1.0" in ours(metrics, is_ready=True)
    assert "gpu_device_plugin_ready 0.0" in ours(metrics, is_ready=False)


def test_openmetrics_is_spoken_where_it_is_asked_for() -> None:
    """Prometheus asks for it and needs the closing line."""
    page, content_type = AgentMetrics("1").page("application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")


def test_the_process_is_measured_too() -> None:
    """Memory and CPU of the agent, for its own alerts."""
    page, _ = AgentMetrics("1").page("")

    assert b"process_resident_memory_bytes" in page
