"""Named points at which a test may kill the agent, to prove that no crash loses or doubles a grant.

Off unless the environment names one at process start; then that point ends the process with
SIGKILL, as a crash would: no clean-up code runs.
"""

import os
import signal

VARIABLE = "GPU_DEVICE_PLUGIN_FAILPOINT"
POINTS = (
    "prefer.decided",
    "allocate.before-grant",
    "durable.before-write",
    "durable.before-fsync",
    "durable.after-fsync",
    "slices.before-limits",
    "slices.after-files",
    "allocate.before-answer",
    "reconcile.before-release",
    "reconcile.before-files",
    "library.before-rename",
    "library.before-remove",
)
_chosen = os.environ.get(VARIABLE, "")


def failpoint(name: str) -> None:
    """Die here if the environment asked for exactly this point."""
    if _chosen == name:
        os.kill(os.getpid(), signal.SIGKILL)
