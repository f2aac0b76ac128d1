"""Names, labels and values of the metrics are an interface; what is gone leaves no series."""

from tests.golden_files import same_as_golden_file

from gpu_device_plugin.domain.node.state import UnitCount
from gpu_device_plugin.web.metrics.agent_metrics import (
    AgentMetrics,
    CardSample,
    SliceSample,
    Snapshot,
)

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

    same_as_golden_file("metrics/agent.txt", ours(metrics, is_ready=True))


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
