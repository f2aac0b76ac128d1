"""The promise: the controller's panels show something, and each of its alerts fires, but never in health."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART
from tests.controller.replica import a_controller
from tests.controller.test_webhook import S0_POD, mutated
from tests.monitoring.prometheus import filled_in, programs, promtool, running_prometheus
from tests.test_docs import ROOT, anchors, page
from tools.dashboards.controller import PLACE, build
from tools.harness.objects import held, node, pod
from tools.harness.waiting import until

RULES = CHART / "monitoring" / "controller-alerts.yaml"
PANELS: list[dict[str, Any]] = [
    panel for panel in json.loads(PLACE.read_text())["panels"] if panel["type"] != "row"
]
QUERIES = {target["expr"]: panel["title"] for panel in PANELS for target in panel["targets"]}
INSTANCE = 'namespace="gpu",instance="10.0.0.7:9446"'
BUCKET = "gpu_controller_call_duration_seconds_bucket"
CERTIFICATE = "gpu_controller_certificate_expiry_timestamp_seconds"
SILENT = "gpu_controller_watch_silent_seconds"
LEASE = "gpu_controller_lease_renewals_total"
CALLS = "gpu_controller_calls_total"
FAILED = "gpu_controller_bindings_total"
AVAILABLE = "kube_deployment_status_replicas_available"
SCHEDULER = 'namespace="gpu",deployment="gpu-device-plugin-scheduler"'
TROUBLE: dict[str, tuple[dict[str, str], int, int]] = {
    "GpuControllerWithoutLeader": ({f"gpu_controller_leader{{{INSTANCE}}}": "0x20"}, 4, 6),
    "GpuSchedulerMissing": ({f"{AVAILABLE}{{{SCHEDULER}}}": "1x3 0x20"}, 8, 10),
    "GpuControllerNotReady": ({f"gpu_controller_ready{{{INSTANCE}}}": "0x20"}, 9, 11),
    "GpuLeaseRenewedLate": ({f'{LEASE}{{{INSTANCE},outcome="late"}}': "0x5 0+2x30"}, 6, 12),
    "GpuBindingsRefused": ({f'{FAILED}{{{INSTANCE},outcome="refused"}}': "0x5 0+9x30"}, 10, 16),
    "GpuWatchSilent": ({f"{SILENT}{{{INSTANCE}}}": "0x2 0+60x20"}, 10, 14),
    "GpuControllerCertificateEnds": ({f"{CERTIFICATE}{{{INSTANCE}}}": "2500000x90"}, 59, 61),
    "GpuControllerSlow": (
        {
            f'{BUCKET}{{{INSTANCE},verb="filter",le="0.25"}}': "0x60",
            f'{BUCKET}{{{INSTANCE},verb="filter",le="1.0"}}': "0+9x60",
            f'{BUCKET}{{{INSTANCE},verb="filter",le="+Inf"}}': "0+9x60",
        },
        10,
        30,
    ),
    "GpuBindingsFail": ({f'{FAILED}{{{INSTANCE},outcome="failed"}}': "0x5 9x30"}, 4, 20),
    "GpuWebhookFails": ({f'{CALLS}{{{INSTANCE},verb="mutate",code="503"}}': "1+2x30"}, 4, 8),
}
HEALTHY = {
    f"{AVAILABLE}{{{SCHEDULER}}}": "1x20 0x3 1x40",
    f"gpu_controller_leader{{{INSTANCE}}}": "1x60",
    'gpu_controller_leader{namespace="gpu",instance="10.0.0.8:9446"}': "0x60",
    f"gpu_controller_ready{{{INSTANCE}}}": "0x3 1x60",
    f"gpu_controller_current{{{INSTANCE}}}": "0x3 1x20 0x5 1x40",
    f'{CALLS}{{{INSTANCE},verb="mutate",code="200"}}': "0+9x60",
    f'{CALLS}{{{INSTANCE},verb="filter",code="503"}}': "0+9x60",
    f"{CERTIFICATE}{{{INSTANCE}}}": "31536000x60",
    f"{SILENT}{{{INSTANCE}}}": "50x20 180 230 2 50x40",
    f'{BUCKET}{{{INSTANCE},verb="filter",le="0.25"}}': "0+9x60",
    f'{BUCKET}{{{INSTANCE},verb="filter",le="+Inf"}}': "0+9x60",
    f'{FAILED}{{{INSTANCE},outcome="failed"}}': "0x30 2x30",
    f'{FAILED}{{{INSTANCE},outcome="conflict"}}': "0+5x60",
    f'{FAILED}{{{INSTANCE},outcome="refused"}}': "0x30 9x30",
    f'{LEASE}{{{INSTANCE},outcome="in time"}}': "0+20x60",
    f'{LEASE}{{{INSTANCE},outcome="late"}}': "0x30 2x30",
}


def alerts() -> dict[str, dict[str, Any]]:
    """Name -> rule."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def firing(name: str, folder: Path, series: dict[str, str], minute: int) -> bool:
    """Whether an alert fires at that minute of these series."""
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    told = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(told))
    done = promtool("test", "rules", file)
    assert done.returncode == 0 or "got:" in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("name", TROUBLE)
def test_it_fires_when_the_trouble_lasts_and_not_before(name: str, tmp_path: Path) -> None:
    series, quiet, at = TROUBLE[name]
    assert not firing(name, tmp_path, series, quiet)
    assert firing(name, tmp_path, series, at)
    assert not any(firing(name, tmp_path, HEALTHY, minute) for minute in (2, 15, 45, 59))


@pytest.mark.long
def test_a_controller_that_is_gone_altogether_does_not_lead(tmp_path: Path) -> None:
    """Then no replica is left that could say 0."""
    gone = {f"gpu_controller_leader{{{INSTANCE}}}": "1x9 stale _x30"}
    assert not firing("GpuControllerWithoutLeader", tmp_path, gone, 13)
    assert firing("GpuControllerWithoutLeader", tmp_path, gone, 16)


def test_every_alert_has_its_case_and_its_chapter() -> None:
    """The chapter begins with the severity that the rule has."""
    assert TROUBLE.keys() == alerts().keys()
    chapters = dict(
        re.findall(r"^### (Gpu\w+)\n\n(.+?)\n", page("docs/controller.md"), re.MULTILINE)
    )
    assert chapters.keys() == alerts().keys()
    for name, rule in alerts().items():
        assert chapters[name].startswith(f"*{rule['labels']['severity'].capitalize()}.*"), name
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == name.lower()
        assert anchor in anchors(ROOT / file)


def test_every_metric_of_a_rule_or_panel_is_documented() -> None:
    """A rule about a metric that was renamed never fires."""
    used = " ".join([*QUERIES, *(rule["expr"] for rule in alerts().values())])
    table = page("docs/controller.md").partition("## Metrics")[2].partition("\n## ")[0]
    told = set(re.findall(r"gpu_\w+", table))
    names = {re.sub(r"_(bucket|count)$", "", name) for name in re.findall(r"gpu_c\w+", used)}
    assert names == told


def test_every_query_is_of_the_clusters_that_were_chosen_above() -> None:
    """One Prometheus often serves several clusters; a panel of their sum would tell of none."""
    (cluster,) = json.loads(PLACE.read_text())["templating"]["list"][1:]
    assert (cluster["name"], cluster["allValue"]) == ("cluster", ".*")
    for query, title in QUERIES.items():
        metrics = re.findall(r"gpu_c\w+(\S{20})", query)
        assert set(metrics) == {'{cluster=~"$cluster"'}, title


def test_the_dashboard_is_the_one_that_its_program_writes() -> None:
    """To write it again: python -m tools.dashboards.controller."""
    assert PLACE.read_text() == build()
    assert all(panel["description"].endswith(".") for panel in PANELS)


@pytest.mark.long
async def test_every_query_finds_something_in_a_prometheus_that_scrapes_a_controller(
    tmp_path: Path,
) -> None:
    """All but the certificate's: this controller speaks plain HTTP."""
    programs()
    pods = (pod("a", 10, 50, on="n1", annotations=held(1, 10, 50)), pod("new", 2, 30))
    async with (
        a_controller(tmp_path, (node("n1"),), pods) as found,
        running_prometheus(tmp_path, found.controller.pages.port, RULES) as prometheus,
    ):
        missing = {query: title for query, title in QUERIES.items() if "certificate" not in query}
        assert len(missing) == len(QUERIES) - 1

        async def all_found() -> bool:
            await found.filter(pod("new", 2, 30), "n1")
            await mutated(found, S0_POD)
            await found.bind(pod("new", 2, 30), "n1")
            for query in tuple(missing):
                if await prometheus.series(filled_in(query)):
                    del missing[query]
            return not missing

        await until(all_found, 90, lambda: f"without a result: {missing}")
