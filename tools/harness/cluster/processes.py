"""Long-running programs of the cluster: started with a log file, stopped, killed, started again."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_SECONDS = 15.0


class ProgramError(Exception):
    """A program ended that should be running, or a command failed."""


class Program:
    """One program with one log file, which every start appends to."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        if self._process is None:
            raise ProgramError(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> None:
        """Start it; its output goes to the log file."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise with the end of the log if the program has ended."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise ProgramError(f"{self.name} ended with {code}; its log ends: {self.tail()}")

    def tail(self, characters: int = 2000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def stop(self) -> int | None:
        """Ask it to end, insist after a while, and return its exit code."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it as kill -9 does."""
        if self._process is None:
            raise ProgramError(f"{self.name} was not started")
        self._process.send_signal(signal.SIGKILL)
        return self._process.wait(STOP_SECONDS)

    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None


def command_output(command: Sequence[str], stdin: str | None = None, seconds: float = 400.0) -> str:
    """Run a command to its end and return what it wrote, or raise with what it complained about."""
    done = subprocess.run(
        list(command), input=stdin, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        text = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ProgramError(f"{' '.join(command)} ended with {done.returncode}: {text}")
    return done.stdout
