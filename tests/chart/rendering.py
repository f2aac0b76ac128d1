"""The chart as the manifests that helm makes of it, and daemonset/ as one choice of them.

``python -m tests.chart.rendering`` writes daemonset/ again.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tools.harness.cluster.binaries import helm_path, linter_path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "gpu-device-plugin"
PLAIN = ROOT / "daemonset" / "gpu-device-plugin.yaml"
NAME = "gpu-device-plugin"
HELM, LINTER = helm_path(), linter_path()
AGENTS_ALONE = "controller.enabled=false"
HEAD = f"""\
# Rendered from charts/gpu-device-plugin without hooks, which are helm's, by
#   python -m tests.chart.rendering
# It is the agent alone (controller.enabled=false): a pod that fits no single card of its node is refused there, and a
# ReplicaSet makes hundreds of Failed pods a minute.
# Do not edit. No image is published: build one and set its name first (docs/install.md).
---
apiVersion: v1
kind: Namespace
metadata:
  name: {NAME}
  labels:
    # Directories of the node are mounted, which the other levels of pod security forbid.
    pod-security.kubernetes.io/enforce: privileged
"""


class RefusedError(Exception):
    """helm would not render the chart with these values."""


def render(
    *settings: str,
    values: Mapping[str, Any] | None = None,
    kubernetes: str = "",
    chart: Path = CHART,
    namespace: str = NAME,
) -> str:
    """The manifests as text.

    Args:
        settings: `--set` texts.
        values: Further values.
        kubernetes: Version of the API server; "" for helm's own.
        chart: Where it lies.
        namespace: The release's.

    Raises:
        RefusedError: helm refused; the text is helm's.
    """
    text = yaml.safe_dump(dict(values or {}))
    return _rendered(settings, text, kubernetes, chart, namespace)


@cache  # many tests look at the same values
def _rendered(
    settings: tuple[str, ...], values: str, kubernetes: str, chart: Path, namespace: str
) -> str:
    command = [str(HELM), "template", NAME, str(chart), "--namespace", namespace, "--values", "-"]
    command += [f"--set={setting}" for setting in settings]
    command += [f"--kube-version={kubernetes}"] if kubernetes else []
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def manifests(
    *settings: str,
    values: Mapping[str, Any] | None = None,
    kubernetes: str = "",
    chart: Path = CHART,
) -> Sequence[dict[str, Any]]:
    """The manifests as objects; see `render`."""
    # The parser in C: in Python it takes most of the time of all tests of the chart.
    text = render(*settings, values=values, kubernetes=kubernetes, chart=chart)
    return [made for made in yaml.load_all(text, yaml.CSafeLoader) if made]


def template_said(template: str, *settings: str, kubernetes: str = "") -> str:
    """What a template of the chart makes, beside the chart's own manifests."""
    beside = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "said": template}
    made = manifests(*settings, values={"extraObjects": [beside]}, kubernetes=kubernetes)
    return str(one(made, "Secret", "x")["said"] or "").strip()


def one(made: Sequence[dict[str, Any]], kind: str, name: str = NAME) -> dict[str, Any]:
    """The only manifest of that kind and name."""
    (found,) = [m for m in made if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def rights(role: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """What a role allows: group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def agent(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The pod of the DaemonSet."""
    return dict(one(made, "DaemonSet")["spec"]["template"]["spec"])


def plain() -> str:
    """What daemonset/ has to hold: nothing in it says helm, which does not own these objects."""
    # The image of the controller's scheduler is of the cluster's version, which only helm asks.
    made = render("hooks.uninstall.enabled=false", "hooks.upgrade.enabled=false", AGENTS_ALONE)
    # `helm test` runs this one; kubectl would run it at once.
    without = "---\n".join(part for part in made.split("---\n") if "helm.sh/hook: test" not in part)
    text = re.sub(r"^# Source: .*\n", "", without, flags=re.MULTILINE)
    return HEAD + re.sub(
        r"^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", "", text, flags=re.MULTILINE
    )


if __name__ == "__main__":
    PLAIN.write_text(plain())
