"""An agent's parts without a kubelet: settings below one directory, and parts at work beside a test."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpu_device_plugin.settings.agent_settings import Settings, load_settings

_DIRECTORIES = ("state_dir", "run_dir", "library_dir", "kubelet_dir")


def settings_below(root: Path, **others: str) -> Settings:
    """Those of an agent without an API server, whose directories are made and named like their settings."""
    for name in _DIRECTORIES:
        (root / name).mkdir()
    directories = {name: str(root / name) for name in _DIRECTORIES}
    return load_settings({"node_name": "n1", "standalone": True, **directories, **others}, {}, None)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A part of the agent at work, until the block ends."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
