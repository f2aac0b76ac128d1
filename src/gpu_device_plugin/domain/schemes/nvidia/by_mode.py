"""What of a configuration counts in a node's mode: the offers of its cards, and what labels tell of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.hardware import UNKNOWN
from gpu_device_plugin.domain.held_devices import TOPOLOGY_GPU
from gpu_device_plugin.domain.modes import NodeMode, is_whole
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    GPU,
    Configuration,
    MigStrategy,
)
from gpu_device_plugin.domain.schemes.nvidia.mps import while_served
from gpu_device_plugin.domain.schemes.nvidia.offers import Offers, offers

_TWO_MEANINGS = (
    f"{GPU} would be MIG instances on a node whose other cards are divided; give the instances another "
    f"name in the configuration (resources.mig, sharing.*.resources.rename)"
)


def configured(configuration: Configuration, state: NodeState) -> Offers:
    """What the scheme's cards of this node are offered as, whatever pods hold of them.

    Args:
        configuration: The configuration in force.
        state: The node, as the scheme sees it.
    """
    cards = state.cards
    if configuration.mig_strategy is not MigStrategy.NONE:
        # A card of the last run, of which NVML has not said yet how it is cut.
        cards = tuple(card for card in cards if card.hardware != UNKNOWN)
    if not cards or state.mode is NodeMode.MPS:
        return Offers()
    if state.mode is NodeMode.TOPOLOGY:
        whole = offers(cards, Configuration())
        found = replace(whole, resources={TOPOLOGY_GPU: whole.resources.get(GPU, ())})
        return while_served(found, Configuration(), state.mps_root, state.mps_served)
    if state.mode is NodeMode.MIG:
        return _cut_only(cards, configuration)
    if is_whole(state.mode) or not state.other_cards:
        is_shown = is_whole(state.mode) or configuration.mig_strategy is not MigStrategy.NONE
        found = offers(cards, configuration) if is_shown else Offers()
    else:
        found = _beside_fractions(cards, configuration)
    return while_served(found, configuration, state.mps_root, state.mps_served, state.mps_waits)


def effective(
    configuration: Configuration, cards: Iterable[Card], mode: NodeMode | None
) -> Configuration:
    """What of the configuration labels may tell: nobody shares a card that is divided."""
    if mode is NodeMode.TOPOLOGY:
        return Configuration()
    if mode is NodeMode.MIG:
        return _mixed_by_default(configuration)
    if is_whole(mode) or all(card.hardware.is_mig for card in cards):
        return configuration
    sharing = configuration.sharing
    of_instances = tuple(each for each in sharing.resources if each.name != GPU)
    return replace(configuration, sharing=replace(sharing, resources=of_instances))


def _beside_fractions(cards: Sequence[Card], configuration: Configuration) -> Offers:
    """There `nvidia.com/gpu` would be two things."""
    if configuration.mig_strategy is MigStrategy.NONE:
        return Offers()
    if configuration.mig_strategy is MigStrategy.SINGLE:
        return Offers(notes=tuple(_left_out_of_single(cards)))
    found = offers(cards, configuration)
    return Offers(problem=_TWO_MEANINGS, notes=found.notes) if GPU in found.resources else found


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
