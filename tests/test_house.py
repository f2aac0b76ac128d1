"""The promise: every module and function can be read at one sitting, and no machine leaks in."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULE_LINES = 300
FUNCTION_LINES = 40
SOURCES = sorted(
    path
    for path in (ROOT / "src" / "gpu_device_plugin").rglob("*.py")
    if "_proto" not in path.parts
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_module_fits_on_one_reading(path: Path) -> None:
    """At most 300 lines a module and 40 a function, docstrings included."""
    text = path.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, node.name


def test_no_path_of_a_machine_and_no_registry_address_is_tracked() -> None:
    """Whoever clones this sees nothing of the machines on which it was written."""
    forbidden = re.compile(r"/([w]ork|[r]oot)/|([p]ypi|[p]ythonhosted|[g]olang|[n]pmjs)\.(org|io)/")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = [
        f"{name}: {line.strip()}"
        for name in tracked
        if (ROOT / name).is_file() and name not in {"LICENSE", "tests/test_house.py"}
        for line in (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()
        if forbidden.search(line)
    ]

    assert found == []
