"""One agent's parts on a node of two cards, with an API server that has claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.held import fraction
from tools.harness.rig import put_library

from gpu_device_plugin.agent.node_edges import real_edges
from gpu_device_plugin.agent.publish.api_cluster import NoClaims, NoCluster
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.cards.card import Card, CardIndex, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.fractions.units import Resource, unit_ids
from gpu_device_plugin.domain.grants.caller import Specs
from gpu_device_plugin.domain.grants.claims import AllocatedDevice, Claim, ClaimRef, OfferedDevice
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.errors import ClusterError
from gpu_device_plugin.kubernetes.objects.events import EventNote
from gpu_device_plugin.kubernetes.objects.metadata_writer import Wanted
from gpu_device_plugin.settings.agent_settings import load_settings

CARDS = tuple(
    Card(f"GPU-{i}", CardNumber(i), CardIndex(i), i, "V100", MiB(16160)) for i in range(2)
)


@dataclass
class ClaimsOnly(NoClaims):
    """An API server that has claims, and takes what is offered for them."""

    claims: dict[str, Claim] = field(default_factory=dict)
    offers: list[Sequence[OfferedDevice]] = field(default_factory=list)
    is_away: bool = False
    readings: int = 0
    on_withdrawal: Callable[[], object] = lambda: None

    async def fetch(self, _namespace: str, name: str, /) -> Claim | None:
        return self.claims.get(name)

    async def every(self) -> Sequence[Claim]:
        self.readings += 1
        if self.is_away:
            raise ClusterError("away")
        return list(self.claims.values())

    def offer(self, devices: Sequence[OfferedDevice], _version: str, /) -> None:
        self.offers.append(devices)
        if not devices:
            self.on_withdrawal()

    def allocate(self, name: str, card: int, units: int = 2, percent: int = 30) -> ClaimRef:
        """What the scheduler writes into a claim."""
        ref = ClaimRef("default", name, f"uid-{name}")
        of = AllocatedDevice(
            "gpu-device-plugin",
            "n1",
            f"gpu-{card}",
            "slice",
            f"s-{name}",
            MiB(units * 1024),
            percent,
        )
        pod = PodRef("default", f"pod-{name}", f"pod-uid-{name}")
        owners = frozenset({pod.uid})
        self.claims[name] = Claim(ref, pod, (of,), f"slice-{units}-{percent}-c0", owners)
        return ref


class ClaimsCluster(NoCluster):
    """An API server that has nothing but claims, and keeps what is written to it.

    Attributes:
        known: Pods as the watch has them.
        on_pods: Annotations that are wanted on pods, by the pod's name.
        cards: The node's annotation of cards, each time that it was written.
        posted: Events, in order.
    """

    def __init__(self, claims: ClaimsOnly) -> None:
        self.resource_claims = claims
        self.known: Specs = {}
        self.on_pods: dict[str, Wanted] = {}
        self.cards: list[str] = []
        self.posted: list[EventNote] = []

    def specs(self) -> Specs:
        return self.known

    def post(self, note: EventNote, /) -> None:
        self.posted.append(note)

    def annotate_pod(self, ref: PodRef, annotations: Wanted, /) -> None:
        self.on_pods[ref.name] = annotations

    def describe_node(
        self,
        *,
        labels: Wanted | None = None,  # noqa: ARG002
        annotations: Wanted | None = None,
    ) -> None:
        if text := (annotations or {}).get("gpu-device-plugin/cards"):
            self.cards.append(text)


@dataclass
class Node:
    """One agent's parts on a node of two cards, and its API server."""

    directory: Path
    wiring: Wiring
    cluster: ClaimsOnly
    api: ClaimsCluster

    @property
    def files(self) -> list[str]:
        """Uids of the claims that a container runtime finds."""
        return sorted(p.stem.removeprefix("gpu-device-plugin-") for p in self.cdi.glob("*.json"))

    @property
    def cdi(self) -> Path:
        return self.directory / "cdi"

    def offered(self) -> dict[str, dict[str, str]]:
        """Device -> taints, as last offered."""
        return {each.name: dict(each.taints) for each in self.cluster.offers[-1]}

    async def hold_units(self, name: str, card: int) -> None:
        """A container holds two units of a card through the device plugin."""
        units = {str(Resource.MEM): unit_ids(Resource.MEM, card, 2)}
        pod = PodRef("default", name, f"uid-{name}")
        grant = fraction(name, pod, "main", units=units, cards=(f"GPU-{card}",), core_percent=30)
        await self.wiring.ledger_store.hold(grant)


def node_at(
    directory: Path, cluster: ClaimsOnly, serving: AllocationApi = AllocationApi.DRA, **chosen: str
) -> Node:
    """The parts of an agent, started or started again on what is in `directory`."""
    names = ("state_dir", "run_dir", "library_dir", "kubelet_dir")
    paths = {name: str(directory / name[:1]) for name in names}
    for path in paths.values():
        Path(path).mkdir(exist_ok=True)
    values = {"node_name": "n1", "cdi_dir": str(directory / "cdi"), **paths, **chosen}
    settings = load_settings(values, {}, None)
    api = ClaimsCluster(cluster)
    wiring = Wiring(settings, replace(real_edges(settings), cluster=lambda *_: api))
    put_library(directory / "l" / "0.0.1")
    wiring.node_store.update(
        mode=NodeMode.CORE_MEM, cards=CARDS, library_version="0.0.1", allocation_api=serving
    )
    wiring.mode.allocation_api_choice.kept = serving
    wiring.holders.has_passed = True  # no kubelet is there that a pass could ask
    return Node(directory, wiring, cluster, api)
