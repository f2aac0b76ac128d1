"""Programs of Debian, NVIDIA's own nvidia-smi first: for a run, never stored."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCES = Path("/etc/apt/sources.list.d")
_SECONDS = 60.0


class UnavailableError(Exception):
    """The package cannot be had here; the text says why, without an address."""


@contextmanager
def unpacking(directories: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory to unpack into, removed afterwards; skips the tests of what cannot be had."""
    place = directories.mktemp("packages")
    try:
        yield place
    except UnavailableError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(place)


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """The program, and the driver version that it accepts: its own package's."""

    path: Path
    driver_version: str


def download(place: Path, network: int | None = None) -> NvidiaSmi:
    """Fetch and unpack nvidia-smi below an empty directory.

    Args:
        place: Removed by the caller when the run is over.
        network: Descriptor of a network namespace that reaches the mirror, where ours does not.

    Raises:
        UnavailableError: It cannot be had.
    """
    unpack(place, "nvidia-smi", network=network)
    package = next(place.glob("nvidia-smi_*.deb"))
    version = package.name.split("_")[1].split("-")[0]
    return NvidiaSmi(next(place.glob("usr/lib/nvidia/*/nvidia-smi")), version)


def unpack(place: Path, *packages: str, network: int | None = None) -> None:
    """Fetch Debian packages and unpack them below an empty directory; nothing is installed.

    Args:
        place: Removed by the caller when the run is over.
        packages: Names, of the components main, contrib and non-free.
        network: As for `download`.

    Raises:
        UnavailableError: One of them cannot be had.
    """
    if shutil.which("apt-get") is None or platform.machine() != "x86_64":
        raise UnavailableError(f"{packages[0]} is downloaded with apt-get, for x86_64")
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "sources" / "all.sources").write_text(_debian_source())
    options = [
        "-oDir::Etc::sourcelist=/dev/null",
        f"-oDir::Etc::sourceparts={place / 'sources'}",
        f"-oDir::State::lists={place / 'lists'}",
        f"-oDir::Cache={place / 'cache'}",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Retries=1",
    ]
    with (Path(tempfile.gettempdir()) / "gpu-device-plugin-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers that download at once each take too long
        for command in (["update"], ["download", *packages]):
            _run(["apt-get", "-qq", *options, *command], place, network)
    for package in place.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, place], check=True)


def _debian_source() -> str:
    """Our Debian mirror and release with all components, as an apt source."""
    text = "\n".join(path.read_text() for path in sorted(_SOURCES.glob("*.sources")))
    mirror = re.search(r"^URIs:\s*(\S+)", text, re.MULTILINE)
    system = Path("/etc/os-release").read_text()
    release = re.search(r"^VERSION_CODENAME=(\w+)", system, re.MULTILINE)
    if mirror is None or release is None or "ID=debian" not in system:
        raise UnavailableError("these are packages of Debian, and this is another system")
    key = re.search(r"^Signed-By:\s*(\S+)", text, re.MULTILINE)
    signed = f"Signed-By: {key[1]}\n" if key else ""
    suites = f"{release[1]} {release[1]}-updates"
    return f"Types: deb\nURIs: {mirror[1]}\nSuites: {suites}\nComponents: main contrib non-free\n{signed}"


def _run(command: Sequence[str], place: Path, network: int | None) -> None:
    entered = ["nsenter", f"--net=/proc/self/fd/{network}"] if network is not None else []
    try:
        done = subprocess.run(
            [*entered, *command],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            pass_fds=() if network is None else (network,),
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"the mirror did not answer within {_SECONDS:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        reason = re.sub(r"\w+://\S+", "its mirror", last)
        raise UnavailableError(f"a package cannot be downloaded: {reason}")
