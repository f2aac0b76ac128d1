"""`make gpu-bundle`: what a whole Kubernetes with slices needs on a machine without network, in build/gpu-bundle.

A small Debian with the cluster's programs, our image, the package of that image as the Python package of the tools, and this tree.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu.place import PROGRAMS, ROOT, compile_card
from tools.gpu_cluster.parts import MIB, RAW_BYTES, packed, write_sums
from tools.harness.cluster.binaries import (
    cache_directory,
    cdi_hook_path,
    ctk_path,
    kubernetes_version,
    provide,
    provide_helm,
    provide_toolkit,
    toolkit_installer_path,
)
from tools.harness.cluster.oci_runtimes import oci_runtime

BUNDLE = ROOT / "build" / "gpu-bundle"
IMAGE = ROOT / "build" / "image" / "gpu-device-plugin-amd64.tar"
PACKAGES = (
    *("python3", "iproute2", "iptables", "openssl", "kmod"),
    *("etcd-server", "containernetworking-plugins", "busybox-static"),
)
LEFT_OUT = ("dev", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/lib/apt/lists", "var/cache")  # fmt: skip
NETWORK_PLUGINS = ("ptp", "host-local", "loopback")
SITE = "usr/local/lib/python3.11/dist-packages"
TREE = ("tools", "charts", "samples", "src/find_header.py", "src/gpu_device_plugin")


def main() -> None:
    """Put everything together and say how large it is."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="gpu-bundle-") as name:
        root, new = Path(name, "root"), Path(name, "bundle")
        new.mkdir()
        for what, put in (
            ("Debian", _put_debian),
            ("programs", _put_programs),
            ("image", _put_image),
            ("tree", _put_tree),
        ):
            begin_seconds = time.monotonic()
            put(root)
            _say(f"    {what}: {time.monotonic() - begin_seconds:.0f} s")
        shutil.copy(ROOT / "tools/gpu_cluster/start.sh", new / "start")
        shutil.copy(root / "bin/busybox", new / "busybox")
        _write_parts(root, new)
        sizes = write_sums(new)
        shutil.rmtree(BUNDLE, ignore_errors=True)
        new.rename(BUNDLE)
    for part, size in sizes:
        _say(f"    {part}: {size / MIB:.1f} MiB")
    _say(f"{BUNDLE.relative_to(ROOT)}: {sum(size for _, size in sizes) / MIB:.0f} MiB")


def _put_debian(root: Path) -> None:
    """Debootstrap takes a minute: its result is kept."""
    key = hashlib.sha256(repr((PACKAGES, LEFT_OUT, NETWORK_PLUGINS)).encode()).hexdigest()[:16]
    kept = cache_directory() / f"gpu-bundle-{key}.tar"
    if not kept.exists():
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        _run(*command, "bookworm", root)
        for name in LEFT_OUT:
            shutil.rmtree(root / name)
        for path in (root / "usr/lib/cni").iterdir():
            if path.name not in NETWORK_PLUGINS:
                path.unlink()
        _run("tar", "-C", root, "-cf", f"{kept}.new", ".")
        Path(f"{kept}.new").rename(kept)
    else:
        root.mkdir()
        _run("tar", "-C", root, "-xf", kept)


def _put_programs(root: Path) -> None:
    """The cache of the harness, with what a cluster of one node starts."""
    built = provide(kubernetes_version())
    provide_toolkit()
    programs = [path for place in (built.kubernetes, built.containerd) for path in place.iterdir()]
    programs += [provide_helm(), oci_runtime(), ctk_path(), cdi_hook_path(), toolkit_installer_path()]  # fmt: skip
    places = {path: root / "opt/cache" / path.relative_to(cache_directory()) for path in programs}
    places[built.kubectl] = root / "usr/local/bin/kubectl"
    for path, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
        _run("strip", place)
    (root / "opt/programs").mkdir()
    # Programs in pods run on the machine's own C library, however old.
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17")
    compile_card(root / "opt/programs/card", zig)
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, root / "opt/programs")


def _put_image(root: Path) -> None:
    """The image as an archive of docker's kind, whose layers are not compressed yet, and its package in our Python."""
    with tarfile.open(IMAGE) as archive:
        index = json.loads(_member(archive, "index.json"))
        (described,) = index["manifests"]
        manifest = json.loads(_blob(archive, described["digest"]))
        configuration = _blob(archive, manifest["config"]["digest"])
        layers = [_plain(_blob(archive, layer["digest"])) for layer in manifest["layers"]]
    reference = described["annotations"]["org.opencontainers.image.ref.name"]
    names = [f"{number}.tar" for number in range(len(layers))]
    told = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
    files = {"config.json": configuration, **dict(zip(names, layers, strict=True))}
    with tarfile.open(root / "opt/image.tar", "w") as target:
        for name, content in {**files, "manifest.json": json.dumps(told).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    # In pieces, so that it may be in several parts.
    _run("split", f"--bytes={RAW_BYTES // 2}", root / "opt/image.tar", root / "opt/image.tar.")
    (root / "opt/image.tar").unlink()
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as members:
            for member in members:
                if member.name.startswith((SITE, "usr/local/bin/")):
                    members.extract(member, root, filter="tar")
    (root / "usr/local/bin/gpu-device-plugin").rename(root / "usr/bin/gpu-device-plugin")
    (root / "opt/native").mkdir()
    shutil.copy(root / SITE / "gpu_device_plugin/native/libgpuslice.so", root / "opt/native")
    # Beside the programs of the machine's own Python, which may not have it.
    shutil.copy(root / SITE / "pynvml.py", root / "opt/programs")


def _put_tree(root: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *TREE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        target = root / "opt/tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


def _write_parts(root: Path, bundle: Path) -> None:
    """Every part has all directories, so that it may be the first that is unpacked."""
    paths = [(path, path.relative_to(root)) for path in sorted(root.rglob("*"))]
    directories = [str(name) for path, name in paths if path.is_dir() and not path.is_symlink()]
    sizes = {str(name): path.lstat().st_size for path, name in paths if str(name) not in set(directories)}  # fmt: skip

    def write(numbered: tuple[int, Sequence[str]]) -> None:
        number, names = numbered
        command = 'tar --no-recursion --hard-dereference -C "$0" -T - -c | gzip >"$1"'
        part = bundle / f"part-{number}.tar.gz"
        lines = "".join(f"{name}\n" for name in [*directories, *names])
        _run("nice", "bash", "-o", "pipefail", "-c", command, root, part, lines=lines)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, enumerate(packed(sizes))))


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    return _member(archive, f"blobs/{digest.replace(':', '/')}")


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    assert content is not None, name
    return content.read()


def _plain(layer: bytes) -> bytes:
    return gzip.decompress(layer) if layer.startswith(b"\x1f\x8b") else layer


def _run(*command: str | Path, lines: str | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"gpu-bundle: {words[0]} failed: {(done.stderr or done.stdout)[-1000:]}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
