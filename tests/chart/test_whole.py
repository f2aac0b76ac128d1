"""The promise: with all parts at once, in any namespace, the chart brings every object once."""

import re
from collections import Counter

import pytest
import yaml
from tests.chart.rendering import CHART, NAME, render

PARTS = (
    "controller.enabled=true",
    "controller.tls.certManager.enabled=true",
    "scheduler.enabled=true",
    "page.enabled=true",
    "dra.enabled=true",
    "gfd.enabled=true",
    "mps.enabled=true",
    "migManager.enabled=true",
    "memoryEnforcer=auto",
    "networkPolicy.enabled=true",
    "resourceQuota.enabled=true",
    "grafanaDashboard.enabled=true",
    "prometheusRule.enabled=true",
    "service.enabled=true",
)
SHARED = {"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu"}]}}}
VALUES = {
    "config": {"map": {"mps": yaml.safe_dump(SHARED)}},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "beside"}}],
}


@pytest.mark.parametrize("namespace", [NAME, "kube-system"])
@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_no_object_comes_twice(namespace: str, monitor: str) -> None:
    """Helm refuses two of one name at an installation, and at an upgrade keeps either."""
    text = render(*PARTS, f"{monitor}.enabled=true", values=VALUES, namespace=namespace)
    made = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    names = Counter(
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in made
    )
    assert [name for name, times in names.items() if times > 1] == []
    templates = {path.name for path in (CHART / "templates").glob("*.yaml")}
    missing = templates - set(re.findall(r"# Source: .*/templates/(.*)", text))
    assert missing == {"podmonitor.yaml", "servicemonitor.yaml"} - {f"{monitor.lower()}.yaml"}
