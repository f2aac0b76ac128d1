"""A simulated node of V100 cards, as the tests of the simulated libcuda use it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = Path(os.environ.get("NATIVE_DIRECTORY", ROOT / "build" / "native"))
PROGRAMS = HERE / "programs"
V100_MIB = 16160


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated node: where its state lies, and the environment that finds it."""

    state: Path

    def environment(self, **extra: str) -> dict[str, str]:
        """What a process needs to use this node."""
        kept = {key: value for key, value in os.environ.items() if "VISIBLE_DEVICES" not in key}
        libraries = {"LD_LIBRARY_PATH": str(NATIVE), "GPU_SIMULATOR_STATE": str(self.state)}
        # What these tests say of times is exact.
        return kept | libraries | {"GPU_SIMULATOR_CARD_LIKE": "0"} | extra

    def run(self, program: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Runs a program on the node to its end."""
        return subprocess.run(
            [str(program), *words],
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def uuid_of(card: int) -> str:
    """The UUID that the nodes of these tests give a card."""
    return f"GPU-{card:08x}-0000-0000-0000-000000000000"


def slice_uuid_of(instance: int) -> str:
    """The UUID of a MIG slice of the card that `sliced` describes."""
    return f"MIG-{instance:08x}-0000-0000-0000-000000000000"


def sliced() -> str:
    """The lines that make a node of one A100 with two slices, 1g.5gb each."""
    values = {"mig_capable": 1, "mig_enabled": 1, "memory_total_mib": 40960, "multiprocessors": 108}
    lines = [described(1), *(f"cards.0.{name}={value}" for name, value in values.items())]
    for instance in range(2):
        fields = {
            "present": 1,
            "uuid": slice_uuid_of(instance),
            "gpu_instance": 7 + instance,
            "profile": "1g.5gb",
            "memory_mib": 4864,
            "multiprocessors": 14,
        }
        lines += [f"cards.0.instances.{instance}.{name}={value}" for name, value in fields.items()]
    return "\n".join(lines) + "\n"


def described(cards: int) -> str:
    """The lines that make a node of so many cards."""
    lines = [f"cards_count={cards}", "driver_version=575.57.08", "cuda_version=12090"]
    for card in range(cards):
        values = {
            "present": 1,
            "uuid": uuid_of(card),
            "name": "Tesla V100-SXM2-16GB",
            "memory_total_mib": V100_MIB,
            "multiprocessors": 80,
            "compute_major": 7,
            "pci_bus": 16 + card,
            "minor_number": card,
            "order": card,
        }
        lines += [f"cards.{card}.{name}={value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
