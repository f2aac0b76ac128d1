"""What is written twice is the same twice: daemonset/, versions, the chart's README."""

import json
import subprocess
import tomllib

import pytest
import yaml
from tests.chart.readme import README, described, leaves, rendered
from tests.chart.rendering import CHART, HELM, LINTER, NAME, PLAIN, ROOT, plain, render

from tools import chart_values, nvidia_schema

ACCEPTED = {
    "deployment-replicas": "one page: a browser's events go on where its page was drawn",
    "pod-networkpolicy": "who may scrape is the cluster's to say",
    "container-security-context-user-group-id": "docs/adr/0009-what-the-agent-may-do-on-its-node.md",
    "container-image-pull-policy": "IfNotPresent: a node that lost its registry keeps its agent",
    "container-ephemeral-storage-request-and-limit": "the root file system is read-only",
}


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    """To write them again: python -m tests.chart.rendering."""
    assert PLAIN.read_text() == plain()
    assert [path.name for path in PLAIN.parent.iterdir()] == [PLAIN.name]


def test_chart_and_program_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_readme_is_that_of_the_values() -> None:
    """To write it again: python -m tests.chart.readme."""
    assert README.read_text() == rendered()


def test_helm_checks_nvidias_files_by_the_types_that_the_agent_reads_them_with() -> None:
    """To write it again: python -m tools.nvidia_schema."""
    assert nvidia_schema.SCHEMA.read_text() == nvidia_schema.text()


def test_the_chart_has_the_agents_settings_as_the_agent_has_them() -> None:
    """To write it again: python -m tools.chart_values."""
    assert chart_values.SCHEMA.read_text() == chart_values.laid_out(chart_values.schema())
    assert chart_values.TEMPLATE.read_text() == chart_values.template()


def test_the_schema_says_what_every_value_does() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [path for path, _ in leaves(values) if not described(schema, path)] == []


def test_helm_finds_no_fault_with_the_chart() -> None:
    command = [str(HELM), "lint", "--strict", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(
    not LINTER.exists(), reason="kube-score not built on this machine: run tests/e2e/install.sh"
)
def test_the_linter_finds_nothing_but_what_is_accepted() -> None:
    command = [str(LINTER), "score", "--output-format", "ci", "--ignore-container-cpu-limit", "-"]
    for accepted in ACCEPTED:
        command += ["--ignore-test", accepted]
    everything = [f"{each}.enabled=true" for each in ("service", "controller", "page")]
    everything += [f"{each}.replicas=2" for each in ("controller", "scheduler")]
    text = render(*everything)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(("[CRIT", "[WARN"))]
    assert "[OK]" in done.stdout
    # The leader's label comes with the leader.
    selects_the_leader = (
        f"{NAME}-controller/{NAME} v1/Service: The services selector does not match"
    )
    assert [line for line in found if selects_the_leader not in line] == []
