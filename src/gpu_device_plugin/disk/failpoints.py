"""Failpoints: named points at which a test kills the agent, to prove that grants survive.

Inactive unless the environment names one. Then that point ends the process with
SIGKILL, so that no clean-up code runs, as in a crash.
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
    "cdi.before-rename",
    "prepare.before-answer",
    "unprepare.before-release",
    "reconcile.before-release",
    "reconcile.before-files",
    "library.before-rename",
    "library.before-remove",
)


def failpoint(name: str) -> None:
    """Kill the process if the environment names exactly this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
