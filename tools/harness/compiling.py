"""What tests compile is kept in build/compiled by what it is made of: workers and later runs share it."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_KEPT = ROOT / "build" / "compiled"


def compile_kept(command: Sequence[str | Path], target: Path) -> Path:
    """Put at `target` what the command makes (`-o` is added): run, or as it was made before.

    Raises:
        subprocess.CalledProcessError: The compiler refuses.
    """
    words = [str(word) for word in command]
    parts = [_everything_else(words[0])]
    parts += [part for word in words for part in (word.encode(), _content(Path(word)))]
    kept = _KEPT / hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    _KEPT.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker compiles, the others take what it made
        if not kept.exists():
            new = kept.with_suffix(".new")
            subprocess.run([*words, "-o", str(new)], check=True)
            new.rename(kept)
    shutil.copy(kept, target)
    return target


def _content(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""


@cache
def _everything_else(compiler: str) -> bytes:
    """The compiler, and what sources may include of this tree."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    headers = (
        path for name in ("src", "tests", "tools") for path in (ROOT / name).rglob("*.[hd]*")
    )
    kept = sorted(path for path in headers if path.suffix in (".h", ".def"))
    return version + b"".join(str(path).encode() + _content(path) for path in kept)
