"""What the container of a slice receives: its cards, figures for applications, and what isolation mounts."""

from collections.abc import Sequence

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.fractions.fraction import fraction_of, is_bare, units_per_card
from gpu_device_plugin.domain.grants.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    PRELOAD_FILE,
    REGION_FILE,
    SELFTEST_FILE,
    VISIBLE_DEVICES,
    DeviceAccess,
    DeviceNode,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.node.state import NodeState


def environment(
    grant: Grant, cards: Sequence[Card], state: NodeState, access: DeviceAccess
) -> dict[str, str]:
    """The cards, and figures for applications (R-550)."""
    fraction = fraction_of(grant)
    envs = {
        VISIBLE_DEVICES: access.visible(card.uuid for card in cards),
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(str(card.index) for card in cards),
        # Applications divide CONTAINER by DEV: of unequal cards the larger is the safe one.
        "ALIYUN_COM_GPU_MEM_DEV": str(max(card.capacity(fraction.unit) for card in cards)),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units_per_card(grant)),
        "ALIYUN_COM_GPU_MEM_POD": str(fraction.pod_units),
    }
    if is_bare(grant) and state.wants_isolation:
        envs["CGPU_DISABLE"] = "true"
    if grant.is_isolated:
        envs["NVIDIA_DRIVER_CAPABILITIES"] = state.driver_capabilities
    return envs


def isolation_mounts(grant: Grant, paths: Paths) -> tuple[Mount, ...]:
    """The limits, what the container writes, and the library."""
    if not grant.is_isolated:
        return ()
    mine = f"{paths.run_dir}/slices/{grant.slice_id}"
    library = f"{paths.library_dir}/{paths.library_version}"
    return (
        Mount(CONFIG_DIR, f"{mine}/config", is_read_only=True),
        Mount(REGION_FILE, f"{mine}/region", is_read_only=False),
        *(mount for uuid in grant.devices for mount in _activity(uuid, grant.slice_id, paths)),
        Mount(LIBRARY_FILE, f"{library}/libgpuslice.so", is_read_only=True),
        Mount(PRELOAD_FILE, f"{library}/ld.so.preload", is_read_only=True),
        *(
            (Mount(SELFTEST_FILE, f"{library}/gpu-selftest", is_read_only=True),)
            if paths.has_selftest
            else ()
        ),
    )


def _activity(uuid: str, slice_id: str, paths: Paths) -> tuple[Mount, Mount]:
    """The activity files of a card, read-only, and over them the slice's own, writable."""
    inside, outside = f"{CARDS_DIR}/{uuid}", f"{paths.run_dir}/cards/{uuid}"
    return (
        Mount(inside, outside, is_read_only=True),
        Mount(f"{inside}/{slice_id}", f"{outside}/{slice_id}", is_read_only=False),
    )


def device_nodes(
    cards: Sequence[Card], access: DeviceAccess, paths: Paths
) -> tuple[DeviceNode, ...]:
    """The nodes of the cards and of the driver, where answers pass them."""
    if not access.passes_nodes or access.is_cdi_only:
        return ()
    nodes = (*(f"/dev/nvidia{card.minor}" for card in cards), *paths.control_devices)
    return tuple(DeviceNode(path, path, "rw") for path in nodes)
