"""kill -9 at each named point of a claim's life: nothing is given twice, and nothing is left over."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.claim_node import ClaimsOnly, Node, node_at

from gpu_device_plugin.disk.failpoints import VARIABLE

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
AGENT = """
import asyncio, sys
from pathlib import Path
from tests.agent.claim_node import ClaimsOnly, node_at

async def main():
    node = node_at(Path(sys.argv[1]), ClaimsOnly())
    await node.wiring.ledger_store.load(0.0)
    await getattr(node.wiring.claim_endpoint, sys.argv[2])(node.cluster.allocate("a", 0))
    await node.wiring.ledger_store.close(5)

asyncio.run(main())
"""


def agent_that_is_killed(directory: Path, call: str, point: str) -> None:
    """An agent of its own process, which a call of the kubelet's reaches."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: point}
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
