"""What the container of a slice receives: its cards, figures for applications, and what isolation mounts."""

from collections.abc import Sequence

from gpu_device_plugin.domain.container_edits import (
    CARDS_DIR,
    CONFIG_DIR,
    LIBRARY_FILE,
    PRELOAD_FILE,
    REGION_FILE,
    SELFTEST_FILE,
    VISIBLE_DEVICES_DIR,
    ContainerEdits,
    DeviceAccess,
    DeviceNode,
    ListStrategy,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.node_state import NodeTerms
from gpu_device_plugin.domain.schemes.aliyun.fraction import fraction_of, is_bare, units_per_card


def container_edits(
    grant: Grant, cards: Sequence[Card], terms: NodeTerms, access: DeviceAccess, paths: Paths
) -> ContainerEdits:
    """What the container of `grant` receives.

    Everything except how the card is reached follows from the grant, so a repeated Allocate gives
    the same answer.

    Args:
        grant: The slice.
        cards: Its cards, in the grant's order.
        terms: The node's terms now; only isolation and the driver's capabilities.
        access: How cards reach containers on this node.
        paths: Paths on the host.
    """
    cdi_names = tuple(f"nvidia.com/gpu={card.uuid}" for card in cards)
    return ContainerEdits(
        envs=_envs(grant, cards, terms, access),
        mounts=_isolation_mounts(grant, paths) + _card_mounts(cards, access) + paths.driver,
        devices=_device_nodes(cards, access, paths),
        cdi_names=cdi_names if ListStrategy.CDI_CRI in access.strategies else (),
        annotations=access.annotations(cdi_names, grant.slice_id),
    )


def _envs(
    grant: Grant, cards: Sequence[Card], terms: NodeTerms, access: DeviceAccess
) -> dict[str, str]:
    fraction = fraction_of(grant)
    envs = {
        "NVIDIA_VISIBLE_DEVICES": _visible(cards, access),
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(str(card.index) for card in cards),
        # Applications divide CONTAINER by DEV: of unequal cards the larger is the safe one.
        "ALIYUN_COM_GPU_MEM_DEV": str(max(card.capacity(fraction.unit) for card in cards)),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units_per_card(grant)),
        "ALIYUN_COM_GPU_MEM_POD": str(fraction.pod_units),
    }
    if is_bare(grant) and terms.is_isolation_on:
        envs["CGPU_DISABLE"] = "true"
    if grant.is_isolated:
        envs["NVIDIA_DRIVER_CAPABILITIES"] = terms.driver_capabilities
    return envs


def _visible(cards: Sequence[Card], access: DeviceAccess) -> str:
    if access.is_cdi_only:
        return "void"
    if ListStrategy.VOLUME_MOUNTS in access.strategies:
        return VISIBLE_DEVICES_DIR
    return ",".join(card.uuid for card in cards)


def _isolation_mounts(grant: Grant, paths: Paths) -> tuple[Mount, ...]:
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
        *_selftest_mount(library, paths),
    )


def _selftest_mount(library: str, paths: Paths) -> tuple[Mount, ...]:
    if not paths.has_selftest:
        return ()
    return (Mount(SELFTEST_FILE, f"{library}/gpu-selftest", is_read_only=True),)


def _activity(uuid: str, slice_id: str, paths: Paths) -> tuple[Mount, Mount]:
    """The activity files of a card, read-only, and over them the slice's own, writable."""
    inside, outside = f"{CARDS_DIR}/{uuid}", f"{paths.run_dir}/cards/{uuid}"
    return (
        Mount(inside, outside, is_read_only=True),
        Mount(f"{inside}/{slice_id}", f"{outside}/{slice_id}", is_read_only=False),
    )


def _card_mounts(cards: Sequence[Card], access: DeviceAccess) -> tuple[Mount, ...]:
    if ListStrategy.VOLUME_MOUNTS not in access.strategies:
        return ()
    return tuple(
        Mount(f"{VISIBLE_DEVICES_DIR}/{card.uuid}", "/dev/null", is_read_only=False)
        for card in cards
    )


def _device_nodes(
    cards: Sequence[Card], access: DeviceAccess, paths: Paths
) -> tuple[DeviceNode, ...]:
    if not access.passes_nodes or access.is_cdi_only:
        return ()
    nodes = (*(f"/dev/nvidia{card.minor}" for card in cards), *paths.control_devices)
    return tuple(DeviceNode(path, path, "rw") for path in nodes)
