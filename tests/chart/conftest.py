"""Tests of the chart need helm and a linter, which tests/e2e/install.sh builds."""

from pathlib import Path

import pytest
from tests.chart.rendering import HELM, LINTER


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip visibly where they were never built on this machine."""
    missing = [program.name for program in (HELM, LINTER) if not program.exists()]
    if not missing:
        return
    reason = f"{' and '.join(missing)} not built on this machine: run tests/e2e/install.sh"
    skip = pytest.mark.skip(reason=reason)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)
