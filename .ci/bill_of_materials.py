# ruff: noqa: INP001 - a script, no package
"""Writes what an image holds, as SPDX: `bill_of_materials.py ARCHIVE OUTPUT`.

syft reads the archive. Where a Python distribution names its licence only by a classifier, which
syft leaves out, the licence is taken from there; one that names none fails the build.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.harness.cluster.binaries import provide_syft

UNKNOWN = {"NOASSERTION", "NONE"}
CLASSIFIER = "License :: OSI Approved :: "
METADATA = re.compile(r"/dist-packages/[^/]+\.dist-info/METADATA$")
# SPDX's names for those of the classifiers; the only BSD licence here is Jinja2's, with three clauses.
LICENCES = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
}


def scan(archive: Path) -> dict[str, Any]:
    """What syft finds in the image."""
    command = [str(provide_syft()), "scan", "--quiet", f"oci-archive:{archive}"]
    command += ["--source-name", "gpu-device-plugin", "--output", "spdx-json"]
    quiet = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, check=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def classifiers(archive: Path) -> dict[str, list[str]]:
    """Licences by classifier of every Python distribution in the image, by its name."""
    found = {}
    with tarfile.open(archive) as blobs:
        for blob in blobs.getmembers():
            content = blobs.extractfile(blob)
            # Everything but the configuration is a layer.
            if content is None or content.read(2) != b"\x1f\x8b":
                continue
            content.seek(0)
            with tarfile.open(fileobj=content, mode="r:gz") as layer:
                for member in layer:
                    if METADATA.search(member.name):
                        text = layer.extractfile(member)
                        told = HeaderParser().parsestr(text.read().decode() if text else "")
                        named = [c for c in told.get_all("Classifier", []) if CLASSIFIER in c]
                        found[told["Name"].lower()] = [c.removeprefix(CLASSIFIER) for c in named]
    return found


def main(archive: Path, output: Path) -> None:
    """Scan, complete, and write."""
    bill = scan(archive)
    classified = classifiers(archive)
    for package in bill["packages"]:
        is_python = any(
            "pkg:pypi/" in ref["referenceLocator"] for ref in package.get("externalRefs", [])
        )
        if not is_python or {package["licenseDeclared"], package["licenseConcluded"]} - UNKNOWN:
            continue
        names = classified.get(package["name"].lower(), [])
        if not names or not set(names) <= set(LICENCES):
            sys.exit(
                f"bill of materials: {package['name']} names no licence that is known here: {names}"
            )
        package["licenseDeclared"] = " AND ".join(sorted(LICENCES[name] for name in names))
    output.write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
