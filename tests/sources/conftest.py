"""The programs that stand in for the sources' images, and containers to run them in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sources.containers import Containers
from tests.told import compile_program

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.c"))


@pytest.fixture
def containers(told_program: Path) -> Iterator[Containers]:
    """What runs in them ends with the test."""
    for source in PROGRAMS:
        compile_program(told_program.parent, source)
    made = Containers(told_program.parent)
    yield made
    made.close()
