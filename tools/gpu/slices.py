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
from collections.abc import Iterable, Iterator, Mapping
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

METHOD = """\
The agent runs on this machine with a stand-in kubelet and API server; three pods of 10, 30 and 60 % and that part of the
card's memory units are admitted. What the kubelet is told to mount is mounted in a mount namespace each, where nvidia-smi is
asked, then a stream of kernels of 100 µs runs in all three at once. Parts are of the work that the three completed."""


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
        importlib.import_module("gpu_device_plugin.demo.demo_node")
    except ImportError as error:
        return f"the agent cannot be imported: {error}"
    return None


async def _measure(place: Place) -> list[Row]:
    from gpu_device_plugin.demo.cast import Role
    from gpu_device_plugin.demo.demo_node import DemoNode, Surroundings
    from gpu_device_plugin.domain.node.modes import NodeMode
    from gpu_device_plugin.simulation.api_server import StandInApiServer

    async with contextlib.AsyncExitStack() as stage:
        root = Path(stage.enter_context(tempfile.TemporaryDirectory(prefix="g-")))
        api = StandInApiServer()
        stage.push_async_callback(api.stop)
        await api.start()
        api.write_kubeconfig(root / "kubeconfig")
        around = Surroundings(root, api, root / "kubeconfig", root / "library", has_selftest=False)
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
        with _mount_points(started.values()):
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
    told = together([(place.base, _inside(started[percent], words)) for percent in PERCENTS])
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
        _inside(started, ["nvidia-smi"]),
        env=dict(place.base),
        capture_output=True,
        text=True,
        check=False,
    )
    shown = _SHOWN.search(done.stdout)
    said = shown[0] if shown else (done.stdout + done.stderr).strip()[-200:]
    return Row(what, target, said, shown is not None and int(shown[2]) == wanted)


def _inside(started: Any, words: list[str]) -> list[str]:
    """The command in a mount namespace with the container's mounts, the preload last."""
    lines = ["set -e"]
    for inside in _in_order(started):
        host, is_read_only = started.mounts[inside]
        lines.append(f"mount --bind {shlex.quote(host)} {shlex.quote(inside)}")
        if is_read_only:
            lines.append(f"mount -o remount,bind,ro {shlex.quote(inside)}")
    script = "\n".join([*lines, 'exec "$@"'])
    return ["unshare", "-m", "sh", "-c", script, "slice", *words]


def _in_order(started: Any) -> list[str]:
    return sorted(started.mounts, key=lambda path: (path == _PRELOAD, len(path)))


@contextlib.contextmanager
def _mount_points(started: Iterable[Any]) -> Iterator[None]:
    """Makes what is mounted over, empty, and removes what was not there before."""
    made: list[Path] = []
    try:
        for one in started:
            for inside in _in_order(one):
                if Path(one.mounts[inside][0]).is_dir():
                    _make_directory(Path(inside), made)
                else:
                    _make_directory(Path(inside).parent, made)
                    if not Path(inside).exists():
                        Path(inside).touch()
                        made.append(Path(inside))
        yield
    finally:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()


def _make_directory(path: Path, made: list[Path]) -> None:
    if not path.exists():
        _make_directory(path.parent, made)
        path.mkdir()
        made.append(path)
