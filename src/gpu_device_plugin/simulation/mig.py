"""A simulated card's MIG profiles and instances, as the simulated driver's lines."""

import re
import uuid
from collections.abc import Iterator

from gpu_device_plugin.errors import ConfigError
from gpu_device_plugin.simulation.models import MigProfile, Model, load_models

UUID_SPACE = uuid.UUID("6d0b6c0e-7c6e-5f0e-9d4b-6f7a2f1c5a11")
"""Of the UUIDs of cards and instances."""
# NVML's numbers of an instance profile go by its slices.
_PROFILE_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
_MOST_COMPUTE_SLICES = 7
_MOST_MEMORY_SLICES = 8
_MOST_INSTANCES = 7


def cut_lines(card_name: str, slot: int, cuts: tuple[str, ...] | None, seed: str) -> list[str]:
    """A card of a node cut anew, as the simulated driver's lines.

    Args:
        card_name: NVML's name of the card.
        slot: Its slot.
        cuts: Its instances, in this order; None outside MIG mode.
        seed: The instances' UUIDs follow from it.

    Raises:
        ConfigError: A card of this model cannot be cut so.
    """
    model = next(model for model in load_models().values() if model.name == card_name)
    if cuts is not None and not model.mig:
        raise ConfigError(f"{card_name} cannot be cut into MIG instances")
    is_mig = int(cuts is not None)
    return [
        *(f"cards.{slot}.{name}={is_mig}" for name in ("mig_enabled", "mig_pending")),
        *(f"cards.{slot}.instances.{number}.present=0" for number in range(_MOST_INSTANCES)),
        *instance_lines(model, cuts or (), slot, seed),
    ]


def profile_lines(model: Model, slot: int) -> Iterator[str]:
    """What a card can be cut into through NVML."""
    for number, (name, profile) in enumerate(model.mig.items()):
        fields: dict[str, object] = {
            "number": _PROFILE_NUMBERS[profile.compute_slices],
            "id": profile.id,
            "compute_slices": profile.compute_slices,
            "memory_slices": profile.memory_slices,
            "multiprocessors": profile.multiprocessors,
            "count": _most(profile),
            "memory_mib": profile.memory_mib,
            "name": name,
        }
        for key, value in fields.items():
            yield f"cards.{slot}.profiles.{number}.{key}={value}"


def _most(profile: MigProfile) -> int:
    """Most instances of it on one card."""
    by_compute = _MOST_COMPUTE_SLICES // profile.compute_slices
    return min(by_compute, _MOST_MEMORY_SLICES // profile.memory_slices)


def instance_lines(model: Model, cuts: tuple[str, ...], slot: int, seed: str) -> Iterator[str]:
    """The MIG slices of one card, placed one behind the other."""
    start = 0
    for number, name in enumerate(cuts):
        profile, compute_slices = _asked(model, name)
        if start + profile.memory_slices > _MOST_MEMORY_SLICES or number == _MOST_INSTANCES:
            raise ConfigError(f"{', '.join(cuts)} do not fit one {model.name}")
        share = profile.multiprocessors * compute_slices // profile.compute_slices
        fields: dict[str, object] = {
            "present": 1,
            "is_empty": 0,
            "gpu_instance": number + 7,
            "gpu_profile": _PROFILE_NUMBERS[profile.compute_slices],
            "gpu_profile_id": profile.id,
            "gpu_slices": profile.compute_slices,
            "compute_profile": _PROFILE_NUMBERS[compute_slices],
            "compute_slices": compute_slices,
            "memory_slices": profile.memory_slices,
            "placement_start": start,
            "multiprocessors": share,
            "memory_mib": profile.memory_mib,
            "profile": name,
            "uuid": f"MIG-{uuid.uuid5(UUID_SPACE, f'{seed}/{slot}/{number}')}",
        }
        for key, value in fields.items():
            yield f"cards.{slot}.instances.{number}.{key}={value}"
        start += profile.memory_slices


def _asked(model: Model, name: str) -> tuple[MigProfile, int]:
    """`3g.20gb`, or a part of its compute as `1c.3g.20gb`: the profile and the compute slices."""
    part = re.fullmatch(r"(\d)c\.(.*)", name)
    profile = model.mig.get(part[2] if part else name)
    if profile is None:
        known = ", ".join(model.mig) or "none"
        raise ConfigError(f"{model.name} has MIG profiles {known}; not {name}")
    slices = int(part[1]) if part else profile.compute_slices
    if slices not in _PROFILE_NUMBERS or slices > profile.compute_slices:
        raise ConfigError(f"{name}: a compute instance has 1 to {profile.compute_slices} slices")
    return profile, slices
