"""Pods whose programs are the machine's own: its /usr below a file system that the container may write to.

CDI's hooks write links into /usr. /etc is the image's, so that the preload there is the product's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.harness.cluster.images import Image
from tools.harness.cluster.pods import pod
from tools.harness.cluster.processes import command_output

from gpu_device_plugin.domain.grants.container_edits import CARD_KIND

MACHINE_IMAGE = "gpu-cluster.local/machine:1"
PROGRAMS = Path("/opt/programs")
INSIDE = "/gpu"
CARD = f"{INSIDE}/card"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ALTERNATIVES = "etc/alternatives"
"""Where links in /usr lead, as those of libblas.so.3 and /usr/local/cuda."""
_ACCOUNTS = ("etc/passwd", "etc/group", "etc/nsswitch.conf")


def machine_image(machine: Path) -> Image:
    """An image without programs: links into /usr as the machine has them, its accounts and library directories."""
    links = {n: str((machine / n).readlink()) for n in _LINKS if (machine / n).is_symlink()}
    files = {name: _content(machine / name) for name in _ACCOUNTS}
    lists = [machine / "etc/ld.so.conf", *sorted((machine / "etc/ld.so.conf.d").glob("*.conf"))]
    lines = [line for path in lists for line in _content(path).decode().splitlines()]
    libraries = [line for line in lines if not line.startswith("include")]
    files["etc/ld.so.conf"] = "".join(f"{line}\n" for line in libraries).encode()
    return Image(MACHINE_IMAGE, {**files, "tmp/.here": b""}, links, ())


def machine_pod(
    name: str,
    command: Sequence[str],
    resources: Mapping[str, Any],
    *,
    machine: Path,
    mounts: Mapping[str, Path],
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """A pod that runs a command of the machine's.

    Args:
        name: Of the pod.
        command: Its command.
        resources: Of its container.
        machine: The machine's root.
        mounts: What else of the node is mounted where in the container.
        more: Further directories of the machine's root.
    """
    directories = (each for each in (*_LINKS, _ALTERNATIVES) if _is_directory(machine / each))
    theirs = ["usr", *more, *directories]
    places = {f"/{each}": _overlay(machine / each, name) for each in theirs}
    places |= {INSIDE: PROGRAMS, **mounts}
    body = {
        "name": "main",
        "image": MACHINE_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "env": [{"name": "PATH", "value": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}],
        "resources": dict(resources),
        "volumeMounts": [
            {"name": f"v{number}", "mountPath": inside} for number, inside in enumerate(places)
        ],
    }
    volumes = [
        {"name": f"v{number}", "hostPath": {"path": str(path)}}
        for number, path in enumerate(places.values())
    ]
    return pod(name, body, volumes=volumes)


def take_card(body: dict[str, Any], card: str, variables: Mapping[str, str]) -> None:
    """Give a pod the whole card as NVIDIA's NRI plugin does, without us, and processes in common as MPS needs it."""
    body["metadata"]["annotations"] = {"nvidia.cdi.k8s.io/container.main": f"{CARD_KIND}={card}"}
    body["spec"] |= {"hostIPC": bool(variables), "hostPID": bool(variables)}
    told = {"CARD_UUID": card, **variables}
    body["spec"]["containers"][0]["env"] += [{"name": n, "value": v} for n, v in told.items()]


def on_card(*words: str) -> list[str]:
    """A command of such a pod, which is told the slice's card: a simulated driver shows all cards to everybody."""
    found = (
        "sed -n 's/.*device=\\([^ ]*\\).*/\\1/p' /run/gpu-device-plugin/config/limits 2>/dev/null"
    )
    script = f'CARD_UUID=$({found} || echo "$CARD_UUID"); export CARD_UUID CUDA_VISIBLE_DEVICES=$CARD_UUID; "$@"'
    return ["sh", "-c", script, "sh", *words]


def _overlay(lower: Path, name: str) -> Path:
    place = Path("/opt/pods") / name / lower.name
    directories: Sequence[Path] = [place / each for each in ("up", "work", "merged")]
    for each in directories:
        each.mkdir(parents=True)
    up, work, merged = map(str, directories)
    options = f"lowerdir={lower},upperdir={up},workdir={work}"
    command_output(["mount", "-t", "overlay", "-o", options, "overlay", merged])
    return Path(merged)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
