"""The Grafana dashboard that the chart carries, as a program.

``python -m tools.dashboards.agent`` writes charts/…/monitoring/dashboard.json again.
"""

import json
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from tools.dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    AnyPanel,
    Column,
    Head,
    Query,
    big_number,
    cluster_variable,
    highest,
    lines,
    ranking,
    rows,
    states,
    steps,
    variable,
)

PLACE = Path(__file__).resolve().parents[2] / "charts/gpu-device-plugin/monitoring/dashboard.json"
MEM, CORE = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
_AGENT = 'cluster=~"$cluster",job=~"$job",node=~"$node"'


def metric(name: str, *labels: str) -> str:
    """A metric of the chosen agents."""
    return f"gpu_device_plugin_{name}{{{','.join((_AGENT, *labels))}}}"


def of_slices(name: str, *labels: str) -> str:
    """A metric of the slices of the chosen namespaces."""
    return metric(name, 'namespace=~"$namespace"', *labels)


def units(resource: str, state: str = "") -> str:
    """Units of a resource; of both states where none is given."""
    chosen = (f'state="{state}"',) if state else ()
    return metric("units", f'resource="{resource}"', *chosen)


def by_ack(name: str) -> str:
    """A metric of the chosen agents by ACK's name, which alone knows a card's model."""
    return f"DCGM_CUSTOM_{name}{{{_AGENT}}}"


def per(labels: str, inner: str) -> str:
    """The sum for each combination of labels."""
    return f"sum by ({labels}) ({inner})"


def at_a_glance() -> list[AnyPanel]:
    """Six numbers: is anything wrong, and is anything free?"""
    up = f"up{{{_AGENT}}}"
    return [
        big_number(
            Head("Agents not answering", "Targets of the job that Prometheus cannot scrape.", 4, 4),
            "short",
            steps(GREEN, (1, RED)),
            Query(f"count({up}) - sum({up})"),
        ),
        big_number(
            Head("Agents not ready", "They answer, and /readyz says 503: curl it.", 4, 4),
            "short",
            steps(GREEN, (1, RED)),
            Query(f"count({metric('ready')}) - sum({metric('ready')})"),
        ),
        big_number(
            Head("Unhealthy GPUs", "No new slice gets one of them.", 4, 4),
            "short",
            steps(GREEN, (1, RED)),
            Query(f"count({metric('card_healthy')}) - sum({metric('card_healthy')})"),
        ),
        big_number(
            Head("Memory given out", "Memory units held by containers, of all units.", 4, 4),
            "percentunit",
            steps(BLUE, (0.9, ORANGE)),
            Query(f"sum({units(MEM, 'held')}) / sum({units(MEM)})"),
        ),
        big_number(
            Head("Compute given out", "Percent held by containers, of all cards' 100.", 4, 4),
            "percentunit",
            steps(BLUE, (0.9, ORANGE)),
            Query(f"sum({units(CORE, 'held')}) / sum({units(CORE)})"),
        ),
        big_number(
            Head("Slices", "Containers and cards: one that has two cards counts twice.", 4, 4),
            "short",
            steps(BLUE),
            Query(f"count({of_slices('slice_memory_limit_bytes')})"),
        ),
    ]


def nodes_and_cards() -> list[AnyPanel]:
    """What each node and card has left, and which card is unhealthy."""
    card = "node, card, uuid"
    return [
        lines(
            Head("Memory units held", "Of a node's units; the 20 fullest nodes."),
            "percentunit",
            Query(
                highest(f"{per('node', units(MEM, 'held'))} / {per('node', units(MEM))}"),
                "{{node}}",
            ),
        ).max(1),
        lines(
            Head("Compute held", "Of 100 percent a card (mode core_mem); the 20 fullest nodes."),
            "percentunit",
            Query(
                highest(f"{per('node', units(CORE, 'held'))} / {per('node', units(CORE))}"),
                "{{node}}",
            ),
        ).max(1),
        lines(
            Head(
                "Largest free slice",
                "Memory units free on one healthy card, 20 nodes: what asks for more than all of "
                "them have is refused with NoRoom.",
            ),
            "short",
            Query(
                highest(
                    f"max by (node) ({units(MEM, 'free')} * on (job, instance, uuid) "
                    f"group_left () {metric('card_healthy')})"
                ),
                "{{node}}",
            ),
        ),
        rows(
            Head(
                "Cards",
                "Free and held units of each card. A pod fits only where one card has its whole "
                "request: compare the largest number free, not the sum. Unexplained is memory in use "
                "that no slice accounts for.",
                24,
                8,
            ),
            ("node", "card", "uuid"),
            {
                Column("state", is_flag=True): per(card, metric("card_healthy")),
                Column("memory free"): per(card, units(MEM, "free")),
                Column("memory held"): per(card, units(MEM, "held")),
                Column("compute free", "percent"): per(card, units(CORE, "free")),
                Column("compute held", "percent"): per(card, units(CORE, "held")),
                Column("unexplained", "bytes"): per(card, metric("card_memory_unexplained_bytes")),
                Column("short", "bytes"): per(card, metric("card_memory_short_bytes")),
                Column("by claims"): per(card, metric("card_allocation_api", 'api="dra"')),
                Column("memory by the driver"): per(
                    card, metric("card_memory_enforcer", 'enforcer=~"driver.*"')
                ),
            },
        ),
        states(
            Head("GPUs that were unhealthy", "When they could be allocated, and when not.", 12),
            {0: ("unhealthy", RED), 1: ("healthy", GREEN)},
            Query(
                f"min by (node, card) ({metric('card_healthy')}) and "
                f"min by (node, card) (min_over_time({metric('card_healthy')}[$__range] @ end())) < 1",
                "{{node}} card {{card}}",
            ),
        ),
        rows(
            Head(
                "Unhealthy now, and why",
                "No card: the whole node. What a reason means: kubectl gpu explain REASON.",
                6,
            ),
            ("node", "card", "reason"),
            {
                Column("unhealthy"): (
                    f"{per('node, card, reason', metric('card_fault'))} or "
                    f"{per('node, card, reason', metric('node_fault'))}"
                )
            },
        ),
        ranking(
            Head("XIDs and other news of cards", "Since the agents started.", 6),
            "short",
            Query(
                highest(per("node, reason", metric("card_changes_total"))), "{{node}} {{reason}}"
            ),
        ),
    ]


def models_of_gpus() -> list[AnyPanel]:
    """What each model has left, by the metrics that ACK's dashboards read."""
    total, held = by_ack("DEV_FB_TOTAL"), by_ack("DEV_FB_ALLOCATED")
    ways = {"free": 0, "one pod": 1, "shared": 2}
    return [
        lines(
            Head("Memory held, by model", "Of the memory of all GPUs of a model.", 12),
            "percentunit",
            Query(
                f"{per('modelName', f'{total} * {held}')} / {per('modelName', total)}",
                "{{modelName}}",
            ),
        ).max(1),
        lines(
            Head("How GPUs are held", "By nobody, by one pod alone, or by slices.", 12),
            "short",
            *(
                Query(f"sum({by_ack('ALLOCATE_MODE')} == bool {mode})", way)
                for way, mode in ways.items()
            ),
            is_stacked=True,
        ),
    ]


def slices() -> list[AnyPanel]:
    """Who holds what, and uses how much of it."""
    who = "namespace, pod, container, node, card"
    used, limit = of_slices("slice_memory_used_bytes"), of_slices("slice_memory_limit_bytes")
    return [
        lines(
            Head("Slices by namespace", "Containers and cards, from Allocate until the pod ends."),
            "short",
            Query(f"count by (namespace) ({limit})", "{{namespace}}"),
            is_stacked=True,
        ),
        lines(
            Head(
                "Memory used, of the slice",
                "At 100 % the next allocation gets CUDA's out of memory. A pod shows once a "
                "program of it has used its card. The 20 fullest.",
            ),
            "percentunit",
            Query(highest(f"{used} / {limit}"), "{{namespace}}/{{pod}} {{container}}"),
        ).max(1),
        lines(
            Head(
                "Card time used, of the slice",
                "1 is the percentage that was asked for. Only containers with a cap below 100 % "
                "are measured. The 20 busiest.",
            ),
            "percentunit",
            Query(
                highest(
                    f"{of_slices('slice_core_used_ratio')} / "
                    f"({of_slices('slice_core_percent')} > 0) * 100"
                ),
                "{{namespace}}/{{pod}} {{container}}",
            ),
        ),
        rows(
            Head(
                "Who holds what",
                "Every slice now. Used and refused come from the isolation library, and are empty "
                "until a program of the container has used its card.",
                24,
                9,
            ),
            ("namespace", "pod", "container", "node", "card"),
            {
                Column("memory", "bytes"): per(who, limit),
                Column("used", "bytes"): per(who, used),
                Column("of it", "percentunit", is_bar=True): (
                    f"{per(who, used)} / {per(who, limit)}"
                ),
                Column("compute", "percent"): per(who, of_slices("slice_core_percent")),
                Column("card time", "percentunit"): per(who, of_slices("slice_core_used_ratio")),
                Column("allocations refused"): per(who, of_slices("slice_refused_total")),
                Column("by claim"): per(who, of_slices("slice_claim")),
                Column("memory by the driver"): per(
                    who, of_slices("slice_enforcers", 'memory="driver"')
                ),
            },
        ),
        *(
            lines(
                Head(
                    f"{what} of the slices' GPUs",
                    "Of the whole GPU, by dcgm-exporter: the 20 highest. Empty without the "
                    "recording rules of docs/operations/metrics.md.",
                    12,
                    6,
                ),
                unit,
                Query(
                    highest(f'gpu_slice:dcgm_{series}{{{_AGENT},namespace=~"$namespace"}}'),
                    "{{namespace}}/{{pod}} {{container}}",
                ),
            )
            for what, unit, series in (
                ("Temperature", "celsius", "temperature_celsius"),
                ("Power", "watt", "power_watts"),
            )
        ),
    ]


def requests() -> list[AnyPanel]:
    """What pods asked and how they were answered."""
    refused = metric("allocations_total", 'outcome!="granted"')
    seconds = per("le", f"rate({metric('allocate_seconds_bucket')}[$__rate_interval])")
    return [
        lines(
            Head("Decisions", "A second, by outcome; start-refused: a container may not start."),
            "cps",
            Query(
                per("outcome", f"rate({metric('allocations_total')}[$__rate_interval])"),
                "{{outcome}}",
            ),
            Query(
                per("outcome", f"rate({metric('claims_total')}[$__rate_interval])"),
                "claims {{outcome}}",
            ),
        ),
        ranking(
            Head(
                "Refusals by reason",
                "Since the agents started. The cause and cure of each: kubectl gpu explain REASON.",
            ),
            "short",
            Query(per("reason", refused), "{{reason}}"),
        ),
        lines(
            Head("Time to answer Allocate", "What the kubelet waits; pods are admitted in turn."),
            "s",
            Query(f"histogram_quantile(0.5, {seconds})", "p50"),
            Query(f"histogram_quantile(0.99, {seconds})", "p99"),
        ),
    ]


def agents() -> list[AnyPanel]:
    """Whether the agents themselves are well."""
    odd = {
        "nvml_restarts_total": "NVML restarts",
        "state_files_set_aside_total": "damaged files",
        "events_dropped_total": "Events lost",
    }
    return [
        states(
            Head("Agents that were not ready", "When /readyz answered 200, and when not.", 12),
            {0: ("not ready", RED), 1: ("ready", GREEN)},
            Query(
                f"min by (node) ({metric('ready')}) and "
                f"min by (node) (min_over_time({metric('ready')}[$__range] @ end())) < 1",
                "{{node}}",
            ),
        ),
        lines(
            Head(
                "Differences from the kubelet",
                "Grants that the kubelet does not know or units that only it knows, at the last "
                "look. More than 0 for minutes is worth a look at the agent's log.",
                6,
            ),
            "short",
            Query(highest(f"max by (node) ({metric('reconcile_drift')})"), "{{node}}"),
        ),
        lines(
            Head("API server not reached", "Agents, as they see it; granting goes on without.", 6),
            "short",
            Query(f"count({metric('api_reachable')}) - sum({metric('api_reachable')})", "agents"),
        ),
        lines(
            Head("Out of the ordinary", "Counted since each agent's start; steps are news.", 6),
            "short",
            *(
                Query(highest(per("node", metric(name))), f"{{{{node}}}} {text}")
                for name, text in odd.items()
            ),
            Query(
                highest(per("node, reason", metric("slice_repairs_total"))), "{{node}} {{reason}}"
            ),
        ),
        lines(
            Head("Registrations", "With the kubelet; a step where it or the agent restarted.", 6),
            "short",
            Query(highest(per("node", metric("registrations_total"))), "{{node}}"),
        ),
        lines(
            Head("Agents' memory", "Resident, without the NVML child.", 6),
            "bytes",
            Query(
                highest(f"max by (node) (process_resident_memory_bytes{{{_AGENT}}})"), "{{node}}"
            ),
        ),
        lines(
            Head("Agents' CPU", "Cores, without the NVML child.", 6),
            "short",
            Query(
                highest(
                    per("node", f"rate(process_cpu_seconds_total{{{_AGENT}}}[$__rate_interval])")
                ),
                "{{node}}",
            ),
        ),
    ]


def build() -> str:
    """The dashboard's JSON."""
    made = (
        dashboard.Dashboard("GPU slices")
        .uid("gpu-device-plugin")
        .description("Fractional GPUs: nodes, cards, slices, refusals and the agents themselves.")
        .tags(["gpu", "kubernetes", "gpu-device-plugin"])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(cluster_variable("gpu_device_plugin_build_info"))
        .with_variable(
            variable(
                "job", "Job", 'label_values(gpu_device_plugin_build_info{cluster=~"$cluster"}, job)'
            )
        )
        .with_variable(
            variable(
                "node",
                "Node",
                'label_values(gpu_device_plugin_build_info{cluster=~"$cluster",job=~"$job"}, node)',
            ).all_value(".*")
        )
        .with_variable(
            variable(
                "namespace",
                "Namespace",
                f"label_values({metric('slice_memory_limit_bytes')}, namespace)",
            ).all_value(".*")
        )
    )
    for title, panels in (
        ("At a glance", at_a_glance()),
        ("Nodes and cards", nodes_and_cards()),
        ("Models", models_of_gpus()),
        ("Slices", slices()),
        ("Requests", requests()),
        ("Agents", agents()),
    ):
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    plain = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    for number, panel in enumerate(plain["panels"], start=1):
        panel["id"] = number
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    PLACE.write_text(build(), encoding="utf-8")
