"""The promise: what the chart gives to Prometheus and Grafana is what was tested, and fits together."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import AGENTS_ALONE, CHART, NAME, agent, manifests, one, render
from tests.test_docs import page
from tools.dashboards.agent import PLACE

SCRAPED = ("service.enabled=true", "serviceMonitor.enabled=true")
RULES = CHART / "monitoring" / "alerts.yaml"


def test_the_rules_are_those_that_promtool_tested_without_links_that_lead_nowhere() -> None:
    """A relative runbook_url is of no use in an Alertmanager; `kubectl gpu explain` has its page's text."""
    made = one(manifests("prometheusRule.enabled=true", AGENTS_ALONE), "PrometheusRule")
    tested = yaml.safe_load(RULES.read_text())
    for group in tested["groups"]:
        for rule in group["rules"]:
            page = rule["annotations"].pop("runbook_url")
            rule["annotations"]["runbook"] = f"kubectl gpu explain {page.partition('#')[2]}"
    assert made["spec"] == tested


def test_with_the_controller_its_alerts_and_its_dashboard_come_too() -> None:
    """Behind those of the agents."""
    chosen = ("prometheusRule.enabled=true", "grafanaDashboard.enabled=true")
    made = manifests(*chosen)
    groups = [group["name"] for group in one(made, "PrometheusRule")["spec"]["groups"]]
    own = yaml.safe_load((CHART / "monitoring" / "controller-alerts.yaml").read_text())["groups"]
    assert groups[-len(own) :] == [group["name"] for group in own]
    board = one(made, "ConfigMap", f"{NAME}-dashboard")["data"]
    assert json.loads(board["gpu-device-plugin-controller.json"])["title"]
    alone = one(manifests(*chosen, AGENTS_ALONE), "ConfigMap", f"{NAME}-dashboard")
    assert len(alone["data"]) == 1


@pytest.mark.parametrize(
    ("choice", "kind", "endpoints"),
    [
        (("podMonitor.enabled=true",), "PodMonitor", "podMetricsEndpoints"),
        (SCRAPED, "ServiceMonitor", "endpoints"),
    ],
)
def test_the_controller_is_scraped_by_whichever_monitor_scrapes_the_agents(
    choice: tuple[str, ...], kind: str, endpoints: str
) -> None:
    """Else GpuControllerWithoutLeader fires beside a healthy controller."""
    made = manifests(*choice, "controller.enabled=true")
    spec = one(made, kind, f"{NAME}-controller")["spec"]
    (endpoint,) = spec[endpoints]
    pod = one(made, "Deployment", f"{NAME}-controller")["spec"]["template"]
    service = one(made, "Service", f"{NAME}-controller-webhook")
    found = pod if kind == "PodMonitor" else service
    assert spec["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert endpoint["port"] in ports & {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("monitors", [(), ("podMonitor.enabled=true",), SCRAPED])
def test_that_no_controller_is_seen_is_an_alert_only_where_one_is_looked_for(
    monitors: tuple[str, ...],
) -> None:
    """Else a Prometheus that scrapes the agents by a configuration of its own calls a healthy one gone."""
    made = one(manifests("prometheusRule.enabled=true", *monitors), "PrometheusRule")
    rules = {rule["alert"]: rule for group in made["spec"]["groups"] for rule in group["rules"]}
    expression = rules["GpuControllerWithoutLeader"]["expr"]
    assert expression.startswith("sum by (namespace) (gpu_controller_leader) == 0")
    assert ("absent(gpu_controller_leader)" in expression) == bool(monitors)


def test_the_rules_follow_the_name_of_the_release() -> None:
    """The job of a ServiceMonitor is the name of its Service."""
    made = manifests(*SCRAPED, "prometheusRule.enabled=true", "fullnameOverride=slices")
    service, rules = one(made, "Service", "slices"), one(made, "PrometheusRule", "slices")
    text = json.dumps(rules["spec"])
    assert f'job=\\"{service["metadata"]["name"]}\\"' in text
    assert f'job=\\"{NAME}\\"' not in text


def test_runbooks_are_where_the_operator_keeps_them(tmp_path: Path) -> None:
    """Else where the chart's `home` says that its sources are; without either the page is named."""
    base = "https://git.example/gpu"
    rules = "prometheusRule.enabled=true"
    for given in (base, f"{base}/"):
        assert runbooks(manifests(rules, f"prometheusRule.runbookBase={given}"), base)
    at_home = tmp_path / "chart"
    shutil.copytree(CHART, at_home)
    about = (at_home / "Chart.yaml").read_text()
    (at_home / "Chart.yaml").write_text(f"{about}home: {base}\n")
    assert runbooks(manifests(rules, chart=at_home), base)
    assert "runbook: kubectl gpu explain gpuagentdown" in render(rules)
    assert "runbook_url" not in render(rules)


def runbooks(made: Sequence[dict[str, Any]], base: str) -> bool:
    """Whether every alert has a link to its page below `base`."""
    links = [
        rule["annotations"]["runbook_url"]
        for group in one(made, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    pages = ("docs/operations/alerts.md#gpu", "docs/controller.md#gpu")
    return bool(links) and all(link.removeprefix(f"{base}/").startswith(pages) for link in links)


def test_labels_by_which_they_are_found() -> None:
    made = manifests(
        "prometheusRule.enabled=true", values={"prometheusRule": {"labels": {"a": "b"}}}
    )
    assert one(made, "PrometheusRule")["metadata"]["labels"]["a"] == "b"
    made = manifests("grafanaDashboard.enabled=true")
    board = one(made, "ConfigMap", f"{NAME}-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["gpu-device-plugin.json"]) == json.loads(PLACE.read_text())


def test_the_page_s_way_to_scrape_finds_the_agents() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", page("docs/operations/metrics.md"), re.DOTALL)
    (example,) = (yaml.safe_load(block) for block in blocks if block.startswith("scrape_configs:"))
    keep, _ = example["scrape_configs"][0]["relabel_configs"]
    made = manifests()
    labels = one(made, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    (port,) = agent(made)["containers"][0]["ports"]
    assert keep["regex"] == f"{labels['app.kubernetes.io/name']};{port['name']}"


def test_series_have_the_labels_that_dashboard_and_rules_ask_for() -> None:
    """And a slice keeps its tenant's namespace, pod and container: not those of the agent's pod."""
    (endpoint,) = one(manifests(*SCRAPED), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert [made["targetLabel"] for made in endpoint["relabelings"]] == ["node"]
