"""Writes the proofs of docs/contract.md: `python -m tools.contract_page`.

A test proves a requirement by its number, R-129, in its docstring, or all tests of a file by the file's.
tests/test_docs.py checks that the page is up to date.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "contract.md"
_ROW = re.compile(r"^\| (R-\d{3}) (\|[^|\n]*\|[^|\n]*\|)[^|\n]*\|$", re.MULTILINE)
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def proofs() -> dict[str, list[str]]:
    """Number -> tests that name it, as `file::test`, or as `file` if that does."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))
        own = {number: [name] for number in _numbers(tree)}
        of_tests: dict[str, list[str]] = defaultdict(list)
        for node in tree.body:
            if isinstance(node, _FUNCTION) and node.name.startswith("test_"):
                for number in _numbers(node):
                    of_tests[number].append(f"{name}::{node.name}")
        for number, tests in (of_tests | own).items():
            found[number] += tests
    return found


def text() -> str:
    """The page, with the last column as the tests say."""
    found = proofs()

    def row(match: re.Match[str]) -> str:
        tests = ", ".join(f"`{test}`" for test in found.get(match[1], ()))
        return f"| {match[1]} {match[2]} {tests}{' ' if tests else ''}|"

    return _ROW.sub(row, PAGE.read_text(encoding="utf-8"))


def _numbers(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return sorted(set(re.findall(r"\bR-\d{3}\b", ast.get_docstring(node) or "")))


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
