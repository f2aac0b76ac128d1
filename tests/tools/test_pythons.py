"""The promise: .ci/run tries each other Python from 3.11 on that this machine can start, by its full version."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "pythons.sh"
PRETENDED = f"""#!/bin/sh
exec {sys.executable} -c 'import sys
del sys.argv[0]
class Version(tuple):
    releaselevel = "{{level}}"
sys.version_info = Version({{version}})
sys.prefix = sys.base_prefix
exec(sys.stdin.read())' "$1" "$2"
"""


def pretend(place: Path, *version: int, level: str = "final") -> Path:
    """A Python of that version, as pyenv installs one."""
    found = place / "versions" / ".".join(map(str, version)) / "bin" / "python3"
    found.parent.mkdir(parents=True)
    found.write_text(PRETENDED.format(version=version, level=level))
    found.chmod(0o755)
    return found


def listed(**environment: str) -> list[str]:
    """What the script finds beside this machine's own."""
    done = subprocess.run(
        [SCRIPT, "list"], env=environment, capture_output=True, text=True, check=True
    )
    return [word for word in done.stdout.split() if not word.partition(":")[2].startswith("/usr/")]


def test_pyenvs_pythons_are_found_without_path_and_only_those_that_start(tmp_path: Path) -> None:
    """From 3.11 on, released, each once; a shim that starts nothing is none."""
    first, last = pretend(tmp_path, 3, 97, 1), pretend(tmp_path, 3, 98, 10)
    pretend(tmp_path, 3, 10, 13)
    pretend(tmp_path, 3, 99, 0, level="alpha")
    shim = tmp_path / "shims" / "python3.98"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    (shim.parent / "python3.98-config").symlink_to("/bin/true")
    path = f"{shim.parent}:{last.parent}:/usr/bin:/bin"

    found = listed(PYENV_ROOT=str(tmp_path), HOME=str(tmp_path / "none"), PATH=path)
    assert found == [f"3.97.1:{first}", f"3.98.10:{last}"]
    assert listed(PYENV_ROOT=str(tmp_path), HOME=os.devnull) == found
