"""The OCI runtimes that a node can have, built into the cache; OCI_RUNTIME chooses one: runc or crun.

Those of Debian 12 are too old: its crun refuses every container of containerd 2.4, its runc user namespaces.
Run as a program it builds the chosen one where the cache lacks it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.harness.cluster.binaries import BinaryError, cache_directory, one_builder, provide_tool

# github.com/opencontainers/runc
RUNC = "1.5.2"
# Debian 13's source package, which apt checks by Debian's signature.
CRUN = "1.21-1"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_CONFIGURE = ("--disable-systemd", "--disable-criu", "--disable-dl", "--enable-shared=no")


def oci_runtime() -> Path:
    """The one that OCI_RUNTIME chooses; by default runc."""
    known = {"runc": provide_runc, "crun": provide_crun}
    name = os.environ.get("OCI_RUNTIME", "runc")
    if name not in known:
        raise BinaryError(f"OCI_RUNTIME is {name}; it may be {' or '.join(known)}")
    return known[name]()


def provide_runc() -> Path:
    """Build runc where the cache lacks it and say where it stands."""
    module, flags = "github.com/opencontainers/runc", ("-tags", "seccomp")
    program = cache_directory() / f"runc-{RUNC}" / "bin" / "runc"
    return provide_tool(program, module, RUNC, flags, package=module, is_cgo=True)


def provide_crun() -> Path:
    """Build crun where the cache lacks it and say where it stands.

    Raises:
        BinaryError: It cannot be built here: it needs apt, a C compiler and three libraries.
    """
    cache = cache_directory()
    program = cache / f"crun-{CRUN}" / "bin" / "crun"
    with one_builder(program.parents[1]):
        if not program.exists():
            with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as name:
                built = _built_crun(Path(name))
                program.parent.mkdir(parents=True, exist_ok=True)
                built.rename(program)
    return program


def _built_crun(place: Path) -> Path:
    own = _run(place, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)").split("\n")
    mirrors = [line.split()[1] for line in own if line.startswith("bookworm ")]
    if not mirrors:
        raise BinaryError("crun: apt names no mirror of Debian 12, which would have Debian 13 too")
    # A configuration of apt's own leaves the machine's packages and lists alone.
    (place / "lists" / "partial").mkdir(parents=True)
    (place / "sources.list").write_text(f"deb-src [signed-by={_KEYS}] {mirrors[0]} trixie main\n")
    settings = {
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": place / "lists",
        "Dir::Cache": place,
        "APT::Sandbox::User": "root",  # it may enter this directory
    }
    apt = ("apt-get", "-qq", *(f"-o={key}={value}" for key, value in settings.items()))
    _run(place, *apt, "update")
    _run(place, *apt, "source", "--tar-only", "--download-only", f"crun={CRUN}")
    (archive,) = place.glob("crun_*.orig.tar.gz")
    _run(place, "tar", "-xf", str(archive))
    (tree,) = place.glob("crun-*/")
    _run(tree, "./configure", "--quiet", *_CONFIGURE)
    for target in ("git-version.h", "crun"):
        _run(tree, "make", "--quiet", target)
    return tree / "crun"


def _run(place: Path, *command: str) -> str:
    try:
        done = subprocess.run(
            ["nice", "-n", "10", *command], cwd=place, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BinaryError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        told = f"{done.stdout}{done.stderr}".strip()[-2000:]
        raise BinaryError(f"{command[0]} failed: {told}")
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(f"{oci_runtime()}\n")
