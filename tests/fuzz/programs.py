"""Parsers of the isolation library as programs: inputs in on a pipe, a byte out for each."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest
from tools.harness.compiling import compile_kept

_ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", f"-I{_ROOT / 'src/isolation'}")
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PROGRAMS: dict[str, Sequence[str]] = {"limits": ("slice/limits.c",)}
"""Source of `c` -> files of the library that it is built with."""


@dataclass(frozen=True)
class Program:
    """A parser that runs."""

    name: str
    process: "subprocess.Popen[bytes]"

    @staticmethod
    @contextmanager
    def compiled(name: str) -> Iterator["Program"]:
        """Build and start it; a machine without a compiler skips."""
        if which("cc") is None:
            pytest.skip("no C compiler (apt install gcc)")
        with tempfile.TemporaryDirectory() as directory:
            binary = Path(directory) / name
            sources = [_ROOT / "src/isolation" / each for each in PROGRAMS[name]]
            source = Path(__file__).parent / "c" / f"{name}.c"
            compile_kept(["cc", *_FLAGS, *_SANITIZERS, str(source), *map(str, sources)], binary)
            with subprocess.Popen(
                [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                yield Program(name, process)
                process.kill()

    def read(self, content: bytes) -> None:
        """Have it read an input."""
        stdin, stdout, stderr = self.process.stdin, self.process.stdout, self.process.stderr
        assert stdin
        assert stdout
        assert stderr
        stdin.write(len(content).to_bytes(4, "little") + content)
        stdin.flush()
        assert stdout.read(1) == b".", f"{content[:200]!r}: {stderr.read().decode()}"
