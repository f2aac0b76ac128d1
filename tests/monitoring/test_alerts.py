"""The promise: each alert fires when its trouble lasts, not before, and never on a healthy node."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART
from tests.monitoring.prometheus import JOB, documented_rules, promtool
from tests.test_docs import ROOT, anchors, page, words

RULES = CHART / "monitoring" / "alerts.yaml"
TARGET = {"job": JOB, "instance": "10.0.0.7:9445", "node": "n1"}
CONTAINER = {"namespace": "team", "pod": "train", "container": "main", "card": "0"}
MEM = {"resource": "aliyun.com/gpu-mem"}
Series = Mapping[str, str]


def alerts() -> dict[str, dict[str, Any]]:
    """Name -> rule."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def series(name: str, values: str, own: Mapping[str, str] | None = None) -> Series:
    """A series of the agent of n1; values a minute apart, as promtool writes them."""
    is_other = name.startswith(("up", "process_", "kube_"))
    ours = name if is_other else f"gpu_device_plugin_{name}"
    labels = ",".join(f'{key}="{value}"' for key, value in {**TARGET, **(own or {})}.items())
    return {"series": f"{ours}{{{labels}}}", "values": values}


@dataclass(frozen=True, slots=True)
class Case:
    """One alert's trouble.

    Attributes:
        alert: Its name.
        trouble: What Prometheus scrapes.
        quiet: Minute at which it does not fire, because too little has happened yet.
        firing: Minute at which it does.
        told: What stands in the braces of its annotations, in the order of the file.
        labels: Of the alert, beside its name and severity.
    """

    alert: str
    trouble: Sequence[Series]
    quiet: int
    firing: int
    told: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=lambda: TARGET)


NODE_ALONE = {"node": "n1"}
KNOWN = series("kube_node_info", "1x180")
CASES = [
    Case("GpuAgentDown", [series("up", "1x3 0x20"), KNOWN], 6, 10, ("n1", "10.0.0.7:9445")),
    Case("GpuAgentDownOrNodeGone", [series("up", "1x3 0x20")], 6, 10, ("n1", "10.0.0.7:9445")),
    Case("GpuAgentsAbsent", [], 14, 16, (), {"job": JOB}),
    Case("GpuAgentNotReady", [series("ready", "0x30")], 8, 12, ("n1",)),
    Case(
        "GpuAgentRestarting",
        [series("process_start_time_seconds", "100 200 300 400 500x20")],
        2,
        6,
        ("n1", "4"),
    ),
    Case(
        "GpuAgentRegistersAgain",
        [series("registrations_total", "3x5 3+3x25", MEM)],
        5,
        30,
        ("n1", "72"),
        NODE_ALONE,
    ),
    Case("GpuApiUnreachable", [series("api_reachable", "1 0x30")], 9, 12, ("n1",)),
    Case(
        "GpuEventsLost",
        [series("events_dropped_total", "0x5 2x20")],
        5,
        20,
        ("n1", "2"),
        NODE_ALONE,
    ),
    Case(
        "GpuNodeFault",
        [series("node_fault", "1x20", {"reason": "OtherPlugin"})],
        4,
        6,
        ("n1", "OtherPlugin"),
        {**TARGET, "reason": "OtherPlugin"},
    ),
    Case(
        "GpuCardOut",
        [series("card_fault", "1x20", {"card": "2", "uuid": "GPU-2", "reason": "XID79"})],
        4,
        6,
        ("2", "n1", "XID79", "GPU-2"),
        {**TARGET, "card": "2", "uuid": "GPU-2", "reason": "XID79"},
    ),
    Case(
        "GpuCardHangs",
        [series("card_fault", "1x20", {"card": "2", "uuid": "GPU-2", "reason": "ProbeHangs"})],
        0,
        2,
        ("2", "n1", "GPU-2"),
        {**TARGET, "card": "2", "uuid": "GPU-2", "reason": "ProbeHangs"},
    ),
    Case(
        "GpuMemoryTaken",
        [series("card_memory_short_bytes", "1073741824x20", {"card": "2", "uuid": "GPU-2"})],
        4,
        6,
        ("2", "n1", "GPU-2", "1Gi"),
        {**TARGET, "card": "2", "uuid": "GPU-2"},
    ),
    Case(
        "GpuDriverSilent",
        [
            series("card_fault", "1x20", {"card": n, "uuid": f"GPU-{n}", "reason": "NVMLStalled"})
            for n in "01"
        ],
        1,
        3,
        ("n1", "NVMLStalled", "2"),
        {"node": "n1", "reason": "NVMLStalled"},
    ),
    Case(
        "GpuNvmlRestarting",
        [series("nvml_restarts_total", "0x5 6x40")],
        5,
        30,
        ("n1", "6"),
        NODE_ALONE,
    ),
    Case(
        "GpuXid",
        [series("card_changes_total", "_x5 1x40", {"uuid": "GPU-2", "reason": "XID48"})],
        4,
        8,
        ("GPU-2", "n1", "XID48", "1"),
        {**TARGET, "uuid": "GPU-2", "reason": "XID48"},
    ),
    Case("GpuGrantsDrift", [series("reconcile_drift", "0 2x20")], 4, 8, ("n1", "2")),
    Case(
        "GpuGrantsDamaged",
        [
            series("state_files_set_aside_total", "0 1x20"),
            series("process_start_time_seconds", "0x20"),
        ],
        0,
        5,
        ("n1", "1"),
    ),
    Case(
        "GpuSliceAdopted",
        [series("slice_repairs_total", "_x5 2x20", {"reason": "SliceAdopted"})],
        4,
        8,
        ("n1", "2"),
        {**TARGET, "reason": "SliceAdopted"},
    ),
    Case(
        "GpuRegionGrown",
        [series("slice_repairs_total", "_x5 1x20", {"reason": "RegionGrown"})],
        4,
        8,
        ("n1", "1"),
        {**TARGET, "reason": "RegionGrown"},
    ),
    Case(
        "GpuSliceNearlyFull",
        [
            series("slice_memory_limit_bytes", "1000x60", CONTAINER),
            series("slice_memory_used_bytes", "970x60", CONTAINER),
        ],
        29,
        31,
        ("team", "train", "97%", "main", "n1"),
        {**TARGET, **CONTAINER},
    ),
    Case(
        "GpuSliceRefusing",
        [series("slice_refused_total", "0+1x60", CONTAINER)],
        14,
        40,
        ("team", "train", "15", "main"),
        {**TARGET, **CONTAINER},
    ),
    Case(
        "GpuPodsFlood",
        [series("allocations_total", "0+600x9", {**MEM, "outcome": "refused", "reason": "NoRoom"})],
        1,
        3,
        ("n1", "NoRoom", "1.2k"),
        {"node": "n1", "reason": "NoRoom"},
    ),
    Case(
        "GpuPodsRefusedOverAndOver",
        [series("allocations_total", "0+2x90", {**MEM, "outcome": "refused", "reason": "NoRoom"})],
        14,
        60,
        ("n1", "NoRoom", "30"),
        {"node": "n1", "reason": "NoRoom"},
    ),
    Case(
        "GpuPodsNotIdentified",
        [
            series(
                "allocations_total", "0+1x90", {**MEM, "outcome": "refused", "reason": "UnknownPod"}
            )
        ],
        14,
        30,
        ("n1", "UnknownPod"),
        {"node": "n1", "reason": "UnknownPod"},
    ),
    Case(
        "GpuContainersNotStarted",
        [
            series(
                "allocations_total",
                "0+1x90",
                {**MEM, "outcome": "start-refused", "reason": "NoGrant"},
            )
        ],
        9,
        30,
        ("n1", "NoGrant"),
        {"node": "n1", "reason": "NoGrant"},
    ),
    Case(
        "GpuAllocateSlow",
        [
            series("allocate_seconds_bucket", "0+0x60", {"le": "1.0"}),
            series("allocate_seconds_bucket", "0+1x60", {"le": "2.5"}),
            series("allocate_seconds_bucket", "0+1x60", {"le": "+Inf"}),
        ],
        14,
        40,
        ("n1", "2.485s"),
        NODE_ALONE,
    ),
]
PAUSED = {"label_nvidia_com_gpu_deploy_client": "paused-for-driver-upgrade"}
HEALTHY = [
    series("build_info", "1x180", {"version": "1"}),
    KNOWN,
    series("kube_node_labels", "_x90 1x60", PAUSED),
    series("up", "1x90 0x60 1x30"),
    series("ready", "1x180"),
    series("process_start_time_seconds", "100x90 5400x90"),  # one restart, of an upgrade
    series("registrations_total", "3x90 3x90", MEM),
    series("api_reachable", "1x180"),
    series("events_dropped_total", "0x180"),
    series("nvml_restarts_total", "0x60 1x120"),
    series("reconcile_drift", "0x50 1x1 0x130"),
    series("state_files_set_aside_total", "0x180"),
    series("slice_memory_limit_bytes", "1000x180", CONTAINER),
    series("slice_memory_used_bytes", "500x100 999x10 500x70", CONTAINER),
    series("slice_refused_total", "0x100 1x80", CONTAINER),
    series("allocations_total", "0+3x180", {**MEM, "outcome": "granted", "reason": ""}),
    series("allocations_total", "0x60 5x120", {**MEM, "outcome": "refused", "reason": "NoRoom"}),
    series("allocations_total", "_x60 1x120", {**MEM, "outcome": "refused", "reason": "UnknownPod"}),
    series("allocate_seconds_bucket", "0+3x180", {"le": "0.01"}),
    series("allocate_seconds_bucket", "0+3x180", {"le": "+Inf"}),
]  # fmt: skip


def expected(case: Case) -> dict[str, Any]:
    """The alert as promtool shall see it, with every brace of its annotations filled."""
    rule = alerts()[case.alert]
    words = iter(case.told)
    annotations = {
        key: re.sub(r"\{\{.*?\}\}", lambda _: next(words), text)
        for key, text in rule["annotations"].items()
    }
    assert next(words, None) is None, f"{case.alert}: more words than braces"
    return {"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": annotations}


def check(tests: Sequence[Mapping[str, Any]], directory: Path) -> None:
    """Promtool runs these tests of the rules."""
    file = directory / "alerts_test.yaml"
    plain = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": list(tests)}
    file.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_the_trouble_lasts_and_not_before(case: Case, tmp_path: Path) -> None:
    """With the labels by which it is routed, and with the words that a person reads."""
    at = [
        {"alertname": case.alert, "eval_time": f"{case.quiet}m", "exp_alerts": []},
        {"alertname": case.alert, "eval_time": f"{case.firing}m", "exp_alerts": [expected(case)]},
    ]
    check([{"interval": "1m", "input_series": list(case.trouble), "alert_rule_test": at}], tmp_path)


@pytest.mark.long
def test_a_healthy_node_raises_nothing(tmp_path: Path) -> None:
    """Nor do one restart, one drift, one refusal, one moment of full memory."""
    at = [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": []}
        for name in alerts()
        for minute in range(1, 180, 7)
    ]
    check([{"interval": "1m", "input_series": HEALTHY, "alert_rule_test": at}], tmp_path)


def test_every_alert_has_its_case() -> None:
    """An alert that was never seen to fire is a hope."""
    assert [case.alert for case in CASES] == list(alerts())


@pytest.mark.long
def test_promtool_finds_no_fault_with_the_file() -> None:
    """The file as Prometheus reads it."""
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_is_wrong_and_where_to_read_on(name: str) -> None:
    """Its chapter exists, and a person is woken by few words."""
    rule = alerts()[name]
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "runbook_url"}
    assert told["summary"].endswith("."), name
    assert len(told["summary"]) <= 130, name
    assert told["description"].endswith((".", "always here.")), name
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    file, _, anchor = told["runbook_url"].partition("#")
    assert anchor in anchors(ROOT / file)
    assert anchor == name.lower()


def test_no_chapter_is_left_of_an_alert_that_is_gone() -> None:
    """And each chapter says the severity that the rule has."""
    text = page("docs/operations/alerts.md")
    chapters = dict(re.findall(r"^## (Gpu\w+)\n\n(.+?)\n", text, re.MULTILINE))
    assert chapters.keys() == alerts().keys()
    for name, first in chapters.items():
        assert first.startswith(f"*{alerts()[name]['labels']['severity'].capitalize()}.*"), name


def test_every_metric_and_reason_in_a_rule_is_one_of_ours() -> None:
    """A rule about a metric that was renamed never fires."""
    told = set(
        re.findall(
            r"^\| `(gpu_device_plugin_\w+)", page("docs/operations/metrics.md"), re.MULTILINE
        )
    )
    known = words(page("docs/troubleshooting.md") + page("docs/operations/events.md")) | {"XID.*"}
    for name, rule in alerts().items():
        used = set(re.findall(r"gpu_device_plugin_\w+", rule["expr"]))
        assert {word.removesuffix("_bucket") for word in used} <= told, name
        reasons = re.findall(r'reason!?=~?"([^"]+)"', rule["expr"])
        assert {word for each in reasons for word in each.split("|")} <= known, name


@pytest.mark.long
def test_the_page_s_way_to_scrape_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    """Anyone who has no operator copies it. Debian's Prometheus is built without Kubernetes' discovery."""
    blocks = re.findall(r"```yaml\n(.*?)```", page("docs/operations/metrics.md"), re.DOTALL)
    (example,) = (yaml.safe_load(block) for block in blocks if block.startswith("scrape_configs:"))
    (job,) = example["scrape_configs"]
    assert (job["job_name"], job.pop("kubernetes_sd_configs")) == (JOB, [{"role": "pod"}])
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(example), encoding="utf-8")

    done = promtool("check", "config", "--syntax-only", file)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("exported", "name"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "gpu_slice:dcgm_temperature_celsius"),
        ("DCGM_FI_DEV_POWER_USAGE", "gpu_slice:dcgm_power_watts"),
    ],
)
def test_the_rules_of_the_docs_give_each_slice_the_figures_of_its_card(
    tmp_path: Path, exported: str, name: str
) -> None:
    """dcgm-exporter names a card once for each pod that shares it, and nothing of slices."""
    rules = documented_rules(tmp_path)
    other = {**CONTAINER, "pod": "serve", "card": "1"}
    dcgm = exported + '{UUID="GPU-%d",gpu="%d",instance="10.0.0.9:9400",pod="%s"}'
    scraped = [
        series("slice_memory_limit_bytes", "9x5", CONTAINER),
        series("slice_memory_limit_bytes", "9x5", other),
        *(series("card_healthy", "1x5", {"card": f"{n}", "uuid": f"GPU-{n}"}) for n in range(3)),
        *(
            {"series": dcgm % (card, card, pod), "values": f"{figure}x5"}
            for card, pod, figure in ((0, "a", 61), (0, "b", 61), (1, "a", 42), (2, "", 30))
        ),
    ]
    told = []
    for holder, uuid, figure in ((CONTAINER, "GPU-0", 61), (other, "GPU-1", 42)):
        of = {**TARGET, **holder, "uuid": uuid}
        labels = ",".join(f'{key}="{value}"' for key, value in of.items())
        told.append({"labels": f"{name}{{{labels}}}", "value": figure})
    asked = [{"expr": name, "eval_time": "3m", "exp_samples": told}]
    test = {"rule_files": [rules.name], "evaluation_interval": "1m"}
    cases = [{"interval": "1m", "input_series": scraped, "promql_expr_test": asked}]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({**test, "tests": cases}), encoding="utf-8")
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
