"""A simulated GPU node: made from a profile, changed while programs use it, and what it looks like.

The node is one file that every program maps through the simulated libnvidia-ml.so.1 (and
libcuda.so.1). A program finds it by the environment variable GPU_SIMULATOR_STATE, or
beside the library it loaded, or at /run/gpu-simulator/state.

Containers get its cards by mounts of the agent's answer (`--simulator-dir`) or by a CDI spec, which the
container runtime reads as that of real cards (containerd: `enable_cdi`, `cdi_spec_dirs`; the agent names
cards with `--device-list-strategy cdi-cri`). Mounted are the simulated libraries, where the loader of a
Debian image looks, and the state file, which is what the libraries have for a device node.
"""

import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec
from msgspec import field

from gpu_device_plugin.domain.grants.cdi_spec import CDI_VERSION, cdi_mount
from gpu_device_plugin.domain.grants.container_edits import VISIBLE_DEVICES_DIR, Mount
from gpu_device_plugin.errors import ConfigError, StorageError
from gpu_device_plugin.simulation import driver_library
from gpu_device_plugin.simulation.driver_library import CUDA, NVML
from gpu_device_plugin.simulation.mps_control import MPS_CONTROL, write_program
from gpu_device_plugin.simulation.node_profiles import cut_lines, driver_lines, mig_ids, node_lines

STATE_NAME = "gpu-simulator.state"
DEFAULT_STATE = Path("/run/gpu-simulator/state")
_XID_FALLEN_OFF_THE_BUS = 79
_RECOVERY_RESET = 1
# After these the driver asks for a reset of the card (nvmlGpuRecoveryAction).
_XIDS_THAT_NEED_A_RESET = frozenset({48, 74, 95, 119, 120})


class InstanceView(msgspec.Struct, frozen=True):
    """A MIG slice."""

    profile: str
    uuid: str
    memory_mib: int


class SimulatedCard(msgspec.Struct, frozen=True):
    """A card by its slot, which stays when others are unplugged (NVML's index moves)."""

    slot: int
    instances: tuple[InstanceView, ...]
    uuid: str = ""
    name: str = ""
    is_present: bool = field(default=False, name="present")
    is_lost: bool = field(default=False, name="lost")
    is_mig: bool = field(default=False, name="mig_enabled")
    memory_mib: int = field(default=0, name="memory_total_mib")
    used_bytes: int = field(default=0, name="memory_used_bytes")
    gpu_percent: int = 0
    temperature_celsius: int = 0
    recovery_action: int = 0
    compute_mode: int = 0


class ProcessView(msgspec.Struct, frozen=True):
    """A process that holds memory of a card."""

    pid: int
    card: int = 0
    used_bytes: int = 0
    name: str = ""


class SimulatedNodeView(msgspec.Struct, frozen=True):
    """The whole node at one instant."""

    cards: tuple[SimulatedCard, ...]
    processes: tuple[ProcessView, ...]
    cuda_version: str
    profile: str = ""
    driver_version: str = ""
    driver_loads: int = 0
    is_hanging: bool = field(default=False, name="hang")


def node_view(fields: Mapping[str, str]) -> SimulatedNodeView:
    """Reads what `driver_library.describe` tells; a field that is missing is zero."""
    cuda, count = int(fields.get("cuda_version", "0")), int(fields.get("cards_count", "0"))
    cards = [_below(fields, f"cards.{slot}.") for slot in range(count)]
    told: dict[str, object] = {
        **fields,
        "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "processes": [*_structures(fields, "processes.")],
        "cards": [
            {
                **card,
                "slot": slot,
                "instances": [each for each in _structures(card, "instances.") if "uuid" in each],
            }
            for slot, card in enumerate(cards)
        ],
    }
    return msgspec.convert(told, SimulatedNodeView, strict=False)


def _below(fields: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The fields of one structure, without its prefix."""
    below = (name for name in fields if name.startswith(prefix))
    return {name.removeprefix(prefix): fields[name] for name in below}


def _structures(fields: Mapping[str, str], prefix: str) -> Iterator[dict[str, str]]:
    """The structures `prefix`0, `prefix`1, … that are there, by number."""
    numbers = {int(name.split(".")[1]) for name in fields if name.startswith(prefix)}
    return (_below(fields, f"{prefix}{number}.") for number in sorted(numbers))


class Choices(TypedDict, total=False):
    """Where a node differs from its profile; `seed` (by default the state's path) decides UUIDs and serial numbers."""

    driver_version: str | None
    cards: int | None
    seed: str | None


class SimulatedNode:
    """The controls of one node; many may hold one, in any process.

    Cards are named by their slot, which stays: unplugging card 1 renumbers card 2 for NVML,
    but not here.
    """

    def __init__(self, state: Path) -> None:
        self.state = state

    @classmethod
    def create(cls, profile: str, state: Path, **choices: Unpack[Choices]) -> "SimulatedNode":
        """Makes a node.

        A directory as `state` gets `gpu-simulator.state` and the simulated libraries beside it:
        `library` is then all that a program needs to be told.
        """
        node = cls(_file(state))
        node._write(state, node._lines(profile, choices))
        return node

    @classmethod
    def keep(cls, profile: str, state: Path, **choices: Unpack[Choices]) -> "SimulatedNode":
        """The node that `create` would make, or the one that is there with these cards.

        Programs that use it go on with the same state file; only the libraries are renewed.
        """
        node = cls(_file(state))
        lines = node._lines(profile, choices)
        wanted = {line for line in lines if _tells(line.partition("=")[0])}
        if node.state.exists() and node.has_exactly(wanted):
            _prepare(state, lines)
        else:
            node._write(state, lines)
        return node

    def _lines(self, profile: str, choices: Choices) -> list[str]:
        return node_lines(
            profile,
            seed=choices.get("seed") or str(self.state),
            cards=choices.get("cards"),
            driver_version=choices.get("driver_version"),
        )

    def _write(self, place: Path, lines: list[str]) -> None:
        _prepare(place, lines)
        driver_library.create_node(self.state, lines)

    def has_exactly(self, wanted: set[str]) -> bool:
        """Whether driver and UUIDs of cards and MIG slices are these, as lines of a profile."""
        try:
            fields = driver_library.describe(self.state)
        except (ConfigError, StorageError):
            return False
        return {f"{key}={value}" for key, value in fields.items() if _tells(key)} == wanted

    @property
    def library(self) -> Path:
        """The libnvidia-ml.so.1 that shows this node without any environment variable."""
        path = self.state.parent / driver_library.NVML
        if self.state.name != STATE_NAME or not path.exists():
            raise ConfigError(
                f"no driver library stands beside {self.state}: create it in a directory"
            )
        return path

    def view(self) -> SimulatedNodeView:
        return node_view(driver_library.describe(self.state))

    def xid(self, card: int, code: int, instance: int | None = None) -> None:
        """The card in this slot, or one MIG instance by index, reports an XID; for a card's the driver may want a reset."""
        self._require_present(card)
        if instance is None and code in _XIDS_THAT_NEED_A_RESET:
            self._set_card(card, recovery_action=_RECOVERY_RESET)
        driver_library.post_xid(self.state, card, code, instance)

    def lose(self, card: int) -> None:
        """The card falls off the bus: XID 79, and every call on it fails."""
        self._require_present(card)
        self._set_card(card, lost=1)
        driver_library.post_xid(self.state, card, _XID_FALLEN_OFF_THE_BUS)

    def restore(self, card: int) -> None:
        """The card answers again and needs no reset any more."""
        self._require_present(card)
        self._set_card(card, lost=0, recovery_action=0)

    def hang(self) -> None:
        """Every driver call of every program blocks from now on."""
        driver_library.set_fields(self.state, ["hang=1"])

    def unhang(self) -> None:
        driver_library.set_fields(self.state, ["hang=0"])

    def slow(self, card: int, seconds: int, call: str = "") -> None:
        """So long NVML's calls on the card take from now on, those whose names begin with `call`."""
        self._require_present(card)
        lines = [f"cards.{card}.slow_seconds={seconds}", f"cards.{card}.slow_call={call}"]
        driver_library.set_fields(self.state, lines)

    def use(
        self, card: int, *, memory_mib: int | None = None, gpu_percent: int | None = None
    ) -> None:
        """Somebody not further described uses the card; None leaves a figure as it is."""
        shown = self._require_present(card)
        if memory_mib is not None and not 0 <= memory_mib <= shown.memory_mib:
            raise ConfigError(
                f"card {card} ({shown.name}) has {shown.memory_mib} MiB, not {memory_mib}"
            )
        if gpu_percent is not None and not 0 <= gpu_percent <= 100:
            raise ConfigError(f"card {card} can be used by 0 to 100 percent, not {gpu_percent}")
        self._set_card(card, memory_base_mib=memory_mib, gpu_percent=gpu_percent)

    def temperature(self, card: int, celsius: int) -> None:
        self._require_present(card)
        self._set_card(card, temperature_celsius=celsius)

    def cut(self, card: int, profiles: Sequence[str] | None) -> None:
        """The card has these MIG instances from now on, all of them new; None: no MIG mode."""
        shown = self._require_present(card)
        if shown.used_bytes:
            raise ConfigError(f"card {card} ({shown.uuid}) is in use and cannot be cut")
        chosen = None if profiles is None else tuple(profiles)
        ids = mig_ids(self.view().driver_version, shown.uuid)
        lines = cut_lines(shown.name, card, chosen, secrets.token_hex(8), ids)
        driver_library.set_fields(self.state, lines)

    def unplug(self, card: int) -> None:
        """The card is gone; calls on its old handles answer GPU_IS_LOST."""
        self._require_present(card)
        self._set_card(card, present=0)

    def plug(self, card: int) -> None:
        """The card is back in its slot. Programs see it when they initialise NVML again."""
        shown = self._card(card)
        if shown.is_present:
            raise ConfigError(f"card {card} ({shown.uuid}) is plugged in already")
        self._set_card(card, present=1, lost=0, recovery_action=0)

    def upgrade_driver(self, version: str) -> None:
        """The driver is loaded again in another version; no card needs a reset any more."""
        now = self.view()
        lines = [f"cards.{card.slot}.recovery_action=0" for card in now.cards]
        lines += [f"driver_loads={now.driver_loads + 1}", *driver_lines(version)]
        driver_library.set_fields(self.state, lines)
        if self.state.name == STATE_NAME and (self.state.parent / driver_library.NVML).exists():
            _put_libraries(self.state.parent, lines)

    def _set_card(self, card: int, **fields: int | None) -> None:
        given = {name: value for name, value in fields.items() if value is not None}
        lines = [f"cards.{card}.{name}={value}" for name, value in given.items()]
        driver_library.set_fields(self.state, lines)

    def _card(self, card: int) -> SimulatedCard:
        cards = self.view().cards
        if not 0 <= card < len(cards):
            there = f"cards 0 to {len(cards) - 1}" if cards else "no cards"
            raise ConfigError(f"there is no card {card}: the node at {self.state} has {there}")
        return cards[card]

    def _require_present(self, card: int) -> SimulatedCard:
        shown = self._card(card)
        if not shown.is_present:
            raise ConfigError(f"card {card} ({shown.uuid}) is unplugged: plug it in first")
        return shown


def _tells(key: str) -> bool:
    """Whether a field tells nodes apart that are made of different words."""
    return key == "driver_version" or key.endswith(".uuid")


def _file(state: Path) -> Path:
    return state / STATE_NAME if state.is_dir() else state


def _prepare(state: Path, lines: list[str]) -> None:
    try:
        _file(state).parent.mkdir(parents=True, exist_ok=True)
        if state.is_dir():
            _put_libraries(state, lines)
    except OSError as error:
        raise StorageError(f"cannot prepare {state}: {error}") from error


def _put_libraries(directory: Path, lines: list[str]) -> None:
    """Those of the driver that the lines tell of; in a container a library is one's own.

    The MPS control daemon stands beside them.
    """
    versions = dict(line.split("=", 1) for line in lines)
    for name in (driver_library.NVML, driver_library.CUDA):
        try:
            driver_library.put_library(name, directory, versions)
        except ConfigError:
            if name == driver_library.NVML:
                raise
    write_program(directory / MPS_CONTROL)


KIND = "nvidia.com/gpu"


def driver_mounts(node: SimulatedNode) -> tuple[Mount, ...]:
    """What a container needs of a node's driver: its libraries, and the state file."""
    node.view()  # a node that is not there is said to be, rather than mounted
    beside = node.library.parent
    directory = f"/usr/lib/{platform.machine()}-linux-gnu"
    files = {f"{directory}/{name}": beside / name for name in (NVML, CUDA)}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise ConfigError(f"{missing[0]} is not there: create the node again after `make native`")
    libraries = (
        Mount(inside, str(path.absolute()), is_read_only=True) for inside, path in files.items()
    )
    return (*libraries, Mount(str(DEFAULT_STATE), str(node.state.absolute()), is_read_only=False))


def cdi_spec(node: SimulatedNode, extra: Mapping[str, Path] | None = None) -> dict[str, object]:
    """The spec of a node's cards, ready for JSON: one device a card or MIG slice, and `all`.

    `extra` are further files of every container, path there -> path here; a real spec brings
    nvidia-smi this way.
    """
    mounts = list(driver_mounts(node))
    for inside, path in (extra or {}).items():
        mounts.append(Mount(inside, str(path.absolute()), is_read_only=True))
    cards = node.view().cards
    names = [name for c in cards for name in (c.uuid, *(each.uuid for each in c.instances))]
    every = {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}
    return {
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "containerEdits": {"mounts": [cdi_mount(mount, "bind") for mount in mounts]},
        "devices": [
            *(_device(name, node) for name in names),
            {"name": "all", "containerEdits": every},
        ],
    }


def _device(name: str, node: SimulatedNode) -> dict[str, object]:
    """What device nodes decide on a real node: which cards the libraries show.

    A container may be given several, and a variable of one would replace that of another: so
    each brings a file, in the directory that the variable of all of them names.
    """
    # Any file: a container engine cannot mount /dev/null with other owners, as in a user namespace.
    mark = Mount(f"{VISIBLE_DEVICES_DIR}/{name}", str(node.library.absolute()), is_read_only=True)
    env = [f"NVIDIA_VISIBLE_DEVICES={VISIBLE_DEVICES_DIR}"]
    return {"name": name, "containerEdits": {"env": env, "mounts": [cdi_mount(mark, "bind")]}}
