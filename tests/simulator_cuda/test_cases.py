"""Within one process the simulated driver does what CUDA's documentation says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator_cuda.nodes import PROGRAMS, Node

CASE = re.compile(r"CASE\((\w+)\)")


def _cases() -> list[tuple[str, str]]:
    """Every case of every program, read from its last lines."""
    return [
        (path.stem, name)
        for path in sorted(PROGRAMS.glob("*_cases.c"))
        for name in CASE.findall(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("program", "case"), _cases(), ids=lambda word: word)
def test_case(compiled: Callable[[str], Path], node: Node, program: str, case: str) -> None:
    """One case of a C program, in a process and on a card of its own."""
    outcome = node.run(compiled(program), case)

    assert outcome.returncode == 0, outcome.stderr
