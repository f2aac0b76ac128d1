"""The chart's README, from its values, their schema and Chart.yaml.

``python -m tests.chart.readme`` writes charts/gpu-device-plugin/README.md again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from tests.chart.rendering import CHART

README = CHART / "README.md"
_LINK = re.compile(r"(?<!`)\bdocs/([\w/-]+\.md(?:#[\w-]+)?)")
_WHOLE = ("resources",)
"""Values that are shown as a whole: people replace them so."""


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that a person sets, by its path."""
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in _WHOLE:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def described(schema: Mapping[str, Any], path: str) -> str:
    """What the schema says of a value; empty where it says nothing."""
    for key in path.split("."):
        schema = schema.get("properties", {}).get(key, {})
    return str(schema.get("description", ""))


def headings(text: str) -> dict[str, str]:
    """First value below each line `## Heading` of values.yaml -> that heading."""
    return {
        key: head for head, key in re.findall(r"^## (.+)\n(?:#.*\n)*(\w+):", text, re.MULTILINE)
    }


def shown(value: Any) -> str:
    """A default in a cell of the table."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, dict | list):
        return f"`{json.dumps(value)}`".replace("|", "\\|")
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rendered() -> str:
    """The README's text."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    source = (CHART / "values.yaml").read_text()
    values, heads = yaml.safe_load(source), headings(source)
    lines = [
        "<!-- Written from Chart.yaml, values.yaml and values.schema.json by",
        "     python -m tests.chart.readme; do not edit. -->",
        f"# {chart['name']}",
        "",
        f"{chart['description']}. For Kubernetes {chart['kubeVersion'].removesuffix('-0')}.",
        "",
        "What has to be there before, what is installed, and how to upgrade and uninstall it: "
        "[installing](../../docs/install.md). No image is published: build one first.",
        "",
        "```sh",
        "kubectl create namespace gpu-device-plugin",
        "kubectl label namespace gpu-device-plugin pod-security.kubernetes.io/enforce=privileged",
        "helm install gpu-device-plugin charts/gpu-device-plugin --namespace gpu-device-plugin \\",
        "  --set image.repository=IMAGE --set image.tag=TAG",
        "```",
        "",
        "## Values",
        "",
        "An unknown value is an error. Node labels take precedence over `mode`, `placement` and",
        "`computePolicy`. `global.imageRegistry` of a parent chart is put before `image.repository`, and before",
        "`scheduler.image.repository` in place of `registry.k8s.io`.",
    ]
    for path, value in leaves(values):
        if head := heads.pop(path.partition(".")[0], ""):
            lines += ["", f"### {head}", "", "| value | default | effect |", "|---|---|---|"]
        text = _LINK.sub(r"[\g<0>](../../docs/\1)", described(schema, path))
        lines.append(f"| `{path}` | {shown(value)} | {text} |")
    lines += [
        "",
        "## Test",
        "",
        "`helm test RELEASE` runs a pod that asks for what `mode` offers. With `core_mem` and `cgpu` it is",
        "gpu-selftest in a slice of 1 unit, which ends well only if its limits are effective. With `share`,",
        "`default`, `topology` and without isolation it has to see exactly one card. It needs that",
        "much to be free. There is no test with `mig`, `disabled` and `allocationApi: dra`, and none for resources",
        "that `config` renames.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    README.write_text(rendered())
