"""What `kubectl gpu map -o json` prints."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_device_plugin.apps.overview.node_cards import CardView, ClusterCards


def json_cards(found: "ClusterCards") -> dict[str, object]:
    """Every node with its cards and who holds them, as plain values."""
    nodes = [
        {
            "name": node.name,
            "mode": node.mode,
            "unit_mib": node.unit_mib,
            "cards": [_json_card(card) for card in node.cards],
            "waiting": [
                {"namespace": pod.namespace, "name": pod.name, "units": units}
                for pod, units in node.waiting
            ],
            "instances": [
                {"uuid": uuid, "namespace": pod.namespace, "name": pod.name}
                for uuid, pod in node.instances
            ],
        }
        for node in found.nodes
    ]
    unreadable = [{"name": name, "error": error} for name, error in found.unreadable]
    return {"nodes": nodes, "unreadable": unreadable}


def _json_card(card: "CardView") -> dict[str, object]:
    plain = dataclasses.asdict(card)
    plain["holders"] = [
        {
            "namespace": holder.pod.namespace,
            "name": holder.pod.name,
            "units": holder.units,
            "percent": holder.percent,
            "is_granted": holder.is_granted,
        }
        for holder in card.holders
    ]
    plain["pods"] = [{"namespace": pod.namespace, "name": pod.name} for pod in card.pods]
    return plain
