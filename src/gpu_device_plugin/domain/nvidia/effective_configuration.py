"""The part of a configuration that counts on a node now: by its mode, by what pods hold, by its IMEX channels."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.cards.card import UNKNOWN, Card
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.holdings_annotation import TOPOLOGY_GPU
from gpu_device_plugin.domain.node.modes import NodeMode, is_whole
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.domain.nvidia.configuration import GPU, Configuration, MigStrategy
from gpu_device_plugin.domain.nvidia.mps import limit_to_served
from gpu_device_plugin.domain.nvidia.offers import Offered, Offers, device_of, offers

_TWO_MEANINGS = (
    f"{GPU} would be MIG instances on a node whose other cards are divided; give the instances another "
    f"name in the configuration (resources.mig, sharing.*.resources.rename)"
)


def offers_in_mode(configuration: Configuration, state: NodeState) -> Offers:
    """What the scheme's cards of this node are offered as, whatever pods hold of them."""
    cards = state.cards
    if configuration.mig_strategy is not MigStrategy.NONE:
        # A card of the last run, of which NVML has not said yet how it is cut.
        cards = tuple(card for card in cards if card.hardware != UNKNOWN)
    if not cards or state.mode is NodeMode.MPS:
        return Offers()
    if state.mode is NodeMode.TOPOLOGY:
        whole = offers(cards, Configuration())
        shown = replace(whole, resources={TOPOLOGY_GPU: whole.resources.get(GPU, ())})
        return limit_to_served(shown, Configuration(), state.mps_root, state.mps_served)
    if state.mode is NodeMode.MIG:
        return _cut_only(cards, configuration)
    if is_whole(state.mode) or not state.other_cards:
        is_shown = is_whole(state.mode) or configuration.mig_strategy is not MigStrategy.NONE
        shown = offers(cards, configuration) if is_shown else Offers()
    else:
        shown = _beside_fractions(cards, configuration)
    return limit_to_served(shown, configuration, state.mps_root, state.mps_served, state.mps_waits)


def labels_configuration(
    configuration: Configuration, cards: Iterable[Card], mode: NodeMode | None
) -> Configuration:
    """The part of the configuration that labels may show: nobody shares a card that is divided."""
    if mode is NodeMode.TOPOLOGY:
        return Configuration()
    if mode is NodeMode.MIG:
        return _mixed_by_default(configuration)
    if is_whole(mode) or all(card.hardware.is_mig for card in cards):
        return configuration
    sharing = configuration.sharing
    of_instances = tuple(each for each in sharing.resources if each.name != GPU)
    return replace(configuration, sharing=replace(sharing, resources=of_instances))


def idle_sharing(configuration: Configuration, state: NodeState) -> tuple[str, ...]:
    """The resources that `sharing` names and of which the node's mode offers no replicas."""
    if state.mode in (None, NodeMode.DISABLED) or not (state.cards or state.other_cards):
        return ()
    used: Collection[object] = ()
    if is_whole(state.mode) or (state.cards and configuration.mig_strategy is not MigStrategy.NONE):
        used = labels_configuration(configuration, state.cards, state.mode).sharing.resources
    divided = GPU if state.other_cards else ""
    shared = configuration.sharing.resources
    return tuple(each.name for each in shared if each not in used or each.name == divided)


def _beside_fractions(cards: Sequence[Card], configuration: Configuration) -> Offers:
    """There `nvidia.com/gpu` would be two things."""
    if configuration.mig_strategy is MigStrategy.NONE:
        return Offers()
    if configuration.mig_strategy is MigStrategy.SINGLE:
        return Offers(notes=tuple(_left_out_of_single(cards)))
    shown = offers(cards, configuration)
    return Offers(problem=_TWO_MEANINGS, notes=shown.notes) if GPU in shown.resources else shown


def _left_out_of_single(cards: Sequence[Card]) -> Iterable[str]:
    for card in cards:
        if card.hardware.is_mig:
            yield (
                f"card {card.index} ({card.uuid}) is in MIG mode and left out: beside fractions the MIG "
                f"strategy single offers instances only where every card of the node is in MIG mode"
            )


def _cut_only(cards: Sequence[Card], configuration: Configuration) -> Offers:
    """Mode mig: strategy mixed unless single is set, and at least one card in MIG mode."""
    if not any(card.hardware.is_mig for card in cards):
        return Offers(problem="no card of this node is in MIG mode")
    return offers(cards, _mixed_by_default(configuration))


def _mixed_by_default(configuration: Configuration) -> Configuration:
    if configuration.mig_strategy is MigStrategy.NONE:
        return replace(configuration, mig_strategy=MigStrategy.MIXED)
    return configuration


def with_held(wanted: Offers, cards: Sequence[Card], grants: Iterable[Grant]) -> Offers:
    """The offers, with each card that waits offered as what is held of it, and as nothing else.

    A card waits while a pod holds a unit of it that the configuration does not offer. So no card
    is given away under two configurations at once, and the others change at once. It follows from
    the grants alone, so that it outlives a restart of the agent.
    """
    if wanted.problem:
        return wanted  # nothing of the node is offered, and the problem says why
    held = [*_held(cards, grants)]
    wanted_units = {(name, d.id) for name, devices in wanted.resources.items() for d in devices}
    pods: dict[str, set[str]] = {}
    for resource, unit, pod in held:
        if (resource, unit.id) not in wanted_units:
            pods.setdefault(unit.card.uuid, set()).add(pod)
    if not pods:
        return wanted
    resources = {
        name: [each for each in devices if each.card.uuid not in pods]
        for name, devices in wanted.resources.items()
    }
    for resource, unit, _ in held:
        if unit.card.uuid in pods:
            resources.setdefault(resource, []).append(unit)
    return replace(
        wanted,
        resources={name: tuple(devices) for name, devices in sorted(resources.items()) if devices},
        waiting=(
            *wanted.waiting,
            *(_waiting_text(card, pods[card.uuid]) for card in cards if card.uuid in pods),
        ),
    )


def _held(cards: Iterable[Card], grants: Iterable[Grant]) -> Iterator[tuple[str, Offered, str]]:
    """Resource, unit and pod, as far as the card or instance is still there."""
    devices = _devices_by_uuid(cards)
    for grant in grants:
        for resource, ids in grant.units.items():
            for unit in ids:
                device = devices.get(device_of(unit))
                if device is not None:
                    # A replica's number of siblings is not known any more; that it has some is.
                    replicas = 1 if unit == device.id else 2
                    yield resource, replace(device, id=unit, replicas=replicas), str(grant.pod)


def _devices_by_uuid(cards: Iterable[Card]) -> dict[str, Offered]:
    """UUID -> the card or instance as it is now."""
    devices = {card.uuid: Offered(card.uuid, card) for card in cards if not card.hardware.is_mig}
    for card in cards:
        if card.hardware.is_mig:
            devices |= {i.uuid: Offered(i.uuid, card, i) for i in card.hardware.instances}
    return devices


def _waiting_text(card: Card, pods: Collection[str]) -> str:
    return (
        f"card {card.index} ({card.uuid}) keeps what pods hold of it under the previous configuration "
        f"and offers nothing else, until they end: {', '.join(sorted(pods))}"
    )


def with_present_channels(configuration: Configuration, present: Collection[int]) -> Configuration:
    """The configuration with the channels that the node has, for an answer."""
    channels = tuple(each for each in configuration.imex_channels if each in present)
    return replace(configuration, imex_channels=channels)


def need_channels(wanted: Offers, configuration: Configuration, present: Collection[int]) -> Offers:
    """The offers; where a missing channel is required, nothing, in the words of NVIDIA's plugin."""
    missing = [f"channel{each}" for each in configuration.imex_channels if each not in present]
    if not missing or not wanted.resources:
        return wanted
    text = f"requested IMEX channel {', '.join(missing)} does not exist"
    if configuration.is_imex_required:
        return Offers(problem=text)
    return replace(wanted, notes=(*wanted.notes, f"{text}: no container gets it"))
