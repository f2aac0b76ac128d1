"""Where the checks run: a card, the library, containers as directories, programs in them."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu.card import Card, find

MIB = 1024 * 1024
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
_PATIENCE_SECONDS = float(os.environ.get("GPU_PATIENCE_SECONDS", "300"))
_TOOLKITS = ("/usr/local/cuda/include", "/usr/include")

Told = dict[str, Any]
Environment = Mapping[str, str]


class CheckError(Exception):
    """A program of a check did not do what it was started for."""


@dataclass(frozen=True, slots=True)
class Place:
    """One card and everything that is needed to use it.

    Attributes:
        directory: Empty; containers and programs go below it.
        library: What is preloaded.
        base: The environment of a program on the card without our library.
        card: The card.
        seconds: How long one measurement of the card's time lasts.
        count: How many calls one measurement of a call's cost takes.
        python: The interpreter that may have PyTorch.
        is_simulated: Whether the card is one of the simulated driver.
    """

    directory: Path
    library: Path
    base: Environment
    card: Card
    seconds: float
    count: int
    python: str
    is_simulated: bool

    @property
    def program(self) -> Path:
        """The compiled card.c."""
        return self.directory / "card"

    def compile(self) -> None:
        """Builds card.c with the machine's compiler and header."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise CheckError("no C compiler: looked for cc and gcc")
        compile_card(self.program, [compiler])

    def inside(
        self, name: str, *, memory_bytes: int | None = None, core_percent: int | None = None
    ) -> Environment:
        """A container of that name with these caps; returns the environment in it."""
        root = self.directory / name
        words = [f"device={self.card.uuid}"]
        if memory_bytes is not None:
            words.append(f"memory_bytes={memory_bytes}")
        if core_percent is not None:
            words.append(f"core_percent={core_percent}")
        (root / "config").mkdir(parents=True, exist_ok=True)
        text = f"version=1\nslice={name}\npolicy=fixed\n{' '.join(words)}\n"
        (root / "config" / "limits").write_text(text, encoding="ascii")
        (root / "state").mkdir(exist_ok=True)
        (root / "state" / "region").write_bytes(bytes(MIB))
        cards = self.directory / "cards"
        (cards / self.card.uuid).mkdir(parents=True, exist_ok=True)
        (cards / self.card.uuid / name).write_bytes(bytes(4096))
        with contextlib.suppress(FileExistsError):
            (root / "cards").symlink_to(cards)
        return {**self.base, "LD_PRELOAD": str(self.library), "GPUSLICE_ROOT": str(root)}

    def tell(self, environment: Environment, *words: str) -> Told:
        """Runs card.c to its end; returns what it told."""
        with self.running(environment, [str(self.program), *words]) as told:
            return told

    def turns(self, kernel_ns: int) -> str:
        """Turns of the loop in card.c that make a kernel of so many nanoseconds."""
        return str(self.tell(self.base, "calibrate", str(kernel_ns))["turns"])

    def timed(self, environment: Environment, command: Sequence[str]) -> float:
        """Seconds from the start of a program until it tells."""
        begin_seconds = time.monotonic()
        with self.running(environment, command):
            return time.monotonic() - begin_seconds

    def look(self) -> Card:
        """The card now, as seen from outside every container."""
        return find(self.base, self.card.uuid)

    def costing(self, environment: Environment, command: Sequence[str]) -> tuple[Told, int]:
        """What a program told, and the bytes that the card has less while it holds them.

        A context of another process is there before and after: without persistence mode the first
        one on a card would be charged with what the driver itself takes on waking up.
        """
        with self.running(self.base, [str(self.program), "hold"]):
            before = self.look().used_bytes
            with self.running(environment, command) as told:
                return told, self.look().used_bytes - before

    @contextlib.contextmanager
    def running(self, environment: Environment, command: Sequence[str]) -> Iterator[Told]:
        """A program that has told and, if it holds what it took, goes on until the block ends."""
        with started([(environment, command)]) as (process,):
            yield answer(process)


def compile_card(target: Path, compiler: Sequence[str]) -> None:
    """Builds card.c with this compiler and the machine's header.

    Raises:
        CheckError: It cannot be built.
    """
    command = [*compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-isystem", _header_directory()]
    command += [f"-I{ROOT / 'src' / 'isolation'}", str(PROGRAMS / "card.c")]
    built = subprocess.run(
        [*command, "-o", str(target), "-ldl"], capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        raise CheckError(f"card.c cannot be compiled: {built.stderr}")


def together(commands: Sequence[tuple[Environment, Sequence[str]]]) -> list[Told]:
    """What programs answer that run at the same moment, each in its environment."""
    with started(commands) as processes:
        return [answer(process) for process in processes]


@contextlib.contextmanager
def started(
    commands: Sequence[tuple[Environment, Sequence[str]]],
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Programs that may go on to their end when the block ends, and are killed where it fails."""
    processes = [start(environment, command) for environment, command in commands]
    try:
        yield processes
    except BaseException:
        # What failed, or a chapter whose time is over, does not wait for its programs.
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            end(process)


def start(environment: Environment, command: Sequence[str]) -> "subprocess.Popen[str]":
    """Starts a program that will answer with one line."""
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: "subprocess.Popen[str]") -> Told:
    """Waits for a program's answer.

    Raises:
        CheckError: It ended, or was silent for too long, without one.
    """
    assert process.stdout
    assert process.stderr
    ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_SECONDS)
    line = process.stdout.readline() if ready else ""
    if not line.startswith("{"):
        process.kill()
        said = process.stderr.read().strip().splitlines()[-3:]
        raise CheckError(f"{Path(str(process.args[1])).name}: {' / '.join(said) or 'no answer'}")  # type: ignore[index]
    told: Told = json.loads(line)
    return told


def end(process: "subprocess.Popen[str]") -> None:
    """Lets a program that holds go on to its end, and waits for it."""
    try:
        process.communicate(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def library_base() -> dict[str, str]:
    """The machine's environment without any of our libraries."""
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    kept.pop("GPUSLICE_ROOT", None)
    return kept


def on_card(base: Environment, card: Card) -> Environment:
    """The environment of programs that see this card alone."""
    return {**base, "CUDA_VISIBLE_DEVICES": card.uuid, "CARD_UUID": card.uuid}


def _header_directory() -> str:
    sys.path.append(str(ROOT / "src"))
    from find_header import header_directory

    found = header_directory("cuda.h")
    if found is not None:
        return str(found)
    for directory in _TOOLKITS:
        if (Path(directory) / "cuda.h").exists():
            return directory
    raise CheckError(f"no cuda.h in NVIDIA's Python packages, {' or '.join(_TOOLKITS)}")
