"""A second, tiny scheme: whole cards under an invented name. It records what the kubelet chooses."""

from collections.abc import Collection, Mapping, Sequence

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, Paths
from gpu_device_plugin.domain.grants.grant import Grant, Share
from gpu_device_plugin.domain.grants.kubelet_chooses import KubeletChoosesDevices
from gpu_device_plugin.domain.grants.scheme_protocol import Layout
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.state import DeviceGroup, NodeState, Pool

WHOLE_CARD = "example.com/whole-card"


class WholeCards(KubeletChoosesDevices):
    """One unit a card; its id is the card's UUID."""

    resources: Collection[str] = frozenset({WHOLE_CARD})

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        groups = (DeviceGroup((c.uuid,), state.healthy[c.uuid], c.uuid) for c in state.cards)
        return (Pool(WHOLE_CARD, tuple(groups)),)

    def serves(self, resource: str, state: NodeState) -> bool:
        return resource == WHOLE_CARD and bool(state.cards)

    def asked_text(self, resource: str, amount: int, _state: NodeState) -> str:
        return f"{resource}: {amount} (cards)"

    def held_text(self, grant: Grant) -> str:
        return f"{len(grant.shares)} cards"

    def annotations(
        self, grants: Sequence[Grant], _state: NodeState, _assume_time_ns: int
    ) -> Mapping[str, str]:
        return {"example.com/cards": ",".join(c for g in grants for c in g.devices)}

    def takes_mig(self, _card: CardReport, _mode: NodeMode | None) -> bool:
        return False

    def feature_labels(
        self, _cards: Sequence[Card], _state: NodeState, _machine: Machine
    ) -> Mapping[str, str]:
        return {}

    def replicas(self, _state: NodeState) -> Mapping[str, int]:
        return {}

    def layout(self, _state: NodeState) -> Layout:
        return Layout()

    def prefer(self, call: Call, available: Collection[str], _state: NodeState) -> Sequence[str]:
        rest = sorted(frozenset(available) - call.must_include)
        return (*sorted(call.must_include), *rest)[: call.size]

    def share(self, _resource: str, unit: str, state: NodeState) -> Share:
        card = state.card(unit)
        return Share(unit, card.memory_mib << 20 if card else None, is_exclusive=True)

    def edits(self, call: Call, _state: NodeState, _paths: Paths) -> ContainerEdits:
        return ContainerEdits(envs={"EXAMPLE_CARDS": ",".join(sorted(call.must_include))})
