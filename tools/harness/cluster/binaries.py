"""The programs of a cluster, built from Go modules into a cache outside the tree.

Run as a program it prints where the binaries of one version stand, after building what is missing:
``python -m tools.harness.cluster.binaries``. Two builders of one program wait for each other on a lock file.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_KUBERNETES = "1.36.3"
CONTAINERD = "2.4.2"
HELM = "3.22.0"
CERT_MANAGER = "1.18.2"
KUBE_SCORE = "1.20.0"
SYFT = "1.52.0"
NVIDIA = "0.17.4"
NVIDIA_TOOLKIT = "1.20.2"
NVIDIA_COMMANDS = ("nvidia-device-plugin", "config-manager", "gpu-feature-discovery")
# The version that it requires cannot be had everywhere; the labeller writes to a file without it.
NVIDIA_REPLACED = {"sigs.k8s.io/node-feature-discovery": "0.15.4"}
# The same of a Kubernetes: the module proxy has 7.0.1 listed nowhere and answers 403 for it.
KUBERNETES_REPLACED = {"1.38.0-beta.0": {"sigs.k8s.io/structured-merge-diff/v7": "7.0.0"}}
KUBERNETES_COMMANDS = (
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
)
CONTAINERD_COMMANDS = ("containerd", "containerd-shim-runc-v2", "ctr")
CONTAINERD_TAGS = "no_btrfs no_zfs no_devmapper"
CNI_DIRECTORY = Path("/usr/lib/cni")
# The module proxy fails now and then; so many seconds lie between two attempts.
FETCH_PAUSES = (2, 10, 30)


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


def scheduler_version() -> str:
    """The version of the chart's kube-scheduler: that asked for by SCHEDULER, or the cluster's."""
    return os.environ.get("SCHEDULER", kubernetes_version()).removeprefix("v")


def provide_scheduler() -> Path:
    """Build the chart's kube-scheduler where the cache lacks it and say where it stands."""
    name = "kube-scheduler"
    return _kubernetes(cache_directory(), scheduler_version(), (name,)) / name


def provide(version: str) -> Binaries:
    """Build what the cache lacks and say where everything stands."""
    cache = cache_directory()
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


def helm_path() -> Path:
    """Where helm stands once it is built."""
    return _tool_path("helm", HELM)


def provide_helm() -> Path:
    """Build helm where the cache lacks it and say where it stands."""
    module = "helm.sh/helm/v3"
    return provide_tool(helm_path(), module, HELM, ("-ldflags", _helm_flags(module)))


def provide_cert_manager() -> Path:
    """Where the files of cert-manager stand, after they were fetched where that was due."""
    with one_builder(cache_directory() / "cert-manager"):
        return source_of("github.com/cert-manager/cert-manager", CERT_MANAGER)


def source_of(module: str, version: str) -> Path:
    """Where the files of a Go module stand, after they were fetched where that was due."""
    return Path(_download(cache_directory(), module, version)["Dir"])


def _helm_flags(module: str) -> str:
    """Without a cluster helm takes charts to be for the version that it was told here."""
    major, minor, _ = DEFAULT_KUBERNETES.split(".", 2)
    values = {f"{module}/internal/version.version": f"v{HELM}"}
    for package in ("chartutil", "lint/rules"):
        values[f"{module}/pkg/{package}.k8sVersionMajor"] = major
        values[f"{module}/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def linter_path() -> Path:
    """Where kube-score, the manifest linter, stands once it is built."""
    return _tool_path("kube-score", KUBE_SCORE)


def provide_linter() -> Path:
    """Build kube-score where the cache lacks it and say where it stands."""
    return provide_tool(linter_path(), "github.com/zegl/kube-score", KUBE_SCORE)


def cdi_hook_path() -> Path:
    """Where NVIDIA's hook that limits memory too, which ours is tried beside, stands once it is built."""
    return _tool_path("nvidia-cdi-hook", NVIDIA_TOOLKIT)


def ctk_path() -> Path:
    """Where nvidia-ctk, which writes CDI specifications of cards, stands once it is built."""
    return _tool_path("nvidia-ctk", NVIDIA_TOOLKIT)


def toolkit_installer_path() -> Path:
    """Where the toolkit's installer, which is its NRI plugin too, stands once it is built."""
    return _tool_path("nvidia-ctk-installer", NVIDIA_TOOLKIT)


def provide_toolkit() -> Path:
    """Build all three where the cache lacks them and say where the hook stands.

    Raises:
        BinaryError: One cannot be built here: they need a C compiler.
    """
    module = "github.com/NVIDIA/nvidia-container-toolkit"
    for program in (ctk_path(), toolkit_installer_path(), cdi_hook_path()):
        provide_tool(program, module, NVIDIA_TOOLKIT, is_cgo=True)
    return cdi_hook_path()


def provide_syft() -> Path:
    """Build syft, which tells what an image holds, where the cache lacks it."""
    flags = ("-ldflags", f"-s -w -X main.version={SYFT}")
    return provide_tool(_tool_path("syft", SYFT), "github.com/anchore/syft", SYFT, flags)


def nvidia_path(command: str) -> Path:
    """Where a program of NVIDIA's device plugin stands once it is built."""
    return cache_directory() / f"nvidia-device-plugin-{NVIDIA}" / "bin" / command


def provide_nvidia() -> Path:
    """Build NVIDIA's device plugin, which ours is compared with, and say where it stands.

    Raises:
        BinaryError: It cannot be built here: it needs a C compiler and modules of its own.
    """
    cache, module = cache_directory(), "github.com/NVIDIA/k8s-device-plugin"
    flags = ("-ldflags", f"-s -w -X {module}/internal/info.version=v{NVIDIA}")
    with one_builder(nvidia_path("").parent):
        missing = [name for name in NVIDIA_COMMANDS if not nvidia_path(name).exists()]
        if missing:
            with _workspace(cache, module, NVIDIA, NVIDIA_REPLACED) as workspace:
                for name in missing:
                    target = nvidia_path(name).parent
                    _build(workspace, f"{module}/cmd/{name}", target, flags, is_cgo=True)
    return nvidia_path("").parent


def provide_tool(
    program: Path,
    module: str,
    version: str,
    flags: Sequence[str] = (),
    *,
    package: str = "",
    is_cgo: bool = False,
) -> Path:
    """Build a program of a Go module where it is not there yet, from cmd/ or the package that is named."""
    cache = cache_directory()
    with one_builder(program.parents[1]):
        if not program.exists():
            with _workspace(cache, module, version) as workspace:
                source = package or f"{module}/cmd/{program.name}"
                _build(workspace, source, program.parent, flags, is_cgo=is_cgo)
    return program


@contextmanager
def one_builder(directory: Path) -> Iterator[None]:
    """Wait until nobody else builds what stands in this directory of the cache."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tool_path(name: str, version: str) -> Path:
    return cache_directory() / f"{name}-{version}" / "bin" / name


def _installed(program: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise BinaryError(f"{program} is not installed; run tests/e2e/install.sh")
    return Path(found)


def _containerd(cache: Path) -> Path:
    target = cache / f"containerd-{CONTAINERD}" / "bin"
    with one_builder(target.parent):
        missing = [name for name in CONTAINERD_COMMANDS if not (target / name).exists()]
        if missing:
            module = "github.com/containerd/containerd/v2"
            with _workspace(cache, module, CONTAINERD) as workspace:
                for name in missing:
                    _build(workspace, f"{module}/cmd/{name}", target, ("-tags", CONTAINERD_TAGS))
    return target


def _kubernetes(cache: Path, version: str, commands: Sequence[str]) -> Path:
    target = cache / f"kubernetes-{version}" / "bin"
    with one_builder(target.parent):
        missing = [name for name in commands if not (target / name).exists()]
        if missing:
            flags = ("-ldflags", _version_flags(version))
            replaced = KUBERNETES_REPLACED.get(version)
            with _workspace(cache, "k8s.io/kubernetes", version, replaced) as workspace:
                for name in missing:
                    _build(workspace, f"k8s.io/kubernetes/cmd/{name}", target, flags)
    return target


def _version_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    settings = [
        f"-X {package}.{key}={value}" for package in packages for key, value in values.items()
    ]
    return " ".join(["-s", "-w", *settings])


@contextmanager
def _workspace(
    cache: Path, module: str, version: str, replaced: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """A module of our own for one build, which no later run mistakes for a result."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as name:
        workspace = Path(name)
        (workspace / "go.mod").write_text("module cluster\n")
        fetched = _download(workspace, module, version)
        # Go asks the checksum database, which fails now and then too, only for what this lacks.
        sums = Path(fetched["Dir"]) / "go.sum"
        if sums.exists():
            shutil.copyfile(sums, workspace / "go.sum")
        described = _go(workspace, "mod", "edit", "-json", fetched["GoMod"])
        lines = module_file(module, version, json.loads(described))
        lines += [f"replace {one} => {one} v{other}" for one, other in (replaced or {}).items()]
        (workspace / "go.mod").write_text("\n".join(lines) + "\n")
        yield workspace


def module_file(module: str, version: str, described: Mapping[str, Any]) -> list[str]:
    """The lines of a go.mod that builds programs of another module.

    It repeats what the other requires, so that Go reads no more of the module graph than that.
    Kubernetes requires its own parts at v0.0.0; they are published as v0.<minor>.<patch>.
    """
    published = f"v0.{version.partition('.')[2]}"
    lines = ["module cluster", "", f"go {described['Go']}", "", f"require {module} v{version}"]
    for entry in described["Require"]:
        own_part = entry["Version"] == "v0.0.0"
        path, wanted = entry["Path"], published if own_part else entry["Version"]
        lines.append(f"require {path} {wanted}")
        if own_part:
            lines.append(f"replace {path} => {path} {wanted}")
    return lines


def _build(
    workspace: Path, package: str, target: Path, flags: Sequence[str], *, is_cgo: bool = False
) -> None:
    name = package.rpartition("/")[2]
    sys.stderr.write(f"building {package}; the first time takes minutes\n")
    _fetch(workspace, "list", "-mod=mod", "-deps", *flags, package, is_cgo=is_cgo)
    words = ("build", "-mod=mod", "-trimpath", *flags, "-o", f"{workspace}/{name}", package)
    _go(workspace, *words, is_cgo=is_cgo)
    target.mkdir(parents=True, exist_ok=True)
    # The workspace is on the cache's file system, so a program appears whole or not at all.
    (workspace / name).rename(target / name)


def _download(workspace: Path, module: str, version: str) -> dict[str, str]:
    """Where Go keeps the module and its go.mod."""
    told: dict[str, str] = json.loads(
        _fetch(workspace, "mod", "download", "-json", f"{module}@v{version}")
    )
    return told


def _fetch(workspace: Path, *arguments: str, is_cgo: bool = False) -> str:
    """Run a Go command that reads from the module proxy, up to four times."""
    for pause in FETCH_PAUSES:
        try:
            return _go(workspace, *arguments, is_cgo=is_cgo)
        except BinaryError as error:
            sys.stderr.write(f"{error}\ntrying again in {pause} s\n")
            time.sleep(pause)
    return _go(workspace, *arguments, is_cgo=is_cgo)


def _go(workspace: Path, *arguments: str, is_cgo: bool = False) -> str:
    cache = cache_directory()
    environment = {
        **os.environ,
        "CGO_ENABLED": "1" if is_cgo else "0",
        "GOTOOLCHAIN": "auto",  # a newer Kubernetes brings the Go that it requires
        "CGO_LDFLAGS": "-Wl,-z,lazy",  # NVML's functions are looked up when they are called
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
        # With -json the reason is on stdout.
        told = f"{done.stdout}{done.stderr}".strip()[-2000:]
        raise BinaryError(f"go {' '.join(arguments)} failed: {told}")
    return done.stdout


def _installed_go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        raise BinaryError("Go 1.26 or later is needed to build Kubernetes; `go` is not on the PATH")
    return found


def main() -> None:
    """Build what is missing and say where it stands."""
    built = provide(kubernetes_version())
    tools = (
        provide_scheduler(),
        provide_helm(),
        provide_linter(),
        provide_syft(),
        provide_cert_manager(),
    )
    places: tuple[Path, ...] = (built.kubernetes, built.containerd, *tools)
    # The tests that need these are skipped without them.
    for name, provided in (
        ("device plugin", provide_nvidia),
        ("container toolkit", provide_toolkit),
    ):
        try:
            places += (provided(),)
        except BinaryError as error:
            sys.stderr.write(f"left out: NVIDIA's {name}, to compare with: {error}\n")
    sys.stdout.write("".join(f"{place}\n" for place in places))


if __name__ == "__main__":
    main()
