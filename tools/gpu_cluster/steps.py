"""Steps that each print their time and rows, and a file that has all of them after every step."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.rows import Row

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: Of the step.
        run: Does it; what it has to show.
        needs: Steps that have to have succeeded.
    """

    name: str
    run: Callable[[], Sequence[Row]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Where what was seen is written, at once.

    Attributes:
        file: The JSON.
        about: What stands above the steps.
        say: Prints a line.
        log_end: What programs said last, when a step fails.
    """

    file: Path
    about: dict[str, Any]
    say: Say
    log_end: Callable[[], str]

    def run(self, steps: Sequence[Step]) -> Sequence[Row]:
        """Run them in order; one that needs a failed one is left out."""
        every: list[Row] = []
        done: dict[str, dict[str, Any]] = {}
        failed: set[str] = set()
        for step in steps:
            missing = sorted(failed.intersection(step.needs))
            begin_seconds = time.monotonic()
            if missing:
                failed.add(step.name)
                rows: Sequence[Row] = [Row(step.name, "", f"not run: needs {', '.join(missing)}")]
            else:
                self.say(f"==> {step.name}")
                rows, is_whole = self._attempted(step)
                failed.update([] if is_whole else [step.name])
            every += rows
            seconds = round(time.monotonic() - begin_seconds, 1)
            for row in rows:
                bar = f" ({row.target}) {row.verdict}" if row.target else ""
                self.say(f"    {row.what}: {row.measured}{bar}")
            self.say(f"    {step.name}: {seconds} s")
            done[step.name] = {"seconds": seconds, "rows": [asdict(row) for row in rows]}
            self._write(done)
        return every

    def _attempted(self, step: Step) -> tuple[Sequence[Row], bool]:
        try:
            return step.run(), True
        except Exception as error:  # noqa: BLE001 - whatever it is, the minutes on a card go on
            self.say(self.log_end())
            return [Row(step.name, "runs to its end", f"{error}", is_met=False)], False

    def _write(self, done: dict[str, dict[str, Any]]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({**self.about, "steps": done}, indent=1) + "\n")
        new.rename(self.file)
