"""The promise: with all parts at once, in any namespace, the chart brings every object once."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.chart.rendering import CHART, NAME, render

PARTS = (
    "controller.enabled=true",
    "controller.tls.certManager.enabled=true",
    "controller.webhook.enabled=true",
    "page.enabled=true",
    "dra.enabled=true",
    "gfd.enabled=true",
    "mps.enabled=true",
    "migManager.enabled=true",
    "memoryEnforcer=auto",
    "deviceListStrategy=auto",
    "networkPolicy.enabled=true",
    "resourceQuota.enabled=true",
    "grafanaDashboard.enabled=true",
    "prometheusRule.enabled=true",
    "service.enabled=true",
)
SHARED = {
    "version": "v1",
    "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}},
}
VALUES: dict[str, Any] = {
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


def texts(schema: dict[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every value that is a text and no word of a list, with the pattern that it has to match."""
    for name, each in schema.get("properties", {}).items():
        if each.get("type") == "string" and "enum" not in each:
            yield (*path, name), each.get("pattern", "")
        yield from texts(each, *path, name)


def with_all(text: str) -> dict[str, Any]:
    """Values in which each text that may be this one is it; a path ends with it."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    made = copy.deepcopy(VALUES)
    for path, pattern in texts(schema):
        forms = (text, f"/{text}", f"/{text.replace(':', '')}")
        form = next((form for form in forms if re.search(pattern, form)), None)
        if form and ".".join(path) not in NOT_AT_ONCE:
            at = made
            for name in path[:-1]:
                at = at.setdefault(name, {})
            at[path[-1]] = form
    return made


# config.map of VALUES is the other way to name the files; these need each other, or other places than others.
NOT_AT_ONCE = (
    "libraryDir",
    "config.name",
    "config.default",
    "serviceAccount.name",
    "image.digest",
    "xidTable.default.name",
    "controller.tls.secretName",
    "controller.tls.clientSecretName",
)


def leaves(value: object, *path: object) -> Iterator[tuple[tuple[object, ...], object]]:
    """Every value that is neither a list nor an object, with where it is."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in pairs:
            yield from leaves(each, *path, key)
    else:
        yield path, value


def test_a_text_value_stays_that_text() -> None:
    """`Lab: A100` was no YAML, `EU #1` became `EU`, and `1` a number."""
    odd = render(*PARTS, values=with_all("a: b #c"))
    found = [each for made in yaml.load_all(odd, yaml.CSafeLoader) for _, each in leaves(made)]
    cut = [e for e in found if isinstance(e, str) and "a: b" in e and "a: b #c" not in e]
    number, word = (
        [
            {at: type(each) for at, each in leaves(made)}
            for made in yaml.load_all(render(*PARTS, values=with_all(t)), yaml.CSafeLoader)
        ]
        for t in ("1", "a")
    )

    assert sum("a: b #c" in str(each) for each in found) > 10
    assert cut == []
    assert number == word
