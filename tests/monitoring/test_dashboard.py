"""The promise: the dashboard is the one that its program writes, and every panel of it shows something."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.chart.rendering import CHART
from tests.monitoring.prometheus import (
    NODE,
    Prometheus,
    documented_rules,
    filled_in,
    programs,
    running_prometheus,
)
from tests.test_docs import page
from tools.dashboards.agent import PLACE, build
from tools.harness.boxes import Boxes
from tools.harness.isolation.box import MIB, OUT_OF_MEMORY
from tools.harness.rig import MEM, Rig, running_rig, slice_of, until

XID, CARD_OF_XID = 48, 3
DASHBOARD: dict[str, Any] = json.loads(PLACE.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
RULES = CHART / "monitoring" / "alerts.yaml"
UNITS = {"short", "percent", "percentunit", "bytes", "s", "cps", "celsius", "watt"}
OF_OTHER_NODES = re.compile(r'slice_claim|claims_total|api="dra"|_enforcer|_ready\{[^}]*\}\[')
"""Of claims, of memory that the driver holds, and of an agent that was not ready."""
EXPORTED = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")


def queries() -> list[tuple[str, str]]:
    """Panel and query, of all of them."""
    return [(p["title"], target["expr"]) for p in PANELS for target in p["targets"]]


def test_the_file_is_the_one_that_the_program_writes() -> None:
    """To write it again: python -m tools.dashboards.agent."""
    assert PLACE.read_text(encoding="utf-8") == build()


def test_every_panel_says_what_it_means_and_in_which_unit() -> None:
    """A number without either misleads."""
    for panel in PANELS:
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        units = {panel["fieldConfig"]["defaults"].get("unit")} | {
            entry["value"]
            for override in panel["fieldConfig"].get("overrides", ())
            for entry in override["properties"]
            if entry["id"] == "unit"
        }
        assert (units - {None}) <= UNITS, panel["title"]
        assert (units - {None}) or panel["type"] == "state-timeline", panel["title"]


def test_no_panel_covers_another_and_no_row_has_a_gap() -> None:
    """Grafana's grid is 24 wide; a dashboard is read line by line."""
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        for cell in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, (panel["title"], taken.get(cell))
            taken[cell] = panel["title"]
    height = max(y for _, y in taken) + 1

    assert {(x, y) for x in range(24) for y in range(height)} == set(taken)


def test_every_query_is_of_what_was_chosen_above() -> None:
    """A variable that one panel ignores makes two panels disagree."""
    for title, query in queries():
        selectors = re.findall(r"\w+\{([^}]*)\}", query)
        assert selectors, title
        for selector in selectors:
            assert 'cluster=~"$cluster",job=~"$job",node=~"$node"' in selector, (title, query)
        assert ("slice" in query) == ("$namespace" in query) or "repairs" in query, title


def test_no_picture_has_a_line_for_each_card_or_slice() -> None:
    """A cluster of 40 nodes has 320 cards."""
    for panel in PANELS:
        for query in (target["expr"] for target in panel["targets"]):
            each = re.match(r"(sum|max|min) by \((node|.*(card|pod))|gpu_", query)
            assert not each or panel["type"] == "table" or "_over_time" in query, panel["title"]


def test_every_metric_of_the_agent_is_shown() -> None:
    """What is not worth a panel is not worth counting; the version alone serves the variables."""
    told = set(
        re.findall(
            r"(?:^\||,) `((?:gpu_device_plugin|DCGM_CUSTOM)_\w+)",
            page("docs/operations/metrics.md"),
            re.MULTILINE,
        )
    )
    shown = set(
        re.findall(
            r"(?:gpu_device_plugin|DCGM_CUSTOM)_\w+", " ".join(query for _, query in queries())
        )
    )
    shown = {name.removesuffix("_bucket") for name in shown}

    assert told - shown == {"gpu_device_plugin_build_info"}


async def keep_busy(rig: Rig, boxes: Boxes) -> None:
    """Pods that are granted and refused, one at work beyond its slice, and a broken card."""
    await rig.admit("busy", slice_of(2, 30))
    await rig.admit("idle", slice_of(4, 50))
    assert not (await rig.admit("too-big", slice_of(16, 30))).is_admitted
    assert not (await rig.admit("odd-share", slice_of(2, 7))).is_admitted
    told = await boxes.start(rig, "busy")
    assert told(f"alloc 0 {337 * MIB}") == [0]
    assert told(f"alloc 1 {16160 * MIB}") == [OUT_OF_MEMORY]
    told.tell("work stream 1000000 600")
    with (rig.run / "slices" / rig.grant("idle").slice_id / "region").open("ab") as region:
        region.truncate(2 * MIB)
    rig.cards.xid(CARD_OF_XID, XID)


def exporter_rules(root: Path) -> Path:
    """In place of dcgm-exporter: its two series of the agent's cards, without labels of the agent's."""
    cards = 'max by (UUID) (label_replace(gpu_device_plugin_card_healthy, "UUID", "$1", "uuid", "(.+)"))'
    rules = [{"record": name, "expr": f"61 * {cards}"} for name in EXPORTED]
    file = root / "exporter-rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dcgm-exporter", "rules": rules}]}))
    return file


async def until_fired(prometheus: Prometheus, names: set[str]) -> None:
    """The alerts that need no patience fire on real series, and every rule can be evaluated."""
    fired: set[str] = set()

    async def all_fired() -> bool:
        rows = await prometheus.series('ALERTS{alertstate="firing"}')
        fired.update(row["metric"]["alertname"] for row in rows)
        return names <= fired

    await until(all_fired, 40, lambda: f"only {fired}")
    groups = (await prometheus.ask("rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []


@pytest.mark.long
async def test_every_query_finds_something_in_a_prometheus_that_scrapes_an_agent(
    boxes: Boxes, tmp_path: Path
) -> None:
    """Each parses, and none is empty on a node where everything happened that has a panel.

    But claims: they need the other allocation API, whose series tests/agent/test_claims_shown.py shows.
    """
    programs()
    rules = (RULES, exporter_rules(tmp_path), documented_rules(tmp_path))
    async with running_rig() as rig, running_prometheus(tmp_path, rig.port, *rules) as prometheus:
        await keep_busy(rig, boxes)
        empty = {query: title for title, query in queries()}

        async def all_found() -> bool:
            for query in tuple(empty):
                if await prometheus.series(filled_in(query)) or OF_OTHER_NODES.search(query):
                    del empty[query]
            return not empty

        await until(all_found, 90, lambda: f"without a result: {empty}")
        await until_fired(prometheus, {"GpuXid", "GpuRegionGrown"})
        _, cluster, *others = DASHBOARD["templating"]["list"]
        assert cluster["allValue"] == ".*", "a Prometheus of one cluster has no such label"
        for variable in others:
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found, variable
            assert await prometheus.values_of(found[2], filled_in(found[1])), variable["name"]
        ((held),) = await prometheus.series(
            filled_in(
                f'sum(gpu_device_plugin_units{{node="$node",resource="{MEM}",state="held"}})',
                node=NODE,
            )
        )
        assert held["value"][1] == "6"
        # The pod of a slice is the tenant's, although the agent's own pod was scraped.
        slices = await prometheus.series("gpu_device_plugin_slice_memory_limit_bytes")
        assert {row["metric"]["pod"] for row in slices} == {"busy", "idle"}
