"""The whole way on a real card: the agent reads it, grants slices of it, and programs run in them.

The agent is the real process beside a stand-in kubelet and API server. A container is a mount
namespace with exactly what the kubelet was told to mount.
"""

import asyncio
import contextlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.bench.rows import Row
from tools.gpu.compute import FEWEST_SECONDS, rate
from tools.gpu.place import MIB, CheckError, Place, together

PERCENTS = (10, 30, 60)
_POINTS = 3.0
_FIRST_SECONDS = 60.0
_PRELOAD = "/etc/ld.so.preload"
_SHOWN = re.compile(r"(\d+)MiB / +(\d+)MiB")

# cover DIRECTORY EMPTY: what is made in the directory from now on is made in memory.
_COVER = """cover() {
  mkdir "$2"; mount --bind "$1" "$2"; mount -t tmpfs none "$1"
  for entry in "$2"/* "$2"/.[!.]*; do
    here="$1/${entry##*/}"
    if [ -L "$entry" ]; then cp -P "$entry" "$here"
    elif [ -d "$entry" ]; then mkdir -p "$here"; mount --bind "$entry" "$here"
    elif [ -e "$entry" ]; then : > "$here"; mount --bind "$entry" "$here"; fi
  done
}"""

METHOD = """\
Whether what the agent hands out on a real card is what containers get: three pods of 10, 30 and 60 %.

The agent runs on this machine with a stand-in kubelet and API server; each pod asks for that part of the card's memory units too. What
the kubelet is told to mount is mounted in a mount namespace each. There nvidia-smi is asked, then a stream of kernels of 100 µs runs in
all three at once."""


def measure(place: Place) -> list[Row]:
    """Everything, or a row that says why not."""
    if reason := _missing():
        return [
            Row("the agent's slices on this card", "granted, shown, kept", f"not run: {reason}")
        ]
    return asyncio.run(_measure(place))


def _missing() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "mounting needs root and unshare"
    try:
        importlib.import_module("tools.demo.demo_node")
    except ImportError as error:
        return f"the agent cannot be imported: {error}"
    return None


async def _measure(place: Place) -> list[Row]:
    from tools.demo.demo_node import DemoNode, Surroundings
    from tools.demo.demo_pods import Role
    from tools.harness.api_server import StandInApiServer, kubeconfig

    from gpu_device_plugin.domain.node.modes import NodeMode

    async with contextlib.AsyncExitStack() as stage:
        root = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix="g-")))
        api = StandInApiServer()
        stage.push_async_callback(api.stop)
        await api.start()
        config = kubeconfig(root / "kubeconfig", api.url, {})
        around = Surroundings(root, api, config, root / "library", has_selftest=False)
        library = f"{place.base.get('LD_LIBRARY_PATH')}/libnvidia-ml.so.1"
        settings = {"--nvml-library": library} if place.is_simulated else {}
        node = DemoNode("local", NodeMode.CORE_MEM, around, None, settings)
        stage.push_async_callback(node.stop)
        await node.start()
        cards = await _published(node)
        if [card["uuid"] for card in cards] != [place.card.uuid]:
            return [Row("slices of one card", "", f"not run: {len(cards)} cards here")]
        started = {}
        for percent in PERCENTS:
            role = Role(f"tenant-{percent}", "local", cards[0]["units"] * percent // 100, percent)
            admission = await node.admit(role)
            if not admission.is_admitted:
                raise CheckError(f"the pod of {percent} % is refused: {admission.message}")
            started[percent] = await node.start_container(role)
        return await asyncio.to_thread(_rows, place, cards[0], started)


async def _published(node: Any) -> list[dict[str, Any]]:
    """The cards that the agent offers, once it does."""
    try:
        async with asyncio.timeout(_FIRST_SECONDS):
            while not (await node.allocatable())[0] or not node.published_cards():
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise CheckError(f"the agent offers no card: {await node.readiness()}") from error
    return list(node.published_cards())


def _rows(place: Place, card: dict[str, Any], started: Mapping[int, Any]) -> list[Row]:
    units, total = card["units"], card["memory_mib"]
    rows = [
        Row(
            "the agent offers of the card",
            f"{place.card.total_bytes // MIB // 1024} units of {place.card.total_bytes // MIB} MiB",
            f"{units} units of {total} MiB",
            (units, total)
            == (place.card.total_bytes // MIB // 1024, place.card.total_bytes // MIB),
        )
    ]
    for percent in PERCENTS:
        wanted = total * (units * percent // 100) // units
        rows.append(_shown(place, percent, wanted, started[percent]))
    seconds = str(max(place.seconds, FEWEST_SECONDS))
    words = [str(place.program), "work", "stream", place.turns(100_000), seconds]
    told = together([(place.base, _inside(started[p], _room(place), words)) for p in PERCENTS])
    all_of_it = sum(map(rate, told))
    for percent, one in zip(PERCENTS, told, strict=True):
        part = 100 * rate(one) / all_of_it
        rows.append(
            Row(
                f"work of the slice of {percent} %, of the three's",
                f"{percent} ± {_POINTS:g} %",
                f"{part:.1f} %",
                abs(part - percent) <= _POINTS,
            )
        )
    return rows


def _shown(place: Place, percent: int, wanted: int, started: Any) -> Row:
    what, target = f"nvidia-smi in the slice of {percent} %", f"… / {wanted}MiB"
    if shutil.which("nvidia-smi") is None:
        return Row(what, target, "not run: no nvidia-smi on this machine")
    done = subprocess.run(
        _inside(started, _room(place), ["nvidia-smi"]),
        env=dict(place.base),
        capture_output=True,
        text=True,
        check=False,
    )
    shown = _SHOWN.search(done.stdout)
    said = shown[0] if shown else (done.stdout + done.stderr).strip()[-200:]
    return Row(what, target, said, shown is not None and int(shown[2]) == wanted)


def _room(place: Place) -> Path:
    return Path(tempfile.mkdtemp(dir=place.directory))


def _inside(started: Any, room: Path, words: list[str]) -> list[str]:
    """The command in a mount namespace with the container's mounts, the preload last.

    Nothing is made on the machine itself: a directory that lacks a mount point is covered by an empty one,
    in which each of its entries is mounted again. `room` is an empty directory for that.
    """
    lines = ["set -e", _COVER]
    inner = sorted(started.mounts, key=lambda path: (path == _PRELOAD, len(path)))
    for number, directory in enumerate(sorted({_nearest(path) for path in inner})):
        lines.append(f"cover {directory} {shlex.quote(str(room / str(number)))}")
    for inside in inner:
        host, is_read_only = started.mounts[inside]
        there, source = shlex.quote(inside), shlex.quote(host)
        parent = shlex.quote(str(Path(inside).parent))
        is_directory = Path(host).is_dir()
        lines.append(f"mkdir -p {there if is_directory else parent}")
        if not is_directory:
            lines.append(f"[ -e {there} ] || : > {there}")
        lines.append(f"mount --bind {source} {there}")
        if is_read_only:
            lines.append(f"mount -o remount,bind,ro {there}")
    script = "\n".join([*lines, 'exec "$@"'])
    return ["unshare", "-m", "sh", "-c", script, "slice", *words]


def _nearest(path: str) -> Path:
    """The directory nearest above a path that is there."""
    return next(parent for parent in Path(path).parents if parent.is_dir())
