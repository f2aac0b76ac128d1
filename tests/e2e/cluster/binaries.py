"""The programs of a cluster, built from Go modules into a cache outside the tree.

Run as a program it prints where the binaries of one version stand, after building what is missing:
``python -m tests.e2e.cluster.binaries``. Two builders at once wait for each other on a lock file.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEFAULT_KUBERNETES = "1.36.3"
CONTAINERD = "2.4.2"
KUBERNETES_COMMANDS = (
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
CONTAINERD_COMMANDS = ("containerd", "containerd-shim-runc-v2", "ctr")
CONTAINERD_TAGS = "no_btrfs no_zfs no_devmapper"
CNI_DIRECTORY = Path("/usr/lib/cni")


class BinaryError(Exception):
    """A program that the cluster needs is not there and could not be built."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs of one cluster version stand."""

    kubernetes_version: str
    kubernetes: Path
    containerd: Path
    kubectl: Path
    etcd: Path
    cni: Path

    def path_variable(self) -> str:
        """A PATH that finds containerd's shim and the CNI plugins' tools first."""
        return f"{self.containerd}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"


def cache_directory() -> Path:
    """The directory that keeps what was built, outside the tree."""
    chosen = os.environ.get("GPU_DEVICE_PLUGIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "gpu-device-plugin"


def kubernetes_version() -> str:
    """The version asked for by KUBE, without a leading v."""
    return os.environ.get("KUBE", DEFAULT_KUBERNETES).removeprefix("v")


def provide(version: str) -> Binaries:
    """Build what the cache lacks and say where everything stands."""
    cache = cache_directory()
    with _one_builder(cache):
        containerd = _containerd(cache)
        kubernetes = _kubernetes(cache, version, KUBERNETES_COMMANDS)
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            kubectl = str(_kubernetes(cache, version, ("kubectl",)) / "kubectl")
    return Binaries(
        kubernetes_version=version,
        kubernetes=kubernetes,
        containerd=containerd,
        kubectl=Path(kubectl),
        etcd=_installed("etcd"),
        cni=CNI_DIRECTORY,
    )


def _installed(program: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise BinaryError(f"{program} is not installed; run tests/e2e/install.sh")
    return Path(found)


@contextmanager
def _one_builder(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _containerd(cache: Path) -> Path:
    target = cache / f"containerd-{CONTAINERD}" / "bin"
    missing = [name for name in CONTAINERD_COMMANDS if not (target / name).exists()]
    module = "github.com/containerd/containerd/v2"
    if missing:
        with _workspace(cache) as workspace:
            _module(workspace, {module: f"v{CONTAINERD}"}, {})
            for name in missing:
                _build(workspace, f"{module}/cmd/{name}", target, ("-tags", CONTAINERD_TAGS))
    return target


def _kubernetes(cache: Path, version: str, commands: Sequence[str]) -> Path:
    target = cache / f"kubernetes-{version}" / "bin"
    missing = [name for name in commands if not (target / name).exists()]
    if missing:
        with _workspace(cache) as workspace:
            _module(workspace, {"k8s.io/kubernetes": f"v{version}"}, _staging(workspace, version))
            flags = ("-ldflags", _version_flags(version))
            for name in missing:
                _build(workspace, f"k8s.io/kubernetes/cmd/{name}", target, flags)
    return target


def _staging(workspace: Path, version: str) -> dict[str, str]:
    """The modules that Kubernetes requires at v0.0.0, with the versions they are published as."""
    (workspace / "go.mod").write_text("module cluster\n")
    listed = _go(workspace, "mod", "download", "-json", f"k8s.io/kubernetes@v{version}")
    text = _go(workspace, "mod", "edit", "-json", json.loads(listed)["GoMod"])
    published = f"v0.{version.removeprefix('1.')}"
    required = json.loads(text)["Require"]
    return {entry["Path"]: published for entry in required if entry["Version"] == "v0.0.0"}


def _version_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    settings = [f"-X {package}.{key}={value}" for package in packages for key, value in values.items()]
    return " ".join(["-s", "-w", *settings])


def _module(workspace: Path, requires: Mapping[str, str], replaces: Mapping[str, str]) -> None:
    lines = ["module cluster", ""]
    lines += [f"require {path} {version}" for path, version in requires.items()]
    lines += [f"replace {path} => {path} {version}" for path, version in replaces.items()]
    (workspace / "go.mod").write_text("\n".join(lines) + "\n")


@contextmanager
def _workspace(cache: Path) -> Iterator[Path]:
    """A directory for one build, which no later run mistakes for a result."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as name:
        yield Path(name)


def _build(workspace: Path, package: str, target: Path, flags: Sequence[str]) -> None:
    name = package.rpartition("/")[2]
    print(f"building {package}; the first time takes minutes", file=sys.stderr, flush=True)
    _go(workspace, "build", "-mod=mod", "-trimpath", *flags, "-o", f"{workspace}/{name}", package)
    target.mkdir(parents=True, exist_ok=True)
    # The workspace is on the cache's file system, so a program appears whole or not at all.
    (workspace / name).rename(target / name)


def _go(workspace: Path, *arguments: str) -> str:
    cache = cache_directory()
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOCACHE": str(cache / "go-build"),
        "GOMODCACHE": str(cache / "go-modules"),
        "GOWORK": "off",
    }
    command = ["nice", "-n", "10", _installed_go(), *arguments]
    done = subprocess.run(
        command, cwd=workspace, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BinaryError(f"go {' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _installed_go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise BinaryError("Go 1.26 or later is needed to build Kubernetes; `go` is not on the PATH")
    return found


def main() -> None:
    """Build what is missing and print the directories."""
    built = provide(kubernetes_version())
    print(built.kubernetes)
    print(built.containerd)


if __name__ == "__main__":
    main()
