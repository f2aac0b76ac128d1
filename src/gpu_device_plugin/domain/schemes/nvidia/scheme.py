"""Whole cards, replicas and MIG instances: the kubelet chooses, and their holders are recorded."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.caller import Call
from gpu_device_plugin.domain.container_edits import ContainerEdits, Paths
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.hardware import UNKNOWN
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.memory_unit import MemoryUnit
from gpu_device_plugin.domain.modes import NodeMode, is_whole
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import ContainerKind, HeldUnits, PodRequest
from gpu_device_plugin.domain.pools import DeviceGroup, Pool, UnitCount
from gpu_device_plugin.domain.schemes.nvidia.answers import answer
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    GPU,
    Configuration,
    MigStrategy,
    SharingKind,
)
from gpu_device_plugin.domain.schemes.nvidia.names import TOPOLOGY_GPU, possible_names
from gpu_device_plugin.domain.schemes.nvidia.offers import Offered, Offers, device_of, offers
from gpu_device_plugin.domain.schemes.nvidia.preferred import preferred
from gpu_device_plugin.domain.schemes.protocol import GrantedIn, Layout
from gpu_device_plugin.domain.shares import Holder, Share
from gpu_device_plugin.errors import DoesNotFitError, RequestError

DEVICES_ANNOTATION = "gpu-device-plugin/devices"
"""On a pod: container index -> UUIDs of its cards and instances."""


class NvidiaScheme:
    """NVIDIA's resources, as its configuration has them.

    Args:
        configuration: What is in force; asked at each call.
    """

    def __init__(self, configuration: Callable[[], Configuration]) -> None:
        self._configuration = configuration
        self.resources: Collection[str] = possible_names(configuration())

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """Every device, a card that is out as well."""
        healthy = state.healthy
        return tuple(
            Pool(
                resource,
                tuple(DeviceGroup((each.id,), healthy[each.card.uuid]) for each in devices),
            )
            for resource, devices in self._offers(state).resources.items()
            if resource in self.resources
        )

    def serves(self, resource: str, state: NodeState) -> bool:
        """What is offered; while nothing can be, the plain name, so that the node is not ready."""
        if not is_whole(state.mode) and not state.cards:
            return False
        found = self._offers(state)
        if found.resources:
            return resource in found.resources
        is_wanted = self._configuration().fails_on_init_error or not state.cards
        return is_whole(state.mode) and is_wanted and resource == GPU

    def layout(self, state: NodeState) -> Layout:
        """NVIDIA's words for a node that does not fit its configuration."""
        if not state.cards:
            return Layout()
        found = self._offers(state)
        return Layout(
            found.problem if self._configuration().fails_on_init_error else "", found.notes
        )

    def check_unit(self, mode: NodeMode, unit: MemoryUnit) -> None:
        """It has no unit of memory."""

    def check_size(self, state: NodeState) -> None:
        """A thousand replicas are 60 KiB."""

    def card_numbers(self, _ids: Iterable[str]) -> frozenset[int]:
        """Ids have UUIDs, not card numbers."""
        return frozenset()

    def counts(self, state: NodeState, ledger: Ledger) -> Mapping[str, Sequence[UnitCount]]:
        """Devices of each resource on each card."""
        held = ledger.ids()
        found: dict[str, list[UnitCount]] = {card.uuid: [] for card in state.cards}
        for resource, devices in self._offers(state).resources.items():
            for uuid, counts in found.items():
                mine = [each.id in held for each in devices if each.card.uuid == uuid]
                if mine:
                    counts.append(UnitCount(resource, mine.count(False), mine.count(True)))
        return found

    def annotations(
        self, grants: Sequence[Grant], _state: NodeState, _assume_time_ns: int
    ) -> Mapping[str, str]:
        """The devices of each app container, once every container's place is known."""
        apps = [grant for grant in grants if grant.kind is not ContainerKind.INIT]
        if not apps or not all(grant.is_checked for grant in apps):
            return {}
        by_index = {str(grant.index): sorted(grant.devices) for grant in apps}
        return {DEVICES_ANNOTATION: json.dumps(by_index, sort_keys=True, separators=(",", ":"))}

    def asked_text(self, resource: str, amount: int, _state: NodeState) -> str:
        """`nvidia.com/gpu: 2`."""
        return f"{resource}: {amount}"

    def prefer(self, call: Call, available: Collection[str], state: NodeState) -> Sequence[str]:
        """By links, or over the cards."""
        policy = self._configuration().allocation_policy
        return preferred(
            self._devices(call.resource, state), available, call.must_include, call.size, policy
        )

    def answer(self, call: Call, state: NodeState, paths: Paths, answer_id: str) -> ContainerEdits:
        """By the list strategies."""
        by_id = {each.id: each for each in self._devices(call.resource, state)}
        unknown = sorted(call.must_include - by_id.keys())
        if unknown:
            raise RequestError(f"unknown device: {', '.join(unknown)}", reason="UnknownDevice")
        devices = [by_id[each] for each in sorted(call.must_include)]
        self._check_amount(call, devices)
        for device in devices:
            why = state.unhealthy.get(device.card.uuid)
            if why:
                raise DoesNotFitError(
                    f"card {device.card.index} ({device.card.uuid}) is out of service ({why}); "
                    f"create the pod again",
                    reason="NoHealthyCard",
                )
        return answer(devices, self._configuration(), paths, answer_id)

    def sized(self, grant: Grant, state: NodeState) -> Grant:
        """A whole card's or instance's memory; replicas of one device are one share of it."""
        there = {
            device_of(each.id): each
            for devices in self._offers(state).resources.values()
            for each in devices
        }
        uuids = dict.fromkeys(device_of(unit) for unit in grant.all_ids)
        shares = tuple(_share(uuid, there.get(uuid)) for uuid in sorted(uuids))
        return replace(grant, shares=shares)

    def checked(self, grant: Grant, spec: PodRequest, _state: NodeState) -> Grant:
        """Only the container's place in its pod is missing."""
        container = spec.container(grant.container)
        if container is None:
            return grant
        holder = replace(grant.holder, kind=container.kind, index=container.index)
        return replace(grant, holder=holder, is_checked=True)

    def check_shape(self, grant: Grant, state: NodeState) -> None:
        """Every number of devices is one."""

    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        """One grant for each container; this is how all of this scheme's are made."""
        by_uid = {spec.ref.uid: spec for spec in specs if spec.ref.uid}
        found: dict[tuple[str, str], dict[str, HeldUnits]] = {}
        for units in held:
            if units.pod.uid and units.ids:
                place = (units.pod.uid, units.container)
                found.setdefault(place, {})[units.resource] = units
        return tuple(
            self._adopted(place, parts, by_uid.get(place[0]), state)
            for place, parts in found.items()
        )

    def own_record(self, _grant: Grant) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def restored(self, grant: Grant, _record: Mapping[str, object]) -> Grant:
        """As it is."""
        return grant

    def granted_in(self, _grant: Grant) -> GrantedIn | None:
        """It has neither."""
        return None

    def held_text(self, grant: Grant) -> str:
        """`nvidia.com/gpu: 2`."""
        return ", ".join(f"{name}: {len(ids)}" for name, ids in sorted(grant.units.items()))

    def _adopted(
        self,
        place: tuple[str, str],
        parts: Mapping[str, HeldUnits],
        spec: PodRequest | None,
        state: NodeState,
    ) -> Grant:
        uid, container = place
        pod = next(iter(parts.values())).pod
        grant = Grant(
            slice_id=hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()[:16],
            holder=Holder(spec.ref if spec else pod, container),
            units={resource: tuple(sorted(units.ids)) for resource, units in parts.items()},
            is_isolated=False,
            is_checked=False,
        )
        return self.checked(grant, spec, state) if spec else grant

    def _check_amount(self, call: Call, devices: Sequence[Offered]) -> None:
        """Shared devices one at a time, where that is asked for (R-702)."""
        is_shared = any(device.replicas > 1 for device in devices)
        if is_shared and len(devices) > 1 and self._configuration().sharing.is_one_at_most:
            raise RequestError(
                f'invalid allocation request for "{call.resource}": invalid request: maximum '
                f"request size for shared resources is 1; found {len(devices)}",
                reason="OneAtMost",
            )

    def _devices(self, resource: str, state: NodeState) -> tuple[Offered, ...]:
        return self._offers(state).resources.get(resource, ())

    def _offers(self, state: NodeState) -> Offers:
        configuration, cards = self._configuration(), state.cards
        if configuration.mig_strategy is not MigStrategy.NONE:
            # A card of the last run, of which NVML has not said yet how it is cut.
            cards = tuple(card for card in cards if card.hardware != UNKNOWN)
        if not cards or state.mode in {None, NodeMode.DISABLED, NodeMode.MPS}:
            return Offers()
        if state.mode is NodeMode.TOPOLOGY:
            whole = offers(cards, Configuration())
            return replace(whole, resources={TOPOLOGY_GPU: whole.resources.get(GPU, ())})
        if configuration.sharing.kind is SharingKind.MPS:
            return Offers(problem="sharing.mps is not served yet: no MPS daemon is managed")
        if state.mode is NodeMode.MIG:
            return _cut_only(cards, configuration)
        is_beside = not is_whole(state.mode)
        is_left_out = is_beside and configuration.mig_strategy is not MigStrategy.MIXED
        return Offers() if is_left_out else offers(cards, configuration)


def _cut_only(cards: Sequence[Card], configuration: Configuration) -> Offers:
    """Mode mig: strategy mixed unless single is set, and at least one card in MIG mode."""
    if not any(card.hardware.is_mig for card in cards):
        return Offers(problem="no card of this node is in MIG mode")
    if configuration.mig_strategy is MigStrategy.NONE:
        configuration = replace(configuration, mig_strategy=MigStrategy.MIXED)
    return offers(cards, configuration)


def _share(uuid: str, device: Offered | None) -> Share:
    if device is None:
        return Share(uuid)
    memory_mib = device.card.memory_mib if device.instance is None else device.instance.memory_mib
    return Share(uuid, memory_mib << 20, is_exclusive=device.replicas == 1)
