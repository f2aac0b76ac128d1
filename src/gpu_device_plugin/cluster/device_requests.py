"""What a pod asks for of whole cards, replicas and MIG instances, by the names of its limits."""

from collections import Counter
from collections.abc import Mapping

from gpu_device_plugin.cluster.wire import Container, Pod
from gpu_device_plugin.domain.holdings import TOPOLOGY_GPU


def devices_asked(pod: Pod) -> Mapping[str, int]:
    """Resource -> how many devices, as kube-scheduler adds them up: an init container's end before.

    Amounts that are no whole numbers are left out; the API server takes none for such a resource.
    """
    found: Counter[str] = Counter()
    for container in pod.spec.containers:
        found.update(_asked(container))
    for init in pod.spec.init_containers or ():
        if init.restart_policy == "Always":
            found.update(_asked(init))
    for init in pod.spec.init_containers or ():
        found |= Counter(_asked(init))
    return found


def asking_containers(pod: Pod) -> list[str]:
    """Names of the containers that ask for devices."""
    every = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return [container.name for container in every if _asked(container)]


def asking_together(pod: Pod) -> list[str]:
    """Those of them that run together: an ordinary init container's devices go to a later one."""
    beside = [each for each in pod.spec.init_containers or () if each.restart_policy == "Always"]
    return [each.name for each in (*beside, *pod.spec.containers) if _asked(each)]


def whole_number(amount: object) -> int:
    """The amount, or 0 where it is none.

    >>> whole_number("8"), whole_number("1k")
    (8, 0)
    """
    text = str(amount)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _asked(container: Container) -> dict[str, int]:
    limits = container.resources.limits or {}
    whole = {name: whole_number(limits[name]) for name in limits if _is_device(name)}
    return {name: amount for name, amount in whole.items() if amount}


def _is_device(name: str) -> bool:
    """NVIDIA's configuration renames its resources, but none out of its domain."""
    return name.startswith("nvidia.com/") or name == TOPOLOGY_GPU
