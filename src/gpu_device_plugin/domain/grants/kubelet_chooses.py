"""Schemes that record: the kubelet's choice of devices stands.

Whole devices and replicas of them need no decision of the agent, so a call need not be known to be a
certain pod's, and nothing is written inside it. Who holds what is read from List and checkpoint
by reconcile, and lies in the same ledger as the grants of schemes that decide.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, Paths
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.scheme_protocol import Scheme
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import ContainerKind, HeldUnits, PodRef, PodRequest
from gpu_device_plugin.domain.node.state import DeviceGroup, NodeState
from gpu_device_plugin.errors import DoesNotFitError, RequestError


@dataclass(frozen=True, slots=True)
class UngrantedUnits:
    """A container that holds units."""

    holder: Holder
    spec: PodRequest | None
    parts: Mapping[str, HeldUnits]

    @property
    def is_known(self) -> bool:
        """Whether the pod spec says what this container asks for."""
        return self.spec is not None and self.spec.container(self.holder.container) is not None

    @property
    def ids(self) -> frozenset[str]:
        return frozenset().union(*(part.ids for part in self.parts.values()))

    def derived_id(self, kind: str) -> str:
        """An id for its grant that is the same each time."""
        name = f"{self.holder.pod.uid or self.holder.pod}/{self.holder.container}"
        return f"{kind}-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def ungranted_units(
    held: Iterable[HeldUnits], specs: Iterable[PodRequest]
) -> tuple[UngrantedUnits, ...]:
    """One entry for each container that holds units.

    `held` is from checkpoint and List, in any order; both may have the same container. The one has
    uids, the other names: equal units in containers of one name are of the same pod.
    """
    entries = [entry for entry in held if entry.ids]
    by_uid = {spec.ref.uid: spec for spec in specs if spec.ref.uid}
    by_name = {spec.ref.key: spec for spec in by_uid.values()}
    names = {_holding(entry): entry.pod for entry in entries if entry.pod.name}
    uids = {_holding(entry): entry.pod.uid for entry in entries if entry.pod.uid}
    parts: dict[tuple[PodRef, str], dict[str, HeldUnits]] = {}
    for entry in entries:
        uid = entry.pod.uid or uids.get(_holding(entry), "")
        pod = entry.pod if entry.pod.name else names.get(_holding(entry), entry.pod)
        # A static pod's uid in the checkpoint can differ from that of its mirror in the API.
        spec = by_uid.get(uid) or by_name.get(pod.key)
        ref = spec.ref if spec else PodRef(pod.namespace, pod.name, uid)
        of_container = parts.setdefault((ref, entry.container), {})
        if entry.resource not in of_container or entry.slice_id:
            of_container[entry.resource] = entry
    return tuple(
        _ungranted(ref, container, by_uid.get(ref.uid), by_resource)
        for (ref, container), by_resource in parts.items()
    )


def _ungranted(
    ref: PodRef, container: str, spec: PodRequest | None, parts: Mapping[str, HeldUnits]
) -> UngrantedUnits:
    asked = spec.container(container) if spec else None
    kind, index = (asked.kind, asked.index) if asked else (ContainerKind.APP, 0)
    return UngrantedUnits(Holder(ref, container, kind, index), spec, parts)


def _holding(entry: HeldUnits) -> tuple[str, str, frozenset[str]]:
    return entry.container, entry.resource, entry.ids


class KubeletChoosesDevices(Scheme):
    """A scheme that takes the units that the kubelet gives."""

    @abstractmethod
    def takes_mig(self, card: CardReport, mode: NodeMode | None) -> bool:
        """Whether it offers the instances of this card, which is in MIG mode, now."""

    @abstractmethod
    def feature_labels(
        self, cards: Sequence[Card], state: NodeState, machine: Machine
    ) -> Mapping[str, str]:
        """What it says of every card that NVML shows, as labels of the node."""

    @abstractmethod
    def replicas(self, state: NodeState) -> Mapping[str, int]:
        """UUID of a card or instance -> how many replicas of it are offered, where there are several."""

    @abstractmethod
    def prefer(self, call: Call, available: Collection[str], state: NodeState) -> Sequence[str]:
        """The units that are best given together: exactly `call.size`, those to include first."""

    @abstractmethod
    def share(self, resource: str, unit: str, state: NodeState) -> Share:
        """What holding this unit is of a device; its memory is None while the device is away."""

    @abstractmethod
    def edits(self, call: Call, state: NodeState, paths: Paths) -> ContainerEdits:
        """What a container receives that holds the call's units."""

    def groups(self, resource: str, state: NodeState) -> Mapping[str, DeviceGroup]:
        """The units of a resource that are offered now, each with its group."""
        return {
            unit: group
            for pool in self.pools(state)
            if pool.resource == resource
            for group in pool.groups
            for unit in group.ids
        }

    def check_call(self, call: Call, state: NodeState) -> None:
        """Check that these units may be given to a container, whichever it is.

        Raises:
            RequestError: No container gets this, or a unit is not offered now.
            DoesNotFitError: A device is unhealthy.
        """
        groups = self.groups(call.resource, state)
        unknown = sorted(call.must_include - groups.keys())
        if unknown:
            raise RequestError(
                f'invalid allocation request for "{call.resource}": invalid request: '
                f"unknown device: {', '.join(unknown)}",
                reason="UnknownDevice",
            )
        out = sorted(text for text in call.must_include if not groups[text].is_healthy)
        if out:
            raise DoesNotFitError(
                f"{', '.join(out)} became unhealthy after the kubelet had chosen it; create the "
                f"pod again",
                reason="NoHealthyCard",
            )

    def held_otherwise(
        self, held: Iterable[CheckpointEntry], state: NodeState
    ) -> Mapping[str, str]:
        """Units of cards of which these hold something that is not offered now -> uid of the pod.

        The kubelet cannot object to giving them: it counts units by resource and id, and either differs
        from what it has given of the card already.
        """
        groups = [(pool.resource, group) for pool in self.pools(state) for group in pool.groups]
        offered = {(resource, unit) for resource, group in groups for unit in group.ids}
        parents = {part.uuid: c.uuid for c in state.cards for part in c.hardware.instances}
        pods: dict[str, str] = {}
        for entry in held:
            for unit in entry.ids:
                if (entry.resource, unit) not in offered:
                    device = self.share(entry.resource, unit, state).device
                    pods[parents.get(device, device)] = entry.pod_uid
        found = (group for _, group in groups if group.card in pods)
        return {unit: pods[group.card] for group in found for unit in group.ids}

    def devices(self, call: Call, state: NodeState) -> frozenset[str]:
        return frozenset(self.share(call.resource, u, state).device for u in call.must_include)

    def with_size(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with its shares as the devices are now."""
        return replace(grant, shares=self._shares(grant.units, state))

    def check_spec(self, grant: Grant, spec: PodRequest, _state: NodeState) -> Grant:
        """The grant with what the pod spec says of its holder; there is no rule about it."""
        container = spec.container(grant.container)
        if container is None:
            return grant
        pod = replace(spec.ref, uid=grant.pod.uid or spec.ref.uid)
        holder = Holder(pod, container.name, container.kind, container.index)
        return replace(grant, holder=holder, is_checked=True)

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        return tuple(self._grant(each, state) for each in ungranted_units(held, specs))

    def _grant(self, of: UngrantedUnits, state: NodeState) -> Grant:
        units = {resource: tuple(sorted(part.ids)) for resource, part in of.parts.items()}
        return Grant(
            slice_id=of.derived_id("recorded"),
            holder=of.holder,
            units=units,
            shares=self._shares(units, state),
            is_isolated=False,
            is_checked=of.is_known,
        )

    def _shares(self, units: Mapping[str, Sequence[str]], state: NodeState) -> tuple[Share, ...]:
        """A device of which several units are held counts once."""
        shares = (self.share(name, text, state) for name, ids in units.items() for text in ids)
        by_device = {share.device: share for share in shares}
        return tuple(
            replace(s, memory_mib=MiB((s.memory_bytes or 0) // 2**20)) for s in by_device.values()
        )
