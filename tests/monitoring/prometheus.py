"""A real Prometheus that scrapes one agent with the labels that the chart's ServiceMonitor gives."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.test_docs import page
from tools.harness.ports import free_port
from tools.harness.waiting import until

JOB, NODE = "gpu-device-plugin", "n1"
SCRAPE_SECONDS = 1
# What Prometheus' operator adds to a target that a ServiceMonitor found: the agent's own pod.
TARGET_LABELS = {
    "namespace": "gpu-device-plugin",
    "pod": "gpu-device-plugin-x7k2p",
    "container": "agent",
    "service": "gpu-device-plugin",
    "endpoint": "metrics",
    "node": NODE,
}


@cache
def programs() -> Path:
    """The directory of prometheus and promtool; the test is skipped where they cannot be had."""
    script = Path(__file__).with_name("install.sh")
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no Prometheus: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    command = [programs() / "promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one; ask it."""

    url: str
    log: Path

    async def ask(self, page: str, **parameters: str) -> dict[str, Any]:
        """A page of its API, whatever it answers; {} while it does not listen."""
        address = f"{self.url}/api/v1/{page}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(address, params=parameters) as answer,
            ):
                return dict(await answer.json())
        except aiohttp.ClientError:
            return {}

    async def series(self, query: str) -> Sequence[dict[str, Any]]:
        """The result of an instant query.

        Raises:
            AssertionError: Prometheus cannot read it.
        """
        answer = await self.ask("query", query=query)
        assert answer.get("status") == "success", f"{query}: {answer}"
        data = answer["data"]
        return list(data["result"]) if data["resultType"] == "vector" else [data["result"]]

    async def values_of(self, label: str, selector: str) -> set[str]:
        """What a variable `label_values(selector, label)` offers."""
        answer = await self.ask(f"label/{label}/values", **{"match[]": selector})
        return set(answer["data"])


@asynccontextmanager
async def running_prometheus(
    root: Path, agent_port: int, *rules: Path
) -> AsyncIterator[Prometheus]:
    """Scrapes the agent every second, until the end."""
    port = free_port()
    scrape = {
        "job_name": JOB,
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{agent_port}"], "labels": TARGET_LABELS}],
    }
    settings: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": f"{SCRAPE_SECONDS}s",
        },
        "scrape_configs": [scrape],
        "rule_files": [str(file) for file in rules],
    }
    file, log = root / "prometheus.yml", root / "prometheus.log"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            programs() / "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={root / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stderr=sink,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
    made = Prometheus(f"http://127.0.0.1:{port}", log)

    async def scrapes() -> bool:
        assert process.returncode is None, log.read_text()[-3000:]
        answer = await made.ask("query", query=f'up{{job="{JOB}"}}')
        return [row["value"][1] for row in answer.get("data", {}).get("result", ())] == ["1"]

    try:
        await until(scrapes, 60, lambda: log.read_text()[-3000:])
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def documented_rules(root: Path) -> Path:
    """The rules that docs/operations/metrics.md has for clusters with dcgm-exporter, as a file."""
    (rules,) = re.findall(
        r"```yaml\n(groups:.*?)```", page("docs/operations/metrics.md"), re.DOTALL
    )
    file = root / "documented-rules.yaml"
    file.write_text(rules, encoding="utf-8")
    return file


def filled_in(query: str, **chosen: str) -> str:
    """A query of the dashboard as Grafana sends it, with every variable chosen."""
    every = dict.fromkeys(("cluster", "node", "namespace"), ".*")
    values = {"__rate_interval": "1m", "__range": "1h", "job": JOB, **every, **chosen}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], query)
