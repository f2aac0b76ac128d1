"""Runs parts of the end-to-end tests on the combinations of docs/conformance.md, and writes there what came of each.

`make conformance` runs every row that this machine can, `make conformance ROWS="8 9"` those with these
numbers. A row that was never run says why.
"""

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.harness.cluster.binaries import CONTAINERD
from tools.harness.cluster.crio import CRIO
from tools.harness.cluster.oci_runtimes import CRUN, RUNC

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
PARTS = [
    f"tests/e2e/test_{name}.py" for name in ("cluster", "pods", "refusals", "restarts", "upgrade")
]
CGROUP = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1 hybrid"
# User-mode Linux, by which a machine of v1 runs the rows of v2.
UML = os.environ.get("UML", "")
# What CRI chooses, and which version that is.
RUNTIMES = {"containerd": ("containerd", CONTAINERD), "CRI-O": ("crio", CRIO)}
OCI_VERSIONS = {"runc": RUNC, "crun": CRUN}
NOT_RUN = "not run: "
_SUMMARY = re.compile(
    r"^=+ (.*\b(?:passed|failed|errors?|skipped)\b.*) in [\d.]+s.*=$", re.MULTILINE
)
_BAD = re.compile(r"^(?:FAILED|ERROR) \S+?::(\w+)", re.MULTILINE)


class Row(NamedTuple):
    """A combination; its driver is the simulated one, with the symbols of that version."""

    number: str
    kubernetes: str
    runtime: str
    oci: str
    cgroup: str
    driver: str
    result: str

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


def rows(page: str) -> list[Row]:
    """The rows of the page's table."""
    lines = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| "))
    return [Row(*cells) for cells in lines if len(cells) == len(Row._fields) and cells[0].isdigit()]


def count_runs(page: str) -> str:
    """The page, with how many rows ran in its first line."""
    found = rows(page)
    ran = sum(not row.result.startswith(NOT_RUN) for row in found)
    return re.sub(
        r"^Runs so far: .*$", f"Runs so far: {ran} of {len(found)} rows.", page, flags=re.MULTILINE
    )


def why_not(row: Row) -> str:
    """Why this machine cannot run it; empty if it can."""
    if row.cgroup != CGROUP and not (UML and row.cgroup == "v2"):
        return f"the machine has cgroup {CGROUP}"
    return ""


def run(row: Row, commit: str) -> str:
    """Run the tests; when, where, with what, and what came of it."""
    cri, cri_version = RUNTIMES[row.runtime]
    chosen = {"KUBE": row.kubernetes, "CRI": cri, "OCI_RUNTIME": row.oci, "DRIVER": row.driver}
    environment = {**os.environ, "GPU_DEVICE_PLUGIN_UPGRADE": "1", **chosen}
    subprocess.run(["tests/e2e/install.sh"], cwd=ROOT, env=environment, check=True)
    command, kernel = ["tests/e2e/run.sh", *PARTS], platform.release()
    if row.cgroup != CGROUP:
        command.insert(0, "tests/e2e/uml.sh")
        told = subprocess.check_output([UML, "--version"], text=True)
        kernel = f"{told.strip()} in user mode"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    sys.stdout.write(done.stdout)
    found, bad = _SUMMARY.search(done.stdout), ", ".join(_BAD.findall(done.stdout))
    result = found[1] if found else f"no test ended; exit code {done.returncode}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {kernel}"
    versions = f"{row.runtime} {cri_version}, {row.oci} {OCI_VERSIONS[row.oci]}"
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return f"{today}, {commit}, {machine}, {versions}: {result}{bad and f' ({bad})'}"


def main(numbers: list[str]) -> None:
    """Run the rows of these numbers, or all, and write each as it ends."""
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.check_output(asked, cwd=ROOT, text=True).strip()
    for row in rows(PAGE.read_text()):
        if numbers and row.number not in numbers:
            continue
        reason = why_not(row)
        sys.stdout.write(f"==> {row}\n{reason and f'left out: {reason}'}\n")
        # What ran on another machine stays, whatever this one lacks.
        if not reason or row.result.startswith(NOT_RUN):
            result = NOT_RUN + reason if reason else run(row, commit)
            text = PAGE.read_text().replace(str(row), str(row._replace(result=result)))
            PAGE.write_text(count_runs(text))


if __name__ == "__main__":
    main(sys.argv[1:])
