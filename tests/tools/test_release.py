"""A release can be checked: its sums, its signature by a given key, and the statement of its provenance."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def openssl(*words: str) -> str:
    """Its output; a failure is an error."""
    return subprocess.run(["openssl", *words], capture_output=True, text=True, check=True).stdout


def test_a_release_is_signed_by_the_key_that_is_given(tmp_path: Path) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    public.write_text(openssl("ec", "-in", str(key), "-pubout"))
    out = tmp_path / "release"
    out.mkdir()
    (out / "chart.tgz").write_bytes(b"chart")

    sign = [sys.executable, str(ROOT / ".ci" / "sign.py"), str(out), str(key)]
    subprocess.run(sign, check=True)
    signature = tmp_path / "raw"
    signature.write_bytes(base64.b64decode((out / "SHA256SUMS.sig").read_bytes()))
    words = ("-verify", str(public), "-signature", str(signature), str(out / "SHA256SUMS"))
    assert openssl("dgst", "-sha256", *words) == "Verified OK\n"
    sums = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=out, check=True)
    assert sums.returncode == 0


def test_the_provenance_names_every_file_and_the_commit(tmp_path: Path) -> None:
    (tmp_path / "chart.tgz").write_bytes(b"chart")
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "sign.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    statement = json.loads((tmp_path / "provenance.intoto.json").read_text())
    (subject,) = statement["subject"]
    commit = statement["predicate"]["buildDefinition"]["externalParameters"]["commit"]

    assert subject["digest"]["sha256"] == hashlib.sha256(b"chart").hexdigest()
    assert len(commit.removesuffix("-dirty")) == 40
    assert "provenance.intoto.json" in (tmp_path / "SHA256SUMS").read_text()
    assert "not signed" in done.stdout


def test_the_provenance_of_a_tagged_commit_names_the_commit_all_the_same(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / ".ci").mkdir(parents=True)
    out.mkdir()
    script = Path(shutil.copy(ROOT / ".ci" / "sign.py", tree / ".ci"))

    def git(*words: str) -> str:
        person = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
        command = ["git", "-C", str(tree), *person, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=One")
    git("tag", "--annotate", "--message=Released", "v0.1.0")
    subprocess.run([sys.executable, str(script), str(out)], check=True, capture_output=True)
    statement = json.loads((out / "provenance.intoto.json").read_text())
    (source,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"]["gitCommit"] == git("rev-parse", "HEAD")
