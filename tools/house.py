"""`make house`: how large the parts are, and how that has changed since the last tag or a commit.

`python -m tools.house [COMMIT]`. Figures for a reader to judge by; no number here is a bound.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
import textwrap
from collections import Counter
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/gpu_device_plugin/"
Files = dict[str, str]
"""Path in the repository -> text."""


def now() -> Files:
    """What git tracks or would add, as it is on the disk."""
    names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
    paths = {name: ROOT / name for name in names.split("\0") if _counts(name)}
    return {name: path.read_text("utf-8") for name, path in paths.items() if path.is_file()}


def at(commit: str) -> Files:
    """The same of a commit."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit))) as archive:
        for member in archive:
            if _counts(member.name) and (file := archive.extractfile(member)):
                found[member.name] = file.read().decode()
    return found


def modules(files: Files) -> Files:
    """Those of the package that are more than a docstring, by their path in it."""
    return {
        name.removeprefix(PACKAGE): text
        for name, text in files.items()
        if re.fullmatch(rf"{PACKAGE}.*\.py", name) and not name.endswith("/__init__.py")
    }


def imported_by_one(package: Files) -> list[str]:
    """Modules that one neighbour alone imports: each is a subject of its own, or belongs into that one."""
    importers: dict[str, set[str]] = {}
    for name, text in package.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                for each in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    target = str(each).removeprefix("gpu_device_plugin.").replace(".", "/")
                    importers.setdefault(f"{target}.py", set()).add(name)
    return [
        name
        for name in sorted(package)
        if len(found := importers.get(name, set())) == 1
        and PurePath(*found).parent == PurePath(name).parent
    ]


def figures(files: Files) -> dict[str, int]:
    """What is counted -> how much of it there is."""
    package = modules(files)
    rooms: Counter[str] = Counter()
    for name, text in package.items():
        rooms[name.split("/")[0] if "/" in name else "other modules"] += _lines(text)
    kinds = {
        "lines of Python in src": rf"{PACKAGE}.*\.py",
        "lines of C in src": r"src/.*\.(c|h|def)",
        "lines of Python in tests": r"tests/.*\.py",
        "lines of Python in tools": r"tools/.*\.py",
        "lines of the chart": r"charts/.*\.(yaml|tpl|json)",
    }
    tests = "\n".join(text for name, text in files.items() if name.startswith("tests/"))
    pages = [text for name, text in files.items() if re.fullmatch(r"(docs/.*|[A-Z]+)\.md", name)]
    return {
        "modules of src": len(package),
        "imported by one neighbour alone": len(imported_by_one(package)),
        "lines of the longest module": max(map(_lines, package.values()), default=0),
        **{
            what: sum(_lines(text) for name, text in files.items() if re.fullmatch(pattern, name))
            for what, pattern in kinds.items()
        },
        "functions that are tests": len(re.findall(r"^(?:async )?def test_", tests, re.MULTILINE)),
        "pages": len(pages),
        "words of pages": sum(len(text.split()) for text in pages),
        **{f"  lines of {room}": count for room, count in sorted(rooms.items())},
    }


def report(files: Files, before: Files | None, since: str) -> str:
    """The figures, beside those of before if there are any."""
    found, earlier = figures(files), figures(before or {})
    lines = [f"{'':36}{'now':>9}" + (f"{since[:16]:>18}{'change':>9}" if before else "")]
    for what in {**found, **earlier}:
        is_now, was = found.get(what, 0), earlier.get(what, 0)
        change = f"{is_now - was:+,}" if is_now != was else ""
        line = f"{what:36}{is_now:9,}" + (f"{was:18,}{change:>9}" if before else "")
        lines.append(line.rstrip())
    names = (name.removesuffix(".py") for name in imported_by_one(modules(files)))
    alone = f"imported by one neighbour alone: {', '.join(names) or 'none'}"
    return "\n".join([*lines, *textwrap.wrap(alone, 100)])


def main(since: str) -> None:
    """Against that commit, or the last tag."""
    described = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"]
    done = subprocess.run(described, check=False, capture_output=True, text=True)
    since = since or done.stdout.strip()
    print(report(now(), at(since) if since else None, since))  # noqa: T201
    if not since:
        print("no tag yet: make house SINCE=COMMIT shows what changed")  # noqa: T201


def _counts(name: str) -> bool:
    return PurePath(name).suffix in {".py", ".c", ".h", ".def", ".md", ".yaml", ".tpl", ".json"}


def _lines(text: str) -> int:
    return text.count("\n")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, stdout=-1).stdout


if __name__ == "__main__":
    main("".join(sys.argv[1:]))
