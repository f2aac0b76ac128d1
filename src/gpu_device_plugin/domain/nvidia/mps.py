"""What an MPS server is told of the cards it shares, and what its clients receive (R-705)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, Mount
from gpu_device_plugin.domain.node.state import ANY_CARD
from gpu_device_plugin.domain.nvidia.configuration import Configuration, SharingKind
from gpu_device_plugin.domain.nvidia.offers import Offered, Offers

_CONTAINER_ROOT = "/mps"
_MIB_SUFFIX = "M"
_NOT_YET = "does not serve yet"
_ANOTHER = "serves another configuration while pods hold its replicas"
_UNKNOWN = "has left a compute-modes.json that cannot be read"
_UUID = 2
"""Place of the UUID in a line of `served_text`."""
ASK = "get_default_active_thread_percentage"
"""A command that changes nothing: anyone who answers it serves."""


@dataclass(frozen=True, slots=True)
class Server:
    """One MPS server: the replicas of one resource.

    Per UUID, by index, what a client may pin of a card; and the part of its threads that it may use.
    """

    resource: str
    memory_mib: Mapping[str, MiB]
    thread_percent: int

    @property
    def commands(self) -> tuple[str, ...]:
        """For `nvidia-cuda-mps-control`; cards by their places among those that it shows."""
        limits = enumerate(self.memory_mib.values())
        return (
            *(f"set_default_device_pinned_mem_limit {i} {n}{_MIB_SUFFIX}" for i, n in limits),
            f"set_default_active_thread_percentage {self.thread_percent}",
        )


def servers(resources: Mapping[str, tuple[Offered, ...]]) -> tuple[Server, ...]:
    """A server for each resource that has replicas."""
    found = []
    for resource, devices in resources.items():
        shared = [device for device in devices if device.replicas > 1]
        limits = {each.uuid: MiB(each.card.memory_mib // each.replicas) for each in shared}
        if limits:
            found.append(Server(resource, limits, 100 * len(limits) // len(shared)))
    return tuple(found)


def served_text(resources: Mapping[str, tuple[Offered, ...]]) -> str:
    """What the daemon and the agent must agree on: the servers and their limits, line by line."""
    return "".join(
        f"{server.resource} {server.thread_percent}% {uuid} {limit}{_MIB_SUFFIX}\n"
        for server in servers(resources)
        for uuid, limit in server.memory_mib.items()
    )


def limit_to_served(
    offers: Offers, configuration: Configuration, root: str, served: str, waits: str = ""
) -> Offers:
    """The offers, if a daemon serves the replicas of `sharing.mps` in them, with the same limits.

    Without cards that came after the daemon began, and without others that it has not given back.
    `root`, `served` and `waits` are as `mps_root`, `mps_served` and `mps_waits` of `NodeState`.
    """
    is_shared = configuration.sharing.kind is SharingKind.MPS
    wanted = set(served_text(offers.resources).splitlines()) if is_shared else set()
    lines, words = set(served.splitlines()), set(served.split())
    new = {line for line in wanted if line.split()[_UUID] not in words}
    is_same = root == configuration.mps_root or not wanted
    # A card that has gone since the daemon began is served, and not wanted any more.
    if offers.problem or (is_same and wanted - new <= lines and (wanted & lines or not wanted)):
        others = words.difference(*(line.split() for line in wanted))
        reasons = dict.fromkeys(others, "has not given it back")
        if ANY_CARD in words:
            devices = (each for offered in offers.resources.values() for each in offered)
            reasons = {each.card.uuid: _UNKNOWN for each in devices}
        reasons |= {line.split()[_UUID]: "does not serve it yet" for line in new}
        return _without(offers, reasons, root)
    is_serving = is_same and any(" " in line for line in lines)
    problem = f"the MPS daemon of {configuration.mps_root} {_ANOTHER if is_serving else _NOT_YET}"
    why = waits if is_same or not served else f"that of {root} has not given its cards back"
    return Offers(problem=f"{problem}: {why}" if why else problem, notes=offers.notes)


def _without(offers: Offers, reasons: Mapping[str, str], root: str) -> Offers:
    """Without the cards that wait for the daemon, by UUID and what it does."""
    devices = [each for offered in offers.resources.values() for each in offered]
    withheld = {each.card.uuid: each.card.index for each in devices if each.card.uuid in reasons}
    resources = {
        name: tuple(each for each in offered if each.card.uuid not in withheld)
        for name, offered in offers.resources.items()
    }
    text = f"waits for the MPS daemon of {root}, which"
    return replace(
        offers,
        resources={name: offered for name, offered in resources.items() if offered},
        waiting=(
            *offers.waiting,
            *(f"card {index} ({uuid}) {text} {reasons[uuid]}" for uuid, index in withheld.items()),
        ),
    )


def pipe_directory(root: str, resource: str) -> str:
    """Where clients of a resource find its server.

    >>> pipe_directory("/run/nvidia/mps", "nvidia.com/gpu")
    '/run/nvidia/mps/nvidia.com/gpu/pipe'
    """
    return f"{root.rstrip('/')}/{resource}/pipe"


def as_client(edits: ContainerEdits, resource: str, root: str) -> ContainerEdits:
    """The answer for a container, which becomes a client of its resource's server."""
    pipe = pipe_directory(_CONTAINER_ROOT, resource)
    mounts = (
        Mount(pipe, pipe_directory(root, resource), is_read_only=False),
        Mount("/dev/shm", f"{root.rstrip('/')}/shm", is_read_only=False),  # noqa: S108
    )
    return replace(
        edits, envs={**edits.envs, "CUDA_MPS_PIPE_DIRECTORY": pipe}, mounts=(*edits.mounts, *mounts)
    )
