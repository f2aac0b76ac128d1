"""The commit that this program was built from."""

import subprocess
from pathlib import Path

import gpu_device_plugin

_PACKAGE = Path(gpu_device_plugin.__file__).parent
_CHECKOUT = _PACKAGE.parents[1]


def commit() -> str:
    """As the image's build wrote it beside the package, or of the checkout; else empty."""
    written = _PACKAGE / "COMMIT"
    if written.is_file():
        return written.read_text(encoding="utf-8").strip()
    if not (_CHECKOUT / ".git").exists():
        return ""
    command = ["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
