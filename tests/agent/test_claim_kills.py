"""kill -9 at each named point of a claim's life: nothing is given twice, and nothing is left over."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at

from gpu_device_plugin.disk.failpoints import VARIABLE
from gpu_device_plugin.domain.node.allocation_api import AllocationApi

ROOT = Path(__file__).resolve().parents[2]
PREPARING = (
    "allocate.before-grant",
    "durable.before-write",
    "durable.before-fsync",
    "durable.after-fsync",
    "slices.before-limits",
    "slices.after-files",
    "cdi.before-rename",
    "prepare.before-answer",
)
ENDING = (
    "unprepare.before-release",
    "durable.before-write",
    "durable.before-fsync",
    "durable.after-fsync",
    "reconcile.before-files",
)
GOING_BACK = ("durable.before-write", "durable.before-fsync", "durable.after-fsync")
AGENT = """
import asyncio, os, sys
from pathlib import Path
from tests.agent.claim_node import ClaimsOnly, node_at
from tools.harness.waiting import until
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.disk.failpoints import VARIABLE

async def main():
    node = node_at(Path(sys.argv[1]), ClaimsOnly())
    await node.wiring.ledger_store.load(0.0)
    if sys.argv[2] == "go_back":
        await go_back(node)
    await getattr(node.wiring.claim_endpoint, sys.argv[2])(node.cluster.allocate("a", 0))
    await node.wiring.ledger_store.close(5)

async def go_back(node):
    point, endpoint = os.environ.pop("POINT"), node.wiring.claim_endpoint
    node.cluster.allocate("a", 0)
    endpoint.handover.scheduler_lag_seconds = 0.01
    endpoint.begin()
    task = asyncio.ensure_future(endpoint.run())
    await until(lambda: node.cluster.offers)
    await node.wiring.writer.run(lambda: None)  # what was offered is on the disk
    os.environ[VARIABLE] = point  # from here on: earlier writes pass the same points
    node.wiring.node_store.update(allocation_api=AllocationApi.DEVICE_PLUGIN)
    await task

asyncio.run(main())
"""


def agent_that_is_killed(directory: Path, call: str, point: str) -> None:
    """An agent of its own process, which a call of the kubelet's reaches."""
    variable = "POINT" if call == "go_back" else VARIABLE
    environment = {**os.environ, "PYTHONPATH": str(ROOT), variable: point}
    command = [sys.executable, "-c", AGENT, str(directory), call]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


async def next_agent(directory: Path) -> Node:
    """The agent that starts after it."""
    node = node_at(directory, ClaimsOnly())
    await node.wiring.ledger_store.load(0.0)
    node.wiring.claim_endpoint.restore()
    return node


def check_one_whole_slice(node: Node) -> None:
    """One grant, its files, and its CDI file."""
    (grant,) = node.wiring.ledger_store.ledger.grants.values()
    limits = node.directory / "r" / "slices" / grant.slice_id / "config" / "limits"
    assert "core_percent=30" in limits.read_text()
    assert node.files == ["uid-a"]
    use = node.wiring.ledger_store.ledger.use()
    assert [(u.memory_mib, u.core_percent) for u in use.values()] == [(2048, 30)]


@pytest.mark.parametrize("point", PREPARING)
async def test_killed_while_it_prepares(short_dir: Path, point: str) -> None:
    """The kubelet has no answer and asks again."""
    agent_that_is_killed(short_dir, "prepare", point)
    node = await next_agent(short_dir)
    await node.wiring.claim_endpoint.prepare(node.cluster.allocate("a", 0))

    check_one_whole_slice(node)
    await node.wiring.claim_endpoint.unprepare(node.cluster.allocate("a", 0))
    assert not node.wiring.ledger_store.ledger.grants
    assert node.files == []


@pytest.mark.parametrize("point", ENDING)
async def test_killed_while_it_gives_back(short_dir: Path, point: str) -> None:
    """Either the slice is still whole, or all of it is gone; the second call finishes it."""
    first = await next_agent(short_dir)
    await first.wiring.claim_endpoint.prepare(first.cluster.allocate("a", 0))
    agent_that_is_killed(short_dir, "unprepare", point)
    node = await next_agent(short_dir)
    if node.wiring.ledger_store.ledger.grants:
        check_one_whole_slice(node)
    else:
        assert node.files == []
    await node.wiring.claim_endpoint.unprepare(node.cluster.allocate("a", 0))

    assert not node.wiring.ledger_store.ledger.grants
    assert node.files == []


@pytest.mark.parametrize("point", GOING_BACK)
async def test_killed_while_cards_go_back(short_dir: Path, point: str) -> None:
    """A card with a claim that is allocated and not prepared stays withheld, whichever write was the last."""
    agent_that_is_killed(short_dir, "go_back", point)
    node = node_at(short_dir, ClaimsOnly(), AllocationApi.DEVICE_PLUGIN)
    await node.wiring.claim_endpoint.handover.load(0.0)

    assert "GPU-0" in node.wiring.claim_endpoint.withheld
    assert node.wiring.claim_endpoint.is_needed
