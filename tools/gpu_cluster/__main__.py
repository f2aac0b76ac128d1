"""`make gpu-cluster`: a whole Kubernetes on this machine, with slices of its card in pods, and what they show.

`start` of the bundle runs it, in namespaces of its own and with the machine's root at /machine. It changes neither modes nor
clocks of the card.
"""

import argparse
import datetime
import platform
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.gpu_cluster.decode import ALONE, WAYS
from tools.gpu_cluster.page import ROWS
from tools.gpu_cluster.shows import Stage
from tools.gpu_cluster.steps import Record, Step

FIRST = ("cluster", "install", "README's pod")
"""A row of such a name says that the step failed."""


def main() -> int:
    """Run every step; 1 when something failed or was missed, 3 when no pod ran, so that `start` goes on without."""
    parser = argparse.ArgumentParser(prog="start", description=__doc__)
    parser.add_argument(
        "--simulated",
        metavar="DRIVER",
        default="",
        help="version of a simulated driver, or 1 for one of ours",
    )
    parser.add_argument("--results", type=Path, required=True)
    asked = parser.parse_args()
    stage = Stage(asked.simulated, asked.results)
    _remove_empty_groups()
    date = f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"
    about = {"simulated": asked.simulated, "date": date, "kernel": platform.release()}
    record = Record(asked.results / ROWS, about, _say, stage.log_end)
    try:
        rows = record.run(_steps(stage))
    finally:
        try:
            stage.end()
        finally:
            _remove_empty_groups()
    missed = sum(row.is_met is False for row in rows)
    _say(f"==> {missed} failed or missed" if missed else "==> nothing failed")
    return 3 if any(row.what in FIRST for row in rows) else 1 if missed else 0


def _steps(stage: Stage) -> Sequence[Step]:
    cluster = ("cluster", "driver", "install")
    slices = (*cluster, "README's pod")
    beside = (*slices, f"decode: {ALONE}")
    models = {way: slices if way == ALONE else beside for way in WAYS}
    return (
        Step("driver", stage.driver),
        Step("cluster", stage.cluster_up),
        Step("install", stage.install, ("cluster", "driver")),
        Step("README's pod", stage.first_slice, cluster),
        Step("memory beyond the slice", stage.memory, slices),
        Step("30 and 60 % of the card", stage.shares, slices),
        Step("30, 30 and 40 % at once", stage.together, slices),
        Step("PyTorch", stage.pytorch, slices),
        Step("agent upgrade and kubelet restart", stage.upgrade, slices),
        Step("limits by the driver", stage.driver_limits, ("driver",)),
        *(
            Step(f"decode: {way}", partial(stage.models, way), needs)
            for way, needs in models.items()
        ),
        Step("the chart's scheduler", stage.placed, slices),
        Step("uninstall", stage.uninstall, cluster),
    )


def _remove_empty_groups() -> None:
    """All that outlives the namespaces; a group with a process in it is another runtime's."""
    words = ["find", "/sys/fs/cgroup", "-depth", "-regex", ".*/k8s\\.io.*", "-type", "d"]
    subprocess.run([*words, "-exec", "rmdir", "{}", "+"], capture_output=True, check=False)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
