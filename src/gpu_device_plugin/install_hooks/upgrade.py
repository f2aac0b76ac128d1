"""The chart's pre-upgrade hook: refuse what would change slices while pods hold them.

Each agent would refuse it for its own node, and keep the old unit or mode until no slice is held
there. Refusing before the upgrade avoids a cluster with two units.
"""

from collections.abc import Sequence

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.fractions.units import Resource
from gpu_device_plugin.domain.grants.holdings_annotation import HOLDINGS_ANNOTATION, parse_holdings
from gpu_device_plugin.domain.grants.node_annotations import (
    CARDS_ANNOTATION,
    counted_unit_mib,
    holds_by_claims,
    served_mode,
)
from gpu_device_plugin.domain.node.modes import (
    MODE_LABEL,
    SETTINGS_LABEL,
    NodeMode,
    NodeStanding,
    holders_by_node,
    upgrade_obstacles,
)
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.kubernetes.client.wire import Node
from gpu_device_plugin.kubernetes.objects.fleet import Fleet
from gpu_device_plugin.settings.agent_settings import mode_in


async def check_release(fleet: Fleet, oldest: str) -> None:
    """ConfigError if the installed release is older than `oldest`; an unknown one is newer."""
    installed = await fleet.release()
    if installed and _numbers(installed) < _numbers(oldest):
        raise ConfigError(
            f"release {installed} of {fleet} is too old for this upgrade, which starts from {oldest} "
            f"or later: upgrade to {oldest} first, or uninstall it and install this one"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The release's numbers; what follows them, as in `1.2.3-rc.1`, does not count.

    >>> _numbers("0.10.1-rc.1") > _numbers("0.9")
    True
    """
    parts = version.removeprefix("v").partition("-")[0].partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isascii() and part.isdecimal())


async def check_upgrade(
    fleet: Fleet, mode: NodeMode, unit: MemoryUnit, *, has_claims: bool = True
) -> int:
    """The number of nodes of this installation that publish cards, if none prevents the upgrade.

    Another release, on other nodes, may count in another unit. `has_claims`: the new agents can
    prepare claims and give them back (`dra.enabled`).

    ConfigError: Pods hold slices that the new settings would change; the text lists them.
    """
    installation = await fleet.installation()
    agents = await fleet.agents(installation) if installation else {}
    before = mode_in(await fleet.settings_text())
    every = await fleet.nodes()
    told = {node.metadata.name: node.annotations.get(HOLDINGS_ANNOTATION, "") for node in every}
    pods = [(node, pod) async for node, pod in fleet.requests() if _holds(pod, told.get(node, ""))]
    if not has_claims:
        _check_no_claims([node for node in every if node.metadata.name in agents])
    holders = holders_by_node([(node, pod.ref) for node, pod in pods])
    nodes = [
        _standing(node, holders.get(node.metadata.name, ()))
        for node in every
        # With settings of its own a node keeps its unit and mode while pods hold slices there.
        if node.metadata.name in agents and SETTINGS_LABEL not in node.labels
    ]
    is_other_mode = before is not None and before is not mode
    obstacles = upgrade_obstacles(nodes, unit, mode, is_other_mode=is_other_mode)
    if obstacles:
        listed = "".join(f"\n  {line}" for line in obstacles)
        raise ConfigError(
            f"pods hold slices that this upgrade would change (unit {unit.value}, mode {mode}):"
            f"{listed}\nDelete or drain these pods first, or keep the old values"
        )
    return sum(bool(node.mode) for node in nodes)


def _check_no_claims(nodes: Sequence[Node]) -> None:
    """Judged by what the agents say: the names of claims in a pod are anybody's to write."""
    if held := sorted(node.metadata.name for node in nodes if holds_by_claims(_cards(node))):
        listed = "".join(f"\n  node {name}" for name in held)
        raise ConfigError(
            "pods hold cards by claims, which agents without dra.enabled cannot give back; these pods "
            f"would never end:{listed}\n`kubectl get resourceclaims -A` lists their claims. Delete the "
            "pods first, or keep dra.enabled"
        )


def _cards(node: Node) -> str:
    return node.annotations.get(CARDS_ANNOTATION, "")


def _holds(pod: PodRequest, told: str) -> bool:
    """Whether it has a slice; one that cannot be read, by what its node's agent says."""
    if pod.is_finished:
        return False
    if not pod.containers:
        return pod.ref.uid in parse_holdings(told, ())
    return any(container.amount(Resource.MEM) for container in pod.containers)


def _standing(node: Node, holders: tuple[PodRef, ...]) -> NodeStanding:
    cards = _cards(node)
    return NodeStanding(
        name=node.metadata.name,
        mode=served_mode(cards),
        unit_mib=counted_unit_mib(cards),
        has_label=MODE_LABEL in node.labels,
        holders=holders,
        has_claims=holds_by_claims(cards),
    )
