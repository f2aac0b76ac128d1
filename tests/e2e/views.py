"""Who holds what, as the kubelet says it and as the agent says it, and that both agree."""

from collections.abc import Mapping
from pathlib import Path

import grpc
from tools.harness.cluster.agent import Agent
from tools.harness.cluster.node import Node

from gpu_device_plugin.domain.fractions.units import Resource, parse_unit_id
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.kubelet._proto import podresources_pb2

Holder = tuple[str, str]
"""A pod's name and a container's."""

Held = Mapping[str, frozenset[str]]
"""Unit ids by resource."""


def held(node: Node) -> dict[Holder, Held]:
    """What a node's kubelet says that containers hold of our resources.

    Only to be asked while no pod is being admitted: asked in the middle of an Allocate it can
    make the kubelet give a unit away twice (kubernetes #137534).
    """
    found: dict[Holder, Held] = {}
    for pod in _listed(node.kubelet_directory / "pod-resources" / "kubelet.sock"):
        for container in pod.containers:
            units: dict[str, frozenset[str]] = {}
            for device in container.devices:
                before = units.get(device.resource_name, frozenset())
                units[device.resource_name] = before | frozenset(device.device_ids)
            if units:
                found[(pod.name, container.name)] = units
    return found


def granted(agent: Agent) -> dict[Holder, Grant]:
    """What the agent says that containers hold."""
    return {(grant.pod.name, grant.container): grant for grant in agent.grants()}


def check_agreement(agent: Agent) -> dict[Holder, Held]:
    """Assert that both say the same, that no unit is held twice, and each holder has one card."""
    from_kubelet, from_agent = held(agent.node), granted(agent)
    for holder, units in from_kubelet.items():
        grant = from_agent[holder]
        assert units[str(Resource.MEM)] == set(grant.ids(Resource.MEM)), holder
        assert units.get(str(Resource.CORE), frozenset()) == set(grant.ids(Resource.CORE)), holder
        assert len(cards_of(units)) == 1, f"{holder} holds units of several cards: {units}"
    every_id = [unit for units in from_kubelet.values() for ids in units.values() for unit in ids]
    assert len(every_id) == len(set(every_id)), "a unit is held twice"
    return from_kubelet


def cards_of(units: Held) -> set[int]:
    """Numbers of the cards that these units belong to."""
    parsed = [parse_unit_id(unit) for ids in units.values() for unit in ids]
    assert all(parsed), f"not our ids: {units}"
    return {unit.card for unit in parsed if unit is not None}


def _listed(socket: Path) -> list[podresources_pb2.PodResources]:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=podresources_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=podresources_pb2.ListPodResourcesResponse.FromString,
        )
        answer = ask(podresources_pb2.ListPodResourcesRequest(), timeout=60, wait_for_ready=True)
    return list(answer.pod_resources)
