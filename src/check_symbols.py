"""Which file of the C parts needs which, by the symbols of the built objects: arrows go down only.

`check_includes.py` cannot see a header that declares what a higher folder defines; the linker's symbols tell.
No file needs one of a higher folder, and none needs itself in a circle.

python src/check_symbols.py [BUILD]   reads the objects of src/native.sh, in build/cmake; without objects or `nm`
it says so, and fails where CI is set.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from check_includes import ORDER, reached

SOURCE = Path(__file__).parent
# The folders of each part from the highest to the lowest; "" is the part's own.
FOLDERS = {"isolation": ORDER, "simulator": ("cuda", "nvml", "")}


def needs(part: str, objects: Path, nm: str) -> dict[str, dict[str, set[str]]]:
    """The symbols that each file of a part takes from which other, by its path in the part without suffix."""
    defined: dict[str, str] = {}
    taken: list[tuple[str, str]] = []
    for path in sorted(objects.glob("**/*.c.o")):
        relative = path.relative_to(objects).as_posix().removesuffix(".c.o")
        name = re.sub(r"CMakeFiles/[^/]+\.dir/", "", relative)
        if not (SOURCE / part / f"{name}.c").exists():
            continue  # of a file that is gone, or of a test
        listed = subprocess.run([nm, "-P", path], capture_output=True, text=True, check=True)  # noqa: S603
        symbols = [line.split()[:2] for line in listed.stdout.splitlines()]
        taken += [(name, symbol) for symbol, kind in symbols if kind in "Uw"]
        defined |= {symbol: name for symbol, kind in symbols if kind.isupper() and kind != "U"}
    arrows: dict[str, dict[str, set[str]]] = {}
    for name, symbol in taken:
        if defined.get(symbol, name) != name:
            arrows.setdefault(name, {}).setdefault(defined[symbol], set()).add(symbol)
    return arrows


def faults(part: str, arrows: dict[str, dict[str, set[str]]]) -> list[str]:
    """A sentence for each arrow that goes up, and one for files in circles."""
    order = FOLDERS[part]
    found = []
    for name, targets in sorted(arrows.items()):
        for target, symbols in sorted(targets.items()):
            own, other = name.rpartition("/")[0], target.rpartition("/")[0]
            if order.index(other) < order.index(own):
                found.append(
                    f"{part}/{name}: needs {', '.join(sorted(symbols))} of {target}, which is above"
                )
    names = {name: set(targets) for name, targets in arrows.items()}
    circular = sorted(name for name in names if name in reached(names, name))
    if circular:
        found.append(f"{part}: these files need themselves in circles: {', '.join(circular)}")
    return found


def main() -> int:
    """The exit status: 1 if an arrow goes up or round, or CI has nothing to check."""
    build = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE.parent / "build" / "cmake"
    nm = shutil.which("nm")
    status = 0
    for part in FOLDERS:
        arrows = needs(part, build / part, nm) if nm else {}
        if not arrows:
            sys.stdout.write(
                f"{part}: not checked, no objects in {build} or no nm: run src/native.sh\n"
            )
            status |= "CI" in os.environ
            continue
        wrong = faults(part, arrows)
        sys.stdout.write("\n".join(wrong or [f"{part}: no symbol goes up or round"]) + "\n")
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
