"""What a kubelet sees of a plugin: resources, ids, and what containers would get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.harness.kubelet import StandInKubelet
from tools.harness.kubelet_registry import PluginLink

from gpu_device_plugin.errors import KubeletError

_ANSWER_ID = "nvidia-device-plugin_"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a container would get, with nothing in it that is random.

    Attributes:
        envs: Variables; NVIDIA_VISIBLE_DEVICES with its ids in order and once each: theirs keeps
            no order, and names a card once for each of its replicas.
        mounts: (container path, host path, is read-only), sorted.
        devices: (container path, host path, permissions), sorted; theirs names a card once for each
            of its instances.
        annotations: The value of the one annotation, its key without the answer's id.
        cdi: Names of CDI devices.
        error: The error's text where it was refused.
    """

    envs: Mapping[str, str]
    mounts: Sequence[tuple[str, str, bool]] = ()
    devices: Sequence[tuple[str, str, str]] = ()
    annotations: Mapping[str, str] | None = None
    cdi: Sequence[str] = ()
    error: str = ""


async def listed(link: PluginLink) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Id -> health and NUMA nodes, as the first message of a new stream has them."""
    async for message in link.lists():
        return {
            each.ID: (each.health, tuple(node.ID for node in each.topology.nodes))
            for each in message.devices
        }
    return {}


def counted(kubelet: StandInKubelet) -> dict[str, int]:
    """Resource -> how many are allocatable; without those of which there are none."""
    return {name: n for name in kubelet.registry.links if (n := kubelet.allocatable(name))}


def is_settled(kubelet: StandInKubelet) -> bool:
    """Whether something is offered, and every plugin that is there has sent its list."""
    links = kubelet.registry.links.values()
    return bool(counted(kubelet)) and all(link.has_list for link in links)


async def preferred(link: PluginLink, free: Sequence[str], size: int) -> Sequence[str]:
    """The ids that the plugin would like best, sorted."""
    return sorted(await link.ask_preferred(tuple(free), (), size))


async def answered(link: PluginLink, ids: Sequence[str]) -> Answer:
    """Its answer for these ids, or why it refuses them."""
    try:
        found: Any = await link.allocate(tuple(ids))
    except KubeletError as error:
        return Answer({}, error=str(error))
    envs = {name: ",".join(sorted(set(value.split(",")))) for name, value in found.envs.items()}
    return Answer(
        envs,
        sorted((m.container_path, m.host_path, m.read_only) for m in found.mounts),
        sorted({(d.container_path, d.host_path, d.permissions) for d in found.devices}),
        {key.partition(_ANSWER_ID)[0]: value for key, value in found.annotations.items()},
        [device.name for device in found.cdi_devices],
    )
