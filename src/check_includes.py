"""Which part of src/isolation may include which: arrows go down only.

A folder includes its own files and those of folders below it in ORDER; no file, taken together with its
header, is included by what it includes itself.

python src/check_includes.py [FOLDER]   says what points upwards or in a circle, and fails if anything does.
"""

import re
import sys
from pathlib import Path

ORDER = ("hook", "view", "memory", "overhead", "compute", "books", "driver", "slice")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def included(root: Path) -> dict[Path, list[str]]:
    """What each file includes in quotes, as written there."""
    return {
        path.relative_to(root): INCLUDE.findall(path.read_text(encoding="utf-8"))
        for path in sorted(root.glob("*/*.[ch]"))
    }


def upward(files: dict[Path, list[str]]) -> list[str]:
    """A sentence for each include that does not point downwards."""
    faults = []
    for path, targets in files.items():
        own = path.parts[0]
        for target in targets:
            folder = target.split("/")[0]
            if "/" not in target or folder not in ORDER or own not in ORDER:
                faults.append(f"{path}: {target} is in none of {', '.join(ORDER)}")
            elif ORDER.index(folder) < ORDER.index(own):
                faults.append(f"{path}: {own}/ is below {folder}/, and includes {target}")
    return faults


def in_circles(files: dict[Path, list[str]]) -> list[str]:
    """A sentence for each set of files that, each with its header, include each other in a circle."""
    arrows: dict[str, set[str]] = {}
    for path, targets in files.items():
        own = path.with_suffix("").as_posix()
        arrows.setdefault(own, set()).update(
            target.removesuffix(".h") for target in targets if target.endswith(".h")
        )
        arrows[own].discard(own)
    beyond = {own: reached(arrows, own) for own in arrows}
    circles = {
        frozenset(other for other in beyond[own] if own in beyond[other])
        for own in arrows
        if own in beyond[own]
    }
    return [
        f"these include each other in a circle: {', '.join(sorted(circle))}"
        for circle in sorted(circles, key=sorted)
    ]


def reached(arrows: dict[str, set[str]], start: str) -> set[str]:
    """What a file includes, and what that includes, and so on."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = arrows.get(ahead.pop(), set()) - found
        found |= new
        ahead.extend(new)
    return found


def main() -> int:
    """The exit status: 1 if an arrow goes up or round."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "isolation"
    files = included(root)
    faults = upward(files) + in_circles(files)
    text = "\n".join(faults) or f"{root.name}: includes go down only ({' > '.join(ORDER)})"
    sys.stdout.write(f"{text}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
