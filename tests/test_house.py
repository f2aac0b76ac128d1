"""The promise: every module and function can be read at one sitting, and no machine leaks in."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "gpu_device_plugin"
MODULE_LINES = 450
FUNCTION_LINES = 40
DOMAIN_LAYERS = 6
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_proto" not in path.parts)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_module_fits_on_one_reading(path: Path) -> None:
    """At most 450 lines a module and 40 a function, docstrings included."""
    text = path.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, node.name


def rooms() -> dict[str, Path]:
    """Every module by its path, `__init__` apart."""
    return {str(path.relative_to(PACKAGE)): path for path in SOURCES if path.name != "__init__.py"}


def test_no_two_modules_have_one_name() -> None:
    """A name leads to one place."""
    names = [Path(name).stem for name in rooms()]

    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_domain_has_few_layers() -> None:
    """So that a reader can keep them in mind."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (domain,) = (each for each in contracts if each["id"] == "domain")

    assert len(domain["layers"]) <= DOMAIN_LAYERS


def test_no_two_c_files_of_a_program_have_one_name() -> None:
    """A file and its header are one module."""
    for program in ("isolation", "limit_hook", "selftest", "simulator"):
        found = (ROOT / "src" / program).rglob("*.[ch]")
        names = [path.stem for path in {path.with_suffix("") for path in found}]

        assert sorted(name for name in set(names) if names.count(name) > 1) == [], program


def test_no_two_public_classes_have_one_name() -> None:
    """Anyone who reads a name in a log or a review finds its class without a path."""
    found: dict[str, list[str]] = {}
    for name, path in rooms().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)

    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_a_package_has_no_logic_of_its_own() -> None:
    """Each `__init__` says what lives in its folder, and what does not."""
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent != PACKAGE:
            (text,) = ast.parse(path.read_text(encoding="utf-8")).body

            assert isinstance(text, ast.Expr), path
            assert isinstance(text.value, ast.Constant), path


SCHEME_WORDS = re.compile(
    r"gpu-mem|gpu-core|gpu-count|percentage|core_mem|CORE_MEM|CGPU\b(?!_DISABLE)|NodeMode\.SHARE"
    r"|(?<!honor[-_])cgpu"
)
SCHEME = "domain/fractions/"
NAMES_MODES = {
    "domain/node/modes.py": "the values of the node label, which choose between schemes",
    "domain/nvidia/mps.py": "commands of NVIDIA's MPS control daemon",
    "simulation/mps_control.py": "the same, of its stand-in",
    "settings/agent_settings.py": "the mode of a node without a label, and help texts for people",
    "settings/controller_settings.py": "a help text for people",
    "cli/overview.py": "the name of a command, `kubectl inspect cgpu`",
    "overview/inspection.py": "the name of that command",
    "overview/why.py": "an answer for people",
}


def test_only_the_scheme_of_fractions_names_its_resources_and_modes() -> None:
    """So that another way of sharing is an addition in one place; no exception is left over."""
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        name = str(path.relative_to(PACKAGE))
        lines = path.read_text(encoding="utf-8").splitlines()
        named = [line.strip() for line in lines if SCHEME_WORDS.search(line)]
        if named and not name.startswith(SCHEME):
            found[name] = named

    assert {name: lines for name, lines in found.items() if name not in NAMES_MODES} == {}
    assert NAMES_MODES.keys() <= found.keys()


def test_the_isolation_library_includes_downwards_only(tmp_path: Path) -> None:
    """Its folders are a list, and none includes one above it; nor do files include each other."""
    check = [sys.executable, str(ROOT / "src" / "check_includes.py")]
    library = subprocess.run(check, capture_output=True, text=True, check=False)
    assert library.returncode == 0, library.stdout

    upward = tmp_path / "slice" / "log.c"
    upward.parent.mkdir()
    upward.write_text('#include "slice/log.h"\n#include "view/view.h"\n', encoding="utf-8")
    found = subprocess.run([*check, str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stdout == "slice/log.c: slice/ is below view/, and includes view/view.h\n"

    upward.write_text('#include "slice/limits.h"\n', encoding="utf-8")
    upward.with_name("limits.h").write_text('#include "slice/log.h"\n', encoding="utf-8")
    found = subprocess.run([*check, str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stdout == "these include each other in a circle: slice/limits, slice/log\n"


def test_symbols_of_the_isolation_library_go_down_only(tmp_path: Path) -> None:
    """A header may declare what a higher folder defines: the objects tell. Without objects it says so."""
    check = [sys.executable, str(ROOT / "src" / "check_symbols.py"), str(tmp_path)]
    without = {name: value for name, value in os.environ.items() if name != "CI"}
    for environment, status in ((without, 0), (without | {"CI": "true"}, 1)):
        found = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == status
        assert found.stdout.startswith("isolation: not checked, no objects in ")

    objects = tmp_path / "isolation" / "CMakeFiles" / "gpuslice.dir"
    for name, text in (
        ("slice/slice", "void up(void); void down(void); void down(void) { up(); }"),
        ("hook/table", "void up(void); void down(void); void up(void) { down(); }"),
    ):
        (objects / name).parent.mkdir(parents=True)
        compiler = [shutil.which("cc") or pytest.skip("no cc"), "-xc", "-c", "-"]
        compiler += ["-o", str(objects / f"{name}.c.o")]
        subprocess.run(compiler, input=text, text=True, check=True)
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "isolation/slice/slice: needs up of hook/table, which is above" in found.stdout
    assert "these files need themselves in circles: hook/table, slice/slice" in found.stdout


def test_tools_do_not_depend_on_tests() -> None:
    """What both need, stand-ins and clusters, is in tools/harness."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("tools", ".ci", "src")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(from|import) tests\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert found == []


def test_no_path_of_a_machine_and_no_registry_address_is_tracked() -> None:
    """Anyone who clones this sees nothing of the machines on which it was written."""
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


SUFFIXES = {".py", ".c", ".h", ".def", ".md", ".yaml", ".tpl", ".json", ".sh", ".toml"}
OTHERS = ("kubernetes", "HAMi", "HAMi-core", "k8s-device-plugin", "kai-scheduler")


@cache
def tracked_texts() -> list[Path]:
    """Every file of the repository that a person reads."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    paths = [ROOT / name for name in names]
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file()]


def citations(text: str) -> set[str]:
    """Pages that a text names; addresses of other sites do not count."""
    text = re.sub(r"\w+://\S+", "", text)
    pages = set(re.findall(r"(?<![\w*{<])[\w./-]*\w\.md\b", text))
    return pages | {f"docs/adr/{number}" for number in re.findall(r"\bdocs/adr/(\d{4})\b", text)}


def test_every_page_that_is_cited_is_in_the_repository() -> None:
    """A reader has nothing else."""
    missing = []
    for path in tracked_texts():
        text = path.read_text(encoding="utf-8")
        for cited in citations(text) if ".md" in text or "docs/adr" in text else ():
            name, _, _ = cited.partition("#")
            places = (ROOT, ROOT / "docs", ROOT / "docs" / "adr", path.parent)
            is_number = bool(re.fullmatch(r"docs/adr/\d{4}", name))
            found = list(ROOT.glob(f"{name}-*.md")) if is_number else []
            if not found and not any((place / name).is_file() for place in places):
                missing.append(f"{path.relative_to(ROOT)}: {cited}")

    assert missing == []


def words_of(path: Path) -> str:
    """The docstrings and comments of a Python file; a page as it is."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    alone = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (str(each.value) for each in alone if isinstance(each, ast.Constant))
    return "\n".join([*re.findall(r"(?:^|\s)#(.*)$", text, re.MULTILINE), *strings])


def cited_modules(path: Path) -> set[str]:
    """Paths that begin with a folder of the package or of the code, in Python dotted names too, and names of files."""
    folders = [each.name for each in PACKAGE.iterdir() if each.is_dir() and each.name[0] != "_"]
    first, text = "|".join([*folders, "src", "tests", "tools"]), words_of(path)
    found = re.findall(rf"(?<![\w./*-])(?:{first})(?:/\w[\w-]*)+(?:\.\w+)*", text)
    if path.suffix == ".py":
        found += re.findall(rf"`((?:{first})(?:\.\w+)+)", text)
        found += re.findall(r"(?<![\w./*-])\w+\.py\b", text)
    return set(found)


def is_there(cited: str) -> bool:
    """Whether it is a folder, a file, a module, or something in a module."""
    bases = (ROOT, PACKAGE)
    if "/" in cited:
        return any((base / cited).exists() or (base / f"{cited}.py").exists() for base in bases)
    if cited.endswith(".py"):
        return any(path.name == cited for path in tracked_texts())
    parts = cited.split(".")
    for end in range(len(parts), 0, -1):
        for module in (base.joinpath(*parts[:end]) for base in bases):
            if (file := module.with_suffix(".py")).is_file():
                return all(re.search(rf"\b{name}\b", file.read_text()) for name in parts[end:])
            if end == len(parts) and module.is_dir():
                return True
    return False


def test_every_module_that_is_cited_is_in_the_repository() -> None:
    """In docstrings, comments and pages; a record of a decision says what there was then."""
    texts = [path for path in tracked_texts() if path.suffix in {".py", ".md"}]
    missing = [
        f"{path.relative_to(ROOT)}: {cited}"
        for path in texts
        if "adr" not in path.parts
        for cited in sorted(cited_modules(path))
        if not is_there(cited)
    ]

    assert missing == []


def test_no_merge_is_left_half_done() -> None:
    """Markers of a conflict in a page break nothing else."""
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    left = [path for path in tracked_texts() if marks.search(path.read_text(encoding="utf-8"))]

    assert left == []


def test_no_work_item_of_ours_is_cited() -> None:
    """Only threads that the public can read, with the project that they are of."""
    found = []
    for path in tracked_texts():
        text = path.read_text(encoding="utf-8")
        for cited in re.finditer(r"(?<=\s)\(?((?:issue|stop) #?\d+)", text):
            who = "".join(text[: cited.start()].rsplit(maxsplit=1)[-1:])
            if who.strip('("').lower() not in {name.lower() for name in OTHERS}:
                found.append(f"{path.relative_to(ROOT)}: {who} {cited[1]}")

    assert found == []
