"""The controller's Grafana dashboard, as a program.

``python -m tools.dashboards.controller`` writes charts/…/controller-dashboard.json again.
"""

import json
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from tools.dashboards.panels import (
    GREEN,
    RED,
    AnyPanel,
    Head,
    Query,
    cluster_variable,
    highest,
    lines,
    states,
)

PLACE = (
    Path(__file__).resolve().parents[2]
    / "charts/gpu-device-plugin/monitoring/controller-dashboard.json"
)


_CLUSTER, _MUTATE = 'cluster=~"$cluster"', 'verb="mutate"'


def metric(name: str, *labels: str) -> str:
    """A metric of the chosen clusters' controllers."""
    chosen = ",".join((_CLUSTER, *labels))
    return f"gpu_{name}{{{chosen}}}"


def _p(quantile: float) -> str:
    rate = f"rate({metric('controller_call_duration_seconds_bucket')}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by (le, verb) ({rate}))"


def room() -> list[AnyPanel]:
    """What the cluster has left. Every replica tells the same of a card: the largest is taken."""
    free = f"sum by (node) (max by (node, card) ({metric('cluster_card_free_memory_units')}))"
    total = f"sum by (node) (max by (node, card) ({metric('cluster_card_memory_units')}))"
    return [
        lines(
            Head("Memory that is held", "Share of a node's memory units; the 20 fullest.", 12),
            "percentunit",
            Query(highest(f"1 - {free} / {total}"), "{{node}}"),
        ).max(1),
        lines(
            Head("Free memory units", "Of the 20 cards with most, in units of their nodes.", 12),
            "short",
            Query(
                highest(f"max by (node, card) ({metric('cluster_card_free_memory_units')})"),
                "{{node}} card {{card}}",
            ),
        ),
        lines(
            Head("Free compute", "Percent of the 20 cards with most, by mode core_mem.", 8),
            "percent",
            Query(
                highest(f"max by (node, card) ({metric('cluster_card_free_core_percent')})"),
                "{{node}} card {{card}}",
            ),
        ),
        lines(
            Head("Largest slice that fits", "On one card of any node, by the node's mode.", 8),
            "bytes",
            Query(f"max by (mode) ({metric('cluster_largest_slice_bytes')})", "{{mode}}"),
        ),
        lines(
            Head("Fragmentation", "Share of the free memory on cards that are held in part.", 8),
            "percentunit",
            Query(f"max by (mode) ({metric('cluster_fragmentation_ratio')})", "{{mode}}"),
        ).max(1),
    ]


def answers() -> list[AnyPanel]:
    """How kube-scheduler is served."""
    bindings = f"rate({metric('controller_bindings_total')}[$__rate_interval])"
    calls = f"rate({metric('controller_call_duration_seconds_count')}[$__rate_interval])"
    return [
        lines(
            Head("Time to answer", "The slowest hundredth, without reading the body.", 8),
            "s",
            Query(_p(0.99), "{{verb}} p99"),
            Query(_p(0.5), "{{verb}} p50"),
        ),
        lines(
            Head("Calls", "A second, by verb.", 8),
            "cps",
            Query(f"sum by (verb) ({calls})", "{{verb}}"),
        ),
        lines(
            Head(
                "Bindings",
                "A second; conflict: somebody else was quicker. Those are tried again.",
                8,
            ),
            "cps",
            Query(f"sum by (outcome) ({bindings})", "{{outcome}}"),
        ),
    ]


def webhook() -> list[AnyPanel]:
    """What becomes of pods with a model, a driver or a class."""
    pods = f"rate({metric('controller_webhook_pods_total')}[$__rate_interval])"
    calls = f"rate({metric('controller_calls_total', _MUTATE)}[$__rate_interval])"
    return [
        lines(
            Head("Pods of the webhook", "A second; refused ones were told why.", 12),
            "cps",
            Query(f"sum by (outcome) ({pods})", "{{outcome}}"),
        ),
        lines(
            Head("Answers of the webhook", "A second, by HTTP status; all but 200 are errors.", 12),
            "cps",
            Query(f"sum by (code) ({calls})", "{{code}}"),
        ),
    ]


def replicas() -> list[AnyPanel]:
    """Whether the controllers themselves are well."""
    return [
        states(
            Head("Leader", "Which replica answers kube-scheduler.", 12),
            {0: ("stands by", GREEN), 1: ("leads", GREEN)},
            Query(f"max by (instance) ({metric('controller_leader')})", "{{instance}}"),
        ),
        states(
            Head("Ready", "Whether /readyz of each replica answered 200.", 12),
            {0: ("not ready", RED), 1: ("ready", GREEN)},
            Query(f"min by (instance) ({metric('controller_ready')})", "{{instance}}"),
        ),
        lines(
            Head("Pods that are being bound", "Their room is reserved.", 12),
            "short",
            Query(f"sum({metric('controller_reserved_pods')})", "reserved"),
        ),
        lines(
            Head("Days left of the certificate", "Its own are renewed at 120.", 12),
            "short",
            Query(
                f"(min by (instance) ({metric('controller_certificate_expiry_timestamp_seconds')})"
                " - time()) / 86400",
                "{{instance}}",
            ),
        ),
    ]


def build() -> str:
    """The dashboard's JSON."""
    made = (
        dashboard.Dashboard("GPU slices over the cluster")
        .uid("gpu-device-plugin-controller")
        .description("What the cards of all nodes have left, and how kube-scheduler is served.")
        .tags(["gpu", "kubernetes", "gpu-device-plugin"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(cluster_variable("gpu_controller_leader"))
    )
    rows = {"Room": room(), "Answers": answers(), "Webhook": webhook(), "Replicas": replicas()}
    for title, panels in rows.items():
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    plain = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    for number, panel in enumerate(plain["panels"], start=1):
        panel["id"] = number
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    PLACE.write_text(build(), encoding="utf-8")
