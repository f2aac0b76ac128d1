"""The reason words that the agent says in refusals, Events and metrics, found in its source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "gpu_device_plugin"

# Where such a word is said: as a keyword, by a function of that name, or at a position of a call.
KEYWORDS = {"reason", "note_reason"}
POSITIONS = {
    "Check": 0,
    "_report_new": 0,
    "node_note": 0,
    "_note": 1,
    "set_fault": 0,
    "fault": 0,
    "EventNote": 1,
    "Fault": 0,
    "Outage": 0,
    "Change": 2,
    "Rule": 2,
}
WORD = re.compile(r"[A-Z][A-Za-z0-9]*")


@cache
def raised_reasons() -> frozenset[str]:
    """Every word of the agent; one that is made up while running is told by its fixed part.

    Simulation and command line only repeat words of others.
    """
    # From constants of another module.
    found = {"Absent", "NVMLUnanswered", "TakenOut"}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] in {"simulation", "cli"} or "_proto" in parts:
            continue
        found |= set(Reasons(ast.parse(path.read_text(encoding="utf-8"))).found())
    return frozenset(word for word in found if WORD.fullmatch(word))


class Reasons:
    """The words of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}

    def found(self) -> Iterator[str]:
        """Texts in every place where a word is said; among them are all words."""
        for scope in ast.walk(self._tree):
            if isinstance(scope, ast.FunctionDef) and scope.name in KEYWORDS:
                yield from _constants(scope)
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                for said in _all_said(scope):
                    yield from self._texts(said, scope)
            elif isinstance(scope, ast.AnnAssign) and getattr(scope.target, "id", "") in KEYWORDS:
                yield from _constants(scope)
            elif isinstance(scope, ast.Assign):  # a table of the module
                for said in _all_said(scope.value):
                    yield from _constants(said)

    def _texts(self, said: ast.expr, scope: ast.AST) -> Iterator[str]:
        """The text itself, what its name was set to, or what its function returns."""
        yield from _constants(said)
        for node in ast.walk(said):
            if isinstance(node, ast.Name):
                for line in ast.walk(scope):
                    if isinstance(line, ast.Assign) and _sets(line, node.id):
                        yield from _constants(line)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in self._functions:
                yield from _constants(self._functions[getattr(node.func, "id", "")])


def _all_said(tree: ast.AST) -> Iterator[ast.expr]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            yield from _said(call)


def _said(call: ast.Call) -> Iterator[ast.expr]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    position = POSITIONS.get(name, len(call.args))
    yield from call.args[position : position + 1]
    yield from (word.value for word in call.keywords if word.arg in KEYWORDS)


def _sets(line: ast.Assign, name: str) -> bool:
    return any(getattr(target, "id", "") == name for target in line.targets)


def _constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
