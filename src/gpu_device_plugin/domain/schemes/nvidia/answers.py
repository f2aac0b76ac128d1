"""What a container with NVIDIA's devices receives (R-720, R-721)."""

from collections.abc import Sequence

from gpu_device_plugin.domain.container_edits import (
    VISIBLE_DEVICES_DIR,
    ContainerEdits,
    DeviceNode,
    ListStrategy,
    Mount,
    Paths,
)
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    Configuration,
    IdStrategy,
)
from gpu_device_plugin.domain.schemes.nvidia.offers import Offered

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_CAPABILITY = "/dev/nvidia-caps/nvidia-cap{minor}"
_IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel{channel}"


def answer(
    devices: Sequence[Offered], configuration: Configuration, paths: Paths, answer_id: str
) -> ContainerEdits:
    """The edits of a container that holds `devices`.

    A device of which there are several replicas counts once. `answer_id`, at most 36 characters,
    distinguishes the CDI annotations of one pod.
    """
    by_place = sorted(devices, key=_place)
    ids = list(dict.fromkeys(_name(device, configuration) for device in by_place))
    cdi_names = _cdi_names(ids, configuration)
    access = configuration.access
    return ContainerEdits(
        envs={_VISIBLE: "void"} if access.is_cdi_only else _envs(ids, configuration),
        mounts=_mounts(ids, configuration) + paths.driver,
        devices=() if access.is_cdi_only else _nodes(by_place, configuration, paths),
        cdi_names=cdi_names if ListStrategy.CDI_CRI in access.strategies else (),
        annotations=access.annotations(cdi_names, answer_id),
    )


def _place(device: Offered) -> tuple[int, int]:
    return device.card.index, -1 if device.instance is None else device.instance.index


def _name(device: Offered, configuration: Configuration) -> str:
    return device.index if configuration.id_strategy is IdStrategy.INDEX else device.uuid


def _envs(ids: Sequence[str], configuration: Configuration) -> dict[str, str]:
    wants = configuration.access.strategies
    envs = {}
    if ListStrategy.ENVVAR in wants:
        envs[_VISIBLE] = ",".join(ids)
        if configuration.imex_channels:
            envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, configuration.imex_channels))
    if ListStrategy.VOLUME_MOUNTS in wants:
        envs[_VISIBLE] = VISIBLE_DEVICES_DIR
    return {**envs, **{f"NVIDIA_{name.upper()}": "enabled" for name in _extras(configuration)}}


def _mounts(ids: Sequence[str], configuration: Configuration) -> tuple[Mount, ...]:
    if ListStrategy.VOLUME_MOUNTS not in configuration.access.strategies:
        return ()
    names = [*ids, *(f"imex/{channel}" for channel in configuration.imex_channels)]
    return tuple(
        Mount(f"{VISIBLE_DEVICES_DIR}/{name}", "/dev/null", is_read_only=False) for name in names
    )


def _nodes(
    devices: Sequence[Offered], configuration: Configuration, paths: Paths
) -> tuple[DeviceNode, ...]:
    """Control nodes, then each card's and instance's own, then IMEX channels."""
    if not configuration.access.passes_nodes:
        return ()
    found = [*paths.control_devices]
    for device in devices:
        found.append(f"/dev/nvidia{device.card.minor}")
        if device.instance is not None:
            card, part = device.card.minor, device.instance
            minors = [
                paths.mig_minors.get((card, part.gpu_instance, place))
                for place in (None, part.compute_instance)
            ]
            found += [_CAPABILITY.format(minor=minor) for minor in minors if minor is not None]
    found += [_IMEX_CHANNEL.format(channel=channel) for channel in configuration.imex_channels]
    root = (configuration.dev_root or configuration.driver_root).rstrip("/")
    return tuple(DeviceNode(path, f"{root}{path}", "rw") for path in dict.fromkeys(found))


def _cdi_names(ids: Sequence[str], configuration: Configuration) -> tuple[str, ...]:
    return (
        *(f"nvidia.com/gpu={each}" for each in ids),
        *(f"nvidia.com/imex-channel={channel}" for channel in configuration.imex_channels),
        *(f"nvidia.com/{name}=all" for name in _extras(configuration)),
    )


def _extras(configuration: Configuration) -> list[str]:
    """What is asked for beside the cards."""
    given = {
        "gdrcopy": configuration.is_gdrcopy_on,
        "gds": configuration.is_gds_on,
        "mofed": configuration.is_mofed_on,
    }
    return [name for name, is_on in given.items() if is_on]
