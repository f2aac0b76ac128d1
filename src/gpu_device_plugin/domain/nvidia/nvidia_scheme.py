"""Whole cards, replicas and MIG instances, under the names of NVIDIA's own device plugin."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.grants.caller import Call
from gpu_device_plugin.domain.grants.container_edits import (
    VISIBLE_DEVICES,
    ContainerEdits,
    DeviceNode,
    ListStrategy,
    MigPart,
    Paths,
)
from gpu_device_plugin.domain.grants.grant import Grant, Holder, Share
from gpu_device_plugin.domain.grants.holdings_annotation import (
    DEVICES_ANNOTATION,
    TOPOLOGY_GPU,
    devices_annotation,
)
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.ungranted_units import UngrantedUnits, ungranted_units
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.node.modes import NodeMode, is_whole
from gpu_device_plugin.domain.node.pods import ContainerKind, HeldUnits, PodRequest
from gpu_device_plugin.domain.node.state import DeviceGroup, Layout, NodeState, Pool
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    PREFIX,
    SHARED_SUFFIX,
    Configuration,
    MigStrategy,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.effective_configuration import (
    idle_sharing,
    labels_configuration,
    need_channels,
    offers_in_mode,
    with_held,
    with_present_channels,
)
from gpu_device_plugin.domain.nvidia.feature_labels import MPS_CAPABLE, feature_labels
from gpu_device_plugin.domain.nvidia.mig_devices import MODELS, cut_obstacle, resource_of
from gpu_device_plugin.domain.nvidia.mps import as_client
from gpu_device_plugin.domain.nvidia.offers import Offered, Offers, choose_preferred, device_of
from gpu_device_plugin.errors import DoesNotFitError, RequestError


class NvidiaScheme:
    """NVIDIA's resources, as its configuration has them: the kubelet's choice of devices stands.

    Whole devices and replicas of them need no decision of the agent, so a call need not be known to be a
    certain pod's, and nothing is written inside it. Who holds what is read from List and checkpoint
    by reconcile, and lies in the same ledger as the grants of fractions.

    The configuration in force, and what pods hold of the node's devices, are asked at each call.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        held: Callable[[], Iterable[Grant]] = lambda: (),
    ) -> None:
        self._configuration = configuration
        self._held = held
        self._seen: Configuration | None = None
        self._names: set[str] = set()
        self._latest: tuple[tuple[object, ...], Offers] = (), Offers()

    @property
    def resources(self) -> Collection[str]:
        """Every name under every configuration since the start, for whatever cards."""
        configuration = self._configuration()
        if configuration is not self._seen:
            self._seen = configuration
            self._names |= possible_names(configuration)
        return self._names

    def recalls(self, resource: str) -> bool:
        """Its own under a configuration of an earlier run too: only we write grants."""
        if resource.startswith(PREFIX):
            self._names.add(resource)
        return resource in self.resources

    def takes_mig(self, card: CardReport, mode: NodeMode | None) -> bool:
        """Whether mode and strategy offer the card's MIG instances; a card changes only when no pod holds any of it."""
        held = {uuid for grant in self._held() for uuid in grant.devices}
        if card.uuid in held:
            return False
        strategy = self._configuration().mig_strategy
        is_offered = mode is NodeMode.MIG or strategy is not MigStrategy.NONE
        return is_offered or any(each.uuid in held for each in card.hardware.instances)

    def feature_labels(
        self, cards: Sequence[Card], state: NodeState, machine: Machine
    ) -> Mapping[str, str]:
        """As NVIDIA's GPU feature discovery has them, but for the label that the MPS daemon is chosen by.

        Only mode default shares by MPS; and a daemon that has not given its cards back keeps the label.
        """
        configuration = labels_configuration(self._configuration(), cards, state.mode)
        labels = feature_labels(cards, configuration, machine)
        if state.mode is not NodeMode.DEFAULT and MPS_CAPABLE in labels:
            labels[MPS_CAPABLE] = "false"
        elif state.mps_served and MPS_CAPABLE in labels:
            labels[MPS_CAPABLE] = "true"
        return labels

    def replicas(self, state: NodeState) -> Mapping[str, int]:
        """UUID of a card or instance -> how many replicas of it are offered, where there are several."""
        offered = (d for devices in self._offers(state).resources.values() for d in devices)
        return {device.uuid: device.replicas for device in offered if device.replicas > 1}

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """Every device, a card that is out as well."""
        healthy = state.healthy

        def group(device: Offered) -> DeviceGroup:
            card, is_healthy = device.card, healthy[device.uuid]
            return DeviceGroup((device.id,), is_healthy, card.uuid, card.hardware.numa_node)

        offered = self._offers(state).resources
        return tuple(Pool(name, tuple(map(group, devices))) for name, devices in offered.items())

    def serves(self, resource: str, state: NodeState) -> bool:
        """Whether it is offered; while nothing can be, the plain name counts, so that the node is not ready."""
        if not is_whole(state.mode) and not state.cards:
            return False
        offered = self._offers(state)
        if offered.resources:
            return resource in offered.resources
        is_wanted = self._configuration().fails_on_init_error or not state.cards
        return is_whole(state.mode) and is_wanted and resource == GPU

    def layout(self, state: NodeState) -> Layout:
        """NVIDIA's words for a node that does not fit its configuration."""
        configuration = self._configuration()
        unshared = idle_sharing(configuration, state)
        if not state.cards:
            return Layout(unshared=unshared)
        offered = self._offers(state)
        if configuration.fails_on_init_error or not offered.problem:
            return Layout(offered.problem, offered.notes, offered.waiting, unshared)
        notes = (*offered.notes, f"nothing is offered: {offered.problem}")
        return Layout("", notes, offered.waiting, unshared)

    def annotations(
        self, grants: Sequence[Grant], _state: NodeState, _assume_time_ns: int
    ) -> Mapping[str, str]:
        """The devices of each app container, once every container's place is known."""
        apps = [grant for grant in grants if grant.holder.kind is not ContainerKind.INIT]
        if not apps or not all(grant.is_checked for grant in apps):
            return {}
        return {DEVICES_ANNOTATION: devices_annotation({g.holder.index: g.devices for g in apps})}

    def asked_text(self, resource: str, amount: int, _state: NodeState) -> str:
        """`nvidia.com/gpu: 2`."""
        return f"{resource}: {amount}"

    def prefer(self, call: Call, available: Collection[str], state: NodeState) -> Sequence[str]:
        """Prefers cards by their links, or spreads over the cards."""
        policy = self._configuration().allocation_policy
        return choose_preferred(
            self._devices(call.resource, state), available, call.must_include, call.size, policy
        )

    def held_text(self, grant: Grant) -> str:
        """`nvidia.com/gpu: 2`."""
        return ", ".join(f"{name}: {len(ids)}" for name, ids in sorted(grant.units.items()))

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
            RequestError: A unit is not offered now, or several shared ones are asked where one is the most (R-702).
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
        unhealthy = sorted(unit for unit in call.must_include if not groups[unit].is_healthy)
        if unhealthy:
            raise DoesNotFitError(
                f"{', '.join(unhealthy)} became unhealthy after the kubelet had chosen it; create the "
                f"pod again",
                reason="NoHealthyCard",
            )
        devices = self._devices_of_call(call, state)
        is_shared = any(device.replicas > 1 for device in devices)
        if is_shared and len(devices) > 1 and self._configuration().sharing.is_one_at_most:
            raise RequestError(
                f'invalid allocation request for "{call.resource}": invalid request: maximum '
                f"request size for shared resources is 1; found {len(devices)}",
                reason="OneAtMost",
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
        affected = (group for _, group in groups if group.card in pods)
        return {unit: pods[group.card] for group in affected for unit in group.ids}

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

    def share(self, resource: str, unit: str, state: NodeState) -> Share:
        """A whole card's or instance's memory; replicas of one device are one share of it.

        Nothing is known of a device that is not offered now, so no other scheme gets any of it.
        """
        uuid = device_of(unit)
        offered = self._devices(resource, state)
        device = next((each for each in offered if each.uuid == uuid), None)
        if device is None:
            return Share(uuid, is_exclusive=True)
        part = device.card if device.instance is None else device.instance
        return Share(uuid, part.memory_mib << 20, is_exclusive=device.replicas == 1)

    def edits(self, call: Call, state: NodeState, paths: Paths) -> ContainerEdits:
        """What a container receives that holds the call's units."""
        devices = self._devices_of_call(call, state)
        answer_id = hashlib.sha256(",".join(sorted(call.must_include)).encode()).hexdigest()[:16]
        configuration = with_present_channels(self._configuration(), state.imex_channels)
        edits = answer(devices, configuration, paths, answer_id)
        is_client = configuration.sharing.kind is SharingKind.MPS
        if is_client and any(device.replicas > 1 for device in devices):
            return as_client(edits, call.resource, configuration.mps_root)
        return edits

    def _grant(self, ungranted: UngrantedUnits, state: NodeState) -> Grant:
        units = {resource: tuple(sorted(held.ids)) for resource, held in ungranted.parts.items()}
        return Grant(
            slice_id=ungranted.derived_id("recorded"),
            holder=ungranted.holder,
            units=units,
            shares=self._shares(units, state),
            is_isolated=False,
            is_checked=ungranted.is_known,
        )

    def _shares(self, units: Mapping[str, Sequence[str]], state: NodeState) -> tuple[Share, ...]:
        """A device of which several units are held counts once."""
        shares = (self.share(name, unit, state) for name, ids in units.items() for unit in ids)
        by_device = {share.device: share for share in shares}
        return tuple(
            replace(s, memory_mib=MiB((s.memory_bytes or 0) // 2**20)) for s in by_device.values()
        )

    def _devices(self, resource: str, state: NodeState) -> tuple[Offered, ...]:
        return self._offers(state).resources.get(resource, ())

    def _devices_of_call(self, call: Call, state: NodeState) -> list[Offered]:
        offered = self._devices(call.resource, state)
        return [device for device in offered if device.id in call.must_include]

    def _offers(self, state: NodeState) -> Offers:
        if not state.cards or state.mode in {None, NodeMode.DISABLED}:
            return Offers()
        # Worked out once: a call asks for them six times, and nearly always nothing has changed.
        grants, configuration = tuple(self._held()), self._configuration()
        mps = (state.mps_root, state.mps_served, state.mps_waits)
        node = (state.cards, state.mode, state.other_cards, mps, state.imex_channels)
        key = (configuration, grants, *node)
        if key != self._latest[0]:
            self._latest = key, self._work_out_offers(state, grants)
        return self._latest[1]

    def _work_out_offers(self, state: NodeState, grants: Iterable[Grant]) -> Offers:
        configuration = self._configuration()
        profile = configuration.mig_profile if is_whole(state.mode) else ""
        problem = cut_obstacle(state.cards, profile) if profile else ""
        wanted = Offers(problem=problem) if problem else offers_in_mode(configuration, state)
        wanted = need_channels(wanted, configuration, state.imex_channels)
        offered = with_held(wanted, state.cards, grants)
        # A profile of a card that we have no table of, or what is held under an earlier name.
        self._names = self._names | offered.resources.keys()  # not in place: others iterate it
        return offered


def possible_names(configuration: Configuration) -> frozenset[str]:
    """Every name; a change of the configuration may need others, and so a restart of the agent."""
    plain = {GPU, *(resource_of(p.name) for model in MODELS for p in model.profiles)}
    plain |= {each.name for each in (*configuration.gpu_patterns, *configuration.mig_patterns)}
    plain |= {entry.name for entry in configuration.sharing.resources}
    renamed = {entry.rename for entry in configuration.sharing.resources if entry.rename}
    shared = {name + SHARED_SUFFIX for name in plain}
    return frozenset({TOPOLOGY_GPU} | plain | renamed | shared)


_CAPABILITY = "/dev/nvidia-caps/nvidia-cap{minor}"
_IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel{channel}"


def answer(
    devices: Sequence[Offered], configuration: Configuration, paths: Paths, answer_id: str
) -> ContainerEdits:
    """The edits of a container that holds `devices`.

    A device of which there are several replicas counts once. `answer_id`, at most 36 characters,
    distinguishes the CDI annotations of one pod.
    """
    by_place = sorted(devices, key=lambda d: (d.card.index, d.instance.index if d.instance else -1))
    ids = list(dict.fromkeys(d.index if configuration.is_by_index else d.uuid for d in by_place))
    cdi_names = _cdi_names(ids, configuration)
    access = configuration.access
    return ContainerEdits(
        envs=_envs(ids, configuration),
        mounts=access.mounts((*ids, *(f"imex/{each}" for each in configuration.imex_channels)))
        + paths.driver,
        devices=() if access.is_cdi_only else _nodes(by_place, configuration, paths),
        cdi_names=cdi_names if ListStrategy.CDI_CRI in access.strategies else (),
        annotations=access.annotations(cdi_names, answer_id),
    )


def _envs(ids: Sequence[str], configuration: Configuration) -> dict[str, str]:
    access, channels = configuration.access, configuration.imex_channels
    envs = {VISIBLE_DEVICES: access.visible(ids)}
    if ListStrategy.ENVVAR in access.strategies and channels:
        envs["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, channels))
    extras = () if access.is_cdi_only else _extras(configuration)
    return {**envs, **{f"NVIDIA_{name.upper()}": "enabled" for name in extras}}


def _nodes(
    devices: Sequence[Offered], configuration: Configuration, paths: Paths
) -> tuple[DeviceNode, ...]:
    """Control nodes, then each card's and instance's own, then IMEX channels."""
    if not configuration.access.passes_nodes:
        return ()
    nodes = [*paths.control_devices]
    for device in devices:
        nodes.append(f"/dev/nvidia{device.card.minor}")
        if device.instance is not None:
            card, part = device.card.minor, device.instance
            minors = [
                paths.mig_minors.get(MigPart(card, part.gpu_instance, place))
                for place in (None, part.compute_instance)
            ]
            nodes += [_CAPABILITY.format(minor=minor) for minor in minors if minor is not None]
    nodes += [_IMEX_CHANNEL.format(channel=channel) for channel in configuration.imex_channels]
    root = (configuration.dev_root or configuration.driver_root).rstrip("/")
    return tuple(DeviceNode(path, f"{root}{path}", "rw") for path in dict.fromkeys(nodes))


def _cdi_names(ids: Sequence[str], configuration: Configuration) -> tuple[str, ...]:
    return (
        *(f"{configuration.access.cdi_kind}={each}" for each in ids),
        *(f"nvidia.com/imex-channel={channel}" for channel in configuration.imex_channels),
        *(f"nvidia.com/{name}=all" for name in _extras(configuration)),
    )


def _extras(configuration: Configuration) -> list[str]:
    switches = {
        "gdrcopy": configuration.is_gdrcopy_on,
        "gds": configuration.is_gds_on,
        "mofed": configuration.is_mofed_on,
    }
    return [name for name, is_on in switches.items() if is_on]
