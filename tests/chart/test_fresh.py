"""What is written twice is the same twice: daemonset/, versions, the table of docs/install.md."""

import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from tests.chart.rendering import CHART, HELM, LINTER, NAME, PLAIN, ROOT, plain, render

ACCEPTED = {
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


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that a person sets, by its path."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key != "resources":
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def shown(value: Any) -> str | None:
    """A default as the table writes it; None where it is told in words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list) and value:
        return None
    return str(value) if value else "none"


def test_every_value_is_documented_with_its_default() -> None:
    values = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    text = (ROOT / "docs" / "install.md").read_text()
    table = text.partition("## Values")[2]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.+?) \|", table, flags=re.MULTILINE))
    assert rows.keys() == values.keys()
    for path, value in values.items():
        assert shown(value) in (None, rows[path].strip("`")), path


def test_every_rule_is_documented() -> None:
    text = (ROOT / "docs" / "install.md").read_text().partition("## Values")[0]
    listed = re.findall(r"^\| `policies\.(\w+)\.(\w+)` \|", text, flags=re.MULTILINE)
    rules = yaml.safe_load((CHART / "rules.yaml").read_text())
    assert set(listed) == {(group, rule["key"]) for group in rules for rule in rules[group]}


def test_helm_finds_no_fault_with_the_chart() -> None:
    command = [str(HELM), "lint", "--strict", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_linter_finds_nothing_but_what_is_accepted() -> None:
    command = [str(LINTER), "score", "--output-format", "ci", "--ignore-container-cpu-limit", "-"]
    for accepted in ACCEPTED:
        command += ["--ignore-test", accepted]
    text = render("service.enabled=true", "controller.enabled=true", "scheduler.enabled=true")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(("[CRIT", "[WARN"))]
    assert "[OK]" in done.stdout
    # The leader's label comes with the leader.
    selects_the_leader = (
        f"{NAME}-controller/{NAME} v1/Service: The services selector does not match"
    )
    assert [line for line in found if selects_the_leader not in line] == []
