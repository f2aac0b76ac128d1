#!/usr/bin/env python3
# ruff: noqa: T201, S314, S603 - a script, no package; it prints, and reads what pytest wrote
"""Tests of .ci/run that fail once: they run once more, alone, after everything else.

    unstable.py first NAME --again COMMAND [--files] [--sessions N] -- COMMAND ...
    unstable.py again

`first` runs a command with N pytest sessions in it (1), and remembers the tests that fail, or with --files
their files. It fails where that is not all that went wrong, and at more than five of all commands together.
`again` runs what is remembered, `COMMAND TEST ...`, and prints what passes then as `unstable:` with the
first failure in one line. It fails if a test fails there too.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

MOST = 5
KEPT = Path("build/ci").absolute()
REMEMBERED = KEPT / "failed.json"
LANE = "GPU_DEVICE_PLUGIN_E2E_LANE"
"""Variable by which tests/e2e/run.sh tells its sessions apart: each has a report of its own."""


def failures(report: Path) -> dict[str, str]:
    """Test -> its failure in one line, of a session that came to its end."""
    return {
        f"{case.get('file')}::{case.get('name')}": bad.get("message", "").partition("\n")[0]
        for case in Xml.parse(report).iter("testcase")
        for bad in (*case.findall("error"), *case.findall("failure"))
    }


def run(name: str, command: list[str]) -> tuple[int, list[Path]]:
    """The exit status, and the reports of the sessions (xunit1: with the path of each test's file)."""
    for old in KEPT.glob(f"{name}-*.xml"):
        old.unlink()
    report = shlex.quote(f"{KEPT / name}-${LANE}.xml")
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -o junit_family=xunit1 --junitxml={report}"
    environment = os.environ | {"PYTEST_ADDOPTS": options, LANE: "all"}
    done = subprocess.run(command, env=environment, check=False)
    return done.returncode, sorted(KEPT.glob(f"{name}-*.xml"))


def first(chosen: argparse.Namespace) -> int:
    """The status of the command, or 0 where its failing tests can run once more."""
    status, reports = run(chosen.name, chosen.command)
    failed: dict[str, str] = {}
    for test, line in itertools.chain(*(failures(each).items() for each in reports)):
        failed.setdefault(test.partition("::")[0] if chosen.files else test, line)
    if status == 0 or not failed or len(reports) != chosen.sessions:
        return status
    known = json.loads(REMEMBERED.read_text()) if REMEMBERED.exists() else []
    known += [[chosen.again, test, line] for test, line in failed.items()]
    REMEMBERED.write_text(json.dumps(known))
    if len(known) > MOST:
        print(f"{len(known)} have failed, more than {MOST}: none runs once more")
        return status
    print("once more at the end:", *failed)
    return 0


def again() -> int:
    """1 if anything fails for the second time."""
    known = json.loads(REMEMBERED.read_text()) if REMEMBERED.exists() else []
    failed: dict[str, str] = {}
    for command, group in itertools.groupby(known, lambda each: each[0]):
        tests = [test for _, test, _ in group]
        status, reports = run("again", [*shlex.split(command), *tests])
        found = {test: line for report in reports for test, line in failures(report).items()}
        if status:
            failed |= found or dict.fromkeys(tests, f"{command} ended with {status}")
    for test, line in failed.items():
        print(f"failed twice: {test}: {line}")
    for _, test, line in known:
        if not any(f"{each}::".startswith(f"{test}::") for each in failed):
            print(f"unstable: {test}: {line}")
    return 1 if failed else 0


def main() -> int:
    """Carry out one of the two verbs."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("again")
    words = verbs.add_parser("first")
    words.add_argument("name")
    words.add_argument("--again", required=True)
    words.add_argument("--files", action="store_true")
    words.add_argument("--sessions", type=int, default=1)
    words.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    return first(chosen) if chosen.verb == "first" else again()


if __name__ == "__main__":
    sys.exit(main())
