"""At the end of a run each kind of skipped tests has one line, which says what brings it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.skips import KINDS, kind_of, lines

TESTS = Path(__file__).parent


def reasons() -> Iterator[tuple[str, str]]:
    """Where a test is skipped, and the words of the reason that stand in the code."""
    for path in TESTS.rglob("*.py"):
        if TESTS / "e2e" in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("pytest."):
                named = [word.value for word in node.keywords if word.arg == "reason"]
                is_skip = ast.unparse(node.func) == "pytest.skip"
                for reason in named or (node.args[:1] if is_skip else []):
                    yield f"{path.relative_to(TESTS)}:{node.lineno}", _words(reason)


def _words(reason: ast.expr) -> str:
    texts = [part.value for part in ast.walk(reason) if isinstance(part, ast.Constant)]
    return "".join(text for text in texts if isinstance(text, str))


def test_each_reason_for_a_skip_is_of_a_kind() -> None:
    kinds = {kind for _, kind in KINDS}
    assert [(at, said) for at, said in reasons() if said and kind_of(said) not in kinds] == []


def test_skipped_tests_are_counted_by_what_is_missing() -> None:
    """A reason of no kind is shown as it is, in one line."""
    skipped = ["no C compiler: cc", "Skipped: no C compiler here", "the moon is full\nand high"]
    assert lines(skipped) == [
        "    2 for a C compiler: apt install gcc libc6-dev",
        "    1 for the moon is full",
    ]
