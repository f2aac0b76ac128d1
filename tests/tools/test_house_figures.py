"""The promise: `make house` shows in one screen how the parts have grown, and forbids nothing."""

from tools.house import PACKAGE, at, report

BEFORE = {f"{PACKAGE}cli/main.py": "import os\n", "README.md": "one two\n"}
NOW = {
    f"{PACKAGE}cli/__init__.py": '"""Flags."""\n',
    f"{PACKAGE}cli/main.py": "from gpu_device_plugin.cli.words import WORDS\n",
    f"{PACKAGE}cli/words.py": "WORDS = 1\nMORE = 2\n",
    "README.md": "one two three\n",
    "tests/test_a.py": "def test_a() -> None:\n    pass\n",
}


def test_figures_stand_beside_those_of_before() -> None:
    told = {line[:36].strip(): line[36:].split() for line in report(NOW, BEFORE, "v1").splitlines()}

    assert told[""] == ["now", "v1", "change"]
    assert told["modules of src"] == ["2", "1", "+1"]
    assert told["lines of Python in src"] == ["4", "1", "+3"]
    assert told["lines of cli"] == ["3", "1", "+2"]
    assert told["words of pages"] == ["3", "2", "+1"]
    assert told["functions that are tests"] == ["1", "0", "+1"]
    assert told["lines of C in src"] == ["0", "0"]


def test_a_module_that_one_neighbour_alone_imports_is_named() -> None:
    assert report(NOW, None, "").endswith("imported by one neighbour alone: cli/words")
    assert report(BEFORE, None, "").endswith("imported by one neighbour alone: none")


def test_any_commit_can_be_read_and_a_screen_is_enough() -> None:
    files = at("HEAD")

    assert len(report(files, files, "HEAD").splitlines()) < 45
