"""Which card there is, asked of NVML in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOOK = Path(__file__).parent / "programs" / "look.py"
_SECONDS = 60.0
_NODES = Path("/dev")


class NoCardError(Exception):
    """There is no card to measure; the text says what was looked for."""


class CardError(Exception):
    """There is a card, or should be, and it cannot be asked."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card and its driver.

    Attributes:
        uuid: As NVML and CUDA name it.
        name: The product.
        driver: The driver's version.
        cuda: The CUDA version of the driver.
        total_bytes: Its memory.
        free_bytes: What is free of it.
        used_bytes: What is taken, the driver's own part with it.
        pids: The processes that use it, and the bytes that NVML lists with each.
        is_simulated: Whether the driver is the simulated one.
    """

    uuid: str
    name: str
    driver: str
    cuda: str
    total_bytes: int
    free_bytes: int
    used_bytes: int
    pids: Mapping[int, int]
    is_simulated: bool = False


def find(environment: Mapping[str, str], uuid: str | None = None) -> Card:
    """The card of that UUID, or the idlest one that several processes may use whole.

    Where CUDA_VISIBLE_DEVICES is set, one of those: by UUID, or by NVML's number.

    Raises:
        NoCardError: There is none.
        CardError: The driver does not answer although its devices are there.
    """
    told = _look(environment)
    if reason := told.get("unable"):
        raise CardError(str(reason))
    if reason := told.get("none"):
        nodes = sorted(_NODES.glob("nvidia[0-9]*"))
        if nodes:
            raise CardError(f"{nodes[0]} is there, but {reason}")
        raise NoCardError(f"looked for libnvidia-ml.so.1 and /dev/nvidia*; {reason}")
    found = chosen(told["cards"], uuid or environment.get("CUDA_VISIBLE_DEVICES", ""))
    if found is None:
        raise NoCardError(
            f"driver {told['driver']} shows {len(told['cards'])} cards, and none that may be used is without "
            "MIG and in compute mode Default; modes are left as they are"
        )
    return Card(
        uuid=found["uuid"],
        name=found["name"],
        driver=told["driver"],
        cuda=told["cuda"],
        total_bytes=found["total"],
        free_bytes=found["free"],
        used_bytes=found["used"],
        pids={int(pid): used for pid, used in found["pids"].items()},
        is_simulated=told["is_simulated"],
    )


def chosen(cards: Sequence[dict[str, Any]], visible: str) -> dict[str, Any] | None:
    """The idlest card that several processes may use whole, of those that `visible` lists."""
    names = visible.split(",")
    usable = [
        card
        for number, card in enumerate(cards)
        if not card["has_mig"]
        and not card["is_exclusive"]
        and any(card["uuid"].startswith(name) or str(number) == name for name in names)
    ]
    return min(usable, key=lambda card: (len(card["pids"]), -card["free"]), default=None)


def _look(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        asked = subprocess.run(
            [sys.executable, _LOOK],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CardError(f"NVML did not answer within {_SECONDS:.0f} s") from error
    try:
        told: dict[str, Any] = json.loads(asked.stdout)
    except json.JSONDecodeError as error:
        raise CardError(
            f"the look at NVML ended with {asked.returncode}: {asked.stderr}"
        ) from error
    return told
