"""Which folder of src/isolation may include which: its own, and those below it in this list.

python src/check_includes.py [FOLDER]   says what points upwards, and fails if anything does.
"""

import re
import sys
from pathlib import Path

ORDER = ("hook", "view", "memory", "unasked", "compute", "books", "driver", "slice")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def upward(root: Path) -> list[str]:
    """A sentence for each include that does not point downwards."""
    faults = []
    for path in sorted(root.glob("*/*.[ch]")):
        own = path.relative_to(root).parts[0]
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            folder = target.split("/")[0]
            if "/" not in target or folder not in ORDER or own not in ORDER:
                faults.append(
                    f"{path.relative_to(root)}: {target} is in none of {', '.join(ORDER)}"
                )
            elif ORDER.index(folder) < ORDER.index(own):
                faults.append(
                    f"{path.relative_to(root)}: {own}/ is below {folder}/, and includes {target}"
                )
    return faults


def main() -> int:
    """The exit status: 1 if an arrow goes up."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "isolation"
    faults = upward(root)
    text = "\n".join(faults) or f"{root.name}: includes go down only ({' > '.join(ORDER)})"
    sys.stdout.write(f"{text}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
