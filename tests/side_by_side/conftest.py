"""These tests need NVIDIA's own plugin, which tests/e2e/install.sh builds, and mounts of their own."""

import os
from pathlib import Path

import pytest
from tools.harness.cluster.binaries import NVIDIA_COMMANDS, nvidia_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip visibly where they cannot run."""
    missing = [name for name in NVIDIA_COMMANDS if not nvidia_path(name).exists()]
    reason = f"{', '.join(missing)} not built on this machine: run tests/e2e/install.sh"
    if not missing and os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason=reason if missing else "mounts in namespaces: run as root")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)
