"""What a container must be started with, told apart from what it was started with."""

from collections.abc import Mapping
from pathlib import Path

from gpu_device_plugin.apps.demo.cast import UNITS_PER_CARD, Role
from gpu_device_plugin.apps.demo.node import DemoNode
from gpu_device_plugin.domain.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    PRELOAD_FILE,
    REGION_FILE,
    SELFTEST_FILE,
)
from gpu_device_plugin.errors import EdgeError

LIMITS = "limits"
Mounts = Mapping[str, tuple[str, bool]]


def environment(node: DemoNode, role: Role) -> dict[str, str]:
    """Its variables (R-550), from the cards themselves."""
    return {
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(role.mem_units // len(role.lands_on)),
        "ALIYUN_COM_GPU_MEM_DEV": str(UNITS_PER_CARD),
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(map(str, role.lands_on)),
        "ALIYUN_COM_GPU_MEM_POD": str(role.mem_units),
        "NVIDIA_VISIBLE_DEVICES": ",".join(_uuids(node, role)),
        **({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if node.is_isolated else {}),
    }


def mounts(node: DemoNode, role: Role) -> dict[str, str]:
    """Its mounts, by path in the container; none where isolation is off."""
    if not node.is_isolated:
        return {}
    read_only = [CONFIG_DIR, LIBRARY_FILE, PRELOAD_FILE]
    if node.has_selftest:
        read_only.append(SELFTEST_FILE)
    cards = [f"{CARDS_DIR}/{uuid}" for uuid in _uuids(node, role)]
    return {
        **dict.fromkeys((*read_only, *cards), "read-only"),
        **dict.fromkeys((REGION_FILE, *(f"{card}/its slice" for card in cards)), "read-write"),
    }


def seen_mounts(found: Mounts) -> dict[str, str]:
    """Its mounts, in the same form; a missing source is marked."""
    return {_without_slice(path): _state(*mount) for path, mount in found.items()}


def limits(found: Mounts) -> str:
    """The file of limits that it reads; empty where isolation is off."""
    host, _ = found.get(CONFIG_DIR, ("", True))
    try:
        return (Path(host) / LIMITS).read_text(encoding="utf-8") if host else ""
    except OSError as error:
        return f"{host}/{LIMITS}: {error.strerror}"


def limit_lines(node: DemoNode, role: Role) -> list[str]:
    """What that file must say of its cards."""
    core = f" core_percent={role.core_percent}" if role.core_percent else ""
    memory = f"memory_bytes={role.slice_mib << 20}"
    return [f"device={uuid} {memory}{core}" for uuid in _uuids(node, role)]


def _uuids(node: DemoNode, role: Role) -> list[str]:
    if node.simulated is None:
        raise EdgeError(f"{node.name} has no simulated cards")
    cards = node.simulated.view().cards
    return [cards[index].uuid for index in role.lands_on]


def _without_slice(path: str) -> str:
    """A slice's id is random: it stands at the end of one path."""
    below = path.removeprefix(f"{CARDS_DIR}/")
    uuid, slash, _ = below.partition("/")
    return f"{CARDS_DIR}/{uuid}/its slice" if slash and below != path else path


def _state(host_path: str, is_read_only: bool) -> str:  # noqa: FBT001
    if not Path(host_path).exists():
        return f"{host_path} is missing"
    return "read-only" if is_read_only else "read-write"
