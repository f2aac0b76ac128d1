"""NVIDIA's own nvidia-smi, from Debian's non-free component: for a run, never stored."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SOURCES = Path("/etc/apt/sources.list.d")
_SECONDS = 60.0


class UnavailableError(Exception):
    """The package cannot be had here; the text says why, without an address."""


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """The program, and the driver version that it accepts: its own package's."""

    path: Path
    driver_version: str


def download(place: Path, network: int | None = None) -> NvidiaSmi:
    """Fetch and unpack the package below an empty directory.

    Args:
        place: Removed by the caller when the run is over.
        network: Descriptor of a network namespace that reaches the mirror, where ours does not.

    Raises:
        UnavailableError: It cannot be had.
    """
    if shutil.which("apt-get") is None or platform.machine() != "x86_64":
        raise UnavailableError("nvidia-smi is downloaded with apt-get, for x86_64")
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "sources" / "non-free.sources").write_text(_debian_source())
    options = [
        "-oDir::Etc::sourcelist=/dev/null",
        f"-oDir::Etc::sourceparts={place / 'sources'}",
        f"-oDir::State::lists={place / 'lists'}",
        f"-oDir::Cache={place / 'cache'}",
        "-oAPT::Sandbox::User=root",
        "-oAcquire::Retries=1",
    ]
    for command in (["update"], ["download", "nvidia-smi"]):
        _run(["apt-get", "-qq", *options, *command], place, network)
    package = next(place.glob("nvidia-smi_*.deb"))
    subprocess.run(["dpkg-deb", "-x", package, place], check=True)
    version = package.name.split("_")[1].split("-")[0]
    return NvidiaSmi(next(place.glob("usr/lib/nvidia/*/nvidia-smi")), version)


def _debian_source() -> str:
    """Our Debian mirror and release with the component non-free, as an apt source."""
    text = "\n".join(path.read_text() for path in sorted(_SOURCES.glob("*.sources")))
    mirror = re.search(r"^URIs:\s*(\S+)", text, re.MULTILINE)
    system = Path("/etc/os-release").read_text()
    release = re.search(r"^VERSION_CODENAME=(\w+)", system, re.MULTILINE)
    if mirror is None or release is None or "ID=debian" not in system:
        raise UnavailableError("nvidia-smi is a package of Debian, and this is another system")
    key = re.search(r"^Signed-By:\s*(\S+)", text, re.MULTILINE)
    signed = f"Signed-By: {key[1]}\n" if key else ""
    suites = f"{release[1]} {release[1]}-updates"
    return f"Types: deb\nURIs: {mirror[1]}\nSuites: {suites}\nComponents: non-free\n{signed}"


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
        raise UnavailableError(f"nvidia-smi cannot be downloaded: {reason}")
