# ruff: noqa: INP001 - a script, no package
"""Writes what proves a release: `sign.py DIRECTORY [KEY]`, the last step of `make release`.

    SHA256SUMS                every file of the directory
    provenance.intoto.json    SLSA provenance v1: what was built, from which commit, by whom (RELEASE_BUILDER)
    SHA256SUMS.sig            with KEY, an ECDSA private key in PEM: `cosign verify-blob` and openssl check it

Without a key the first two are written.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROVENANCE, SUMS, SIGNATURE = "provenance.intoto.json", "SHA256SUMS", "SHA256SUMS.sig"


def digests(directory: Path) -> dict[str, str]:
    """Name -> SHA-256 of each file, but for those that are written here last."""
    files = sorted(path for path in directory.iterdir() if path.name not in {SUMS, SIGNATURE})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def provenance(subjects: dict[str, str], commit: str, builder: str) -> dict[str, object]:
    """The statement, as https://slsa.dev/spec/v1.0/provenance describes it."""
    source = {"uri": os.environ.get("RELEASE_HOME", ""), "digest": {"gitCommit": commit}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": value}} for name, value in subjects.items()
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"commit": commit},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def main(directory: Path, key: str) -> None:
    """Write the files."""
    # Without a tag's name, which is no digest.
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    described.append("--exclude=*")
    done = subprocess.run(described, capture_output=True, text=True, check=True)  # noqa: S603
    commit = done.stdout.strip()
    builder = os.environ.get("RELEASE_BUILDER", "unknown: set RELEASE_BUILDER")
    (directory / PROVENANCE).unlink(missing_ok=True)
    statement = provenance(digests(directory), commit, builder)
    (directory / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")
    sums = "".join(f"{value}  {name}\n" for name, value in digests(directory).items())
    (directory / SUMS).write_text(sums)
    if not key:
        print("not signed: RELEASE_KEY names no key")  # noqa: T201
        return
    command = ["openssl", "dgst", "-sha256", "-sign", key, str(directory / SUMS)]
    signature = subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603
    (directory / SIGNATURE).write_bytes(base64.b64encode(signature))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
