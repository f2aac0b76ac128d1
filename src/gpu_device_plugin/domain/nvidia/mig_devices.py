"""MIG profiles by model, as NVIDIA's MIG User Guide lists them, and how cards are cut into one (R-203, R-207)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.cards.card import UNKNOWN, Card, Hardware
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.nvidia.configuration import PREFIX
from gpu_device_plugin.domain.wording import count_noun
from gpu_device_plugin.errors import ConfigError

_KIND = re.compile(r"(?<=gb)[+-].*")


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to cut a model, for instance `1g.5gb` or `1g.5gb+me`: slices of the model's, and most instances."""

    name: str
    compute_slices: int
    memory_slices: int
    count: int

    @property
    def alias(self) -> str:
        """The node pool name of AKS (R-203).

        >>> Profile("1g.5gb", 1, 1, 7).alias
        'MIG1g'
        """
        return f"MIG{self.compute_slices}g"

    @property
    def kind(self) -> str:
        """What it has beside compute and memory, as the name says: media engines, graphics, or "".

        >>> Profile("1g.24gb+me.all", 1, 1, 1).kind
        '+me.all'
        """
        found = _KIND.search(self.name)
        return found.group() if found else ""


@dataclass(frozen=True, slots=True)
class Model:
    """Cards that are cut alike."""

    name: str
    memory_mib: range
    compute_slices: int
    memory_slices: int
    profiles: tuple[Profile, ...]

    def describes(self, model: str, memory_mib: MiB) -> bool:
        """Whether a card with this name and memory is one."""
        words = " ".join(re.split(r"[^A-Za-z0-9]+", model))
        return f" {self.name} " in f" {words} " and memory_mib in self.memory_mib


def _of_seven(name: str, memory_mib: range, *sizes_gb: int) -> Model:
    """A card of seven slices of compute and eight of memory.

    `sizes_gb`: memory in the names of instances with 1, 2, 4 and 8 slices of it.
    """
    one, two, four, eight = sizes_gb
    profiles = (
        Profile(f"1g.{one}gb", 1, 1, 7),
        Profile(f"1g.{one}gb+me", 1, 1, 1),
        Profile(f"1g.{two}gb", 1, 2, 4),
        Profile(f"2g.{two}gb", 2, 2, 3),
        Profile(f"3g.{four}gb", 3, 4, 2),
        Profile(f"4g.{four}gb", 4, 4, 1),
        Profile(f"7g.{eight}gb", 7, 8, 1),
    )
    return Model(name, memory_mib, 7, 8, profiles)


_A30 = (
    Profile("1g.6gb", 1, 1, 4),
    Profile("1g.6gb+me", 1, 1, 1),
    Profile("2g.12gb", 2, 2, 2),
    Profile("2g.12gb+me", 2, 2, 1),
    Profile("4g.24gb", 4, 4, 1),
)
_RTX_PRO_6000 = (
    Profile("1g.24gb", 1, 1, 4),
    Profile("1g.24gb+me", 1, 1, 1),
    Profile("1g.24gb+gfx", 1, 1, 4),
    Profile("1g.24gb+me.all", 1, 1, 1),
    Profile("1g.24gb-me", 1, 1, 4),
    Profile("2g.48gb", 2, 2, 2),
    Profile("2g.48gb+gfx", 2, 2, 2),
    Profile("2g.48gb+me.all", 2, 2, 1),
    Profile("2g.48gb-me", 2, 2, 2),
    Profile("4g.96gb", 4, 4, 1),
    Profile("4g.96gb+gfx", 4, 4, 1),
)
_GB_40, _GB_80 = range(38_000, 42_000), range(78_000, 84_000)
_GB_94, _GB_96 = range(92_000, 97_000), range(97_000, 99_000)
MODELS = (
    Model("A30", range(22_000, 25_000), 4, 4, _A30),
    Model("RTX PRO 6000", range(94_000, 99_000), 4, 4, _RTX_PRO_6000),
    *(_of_seven(name, _GB_40, 5, 10, 20, 40) for name in ("A100", "A800")),
    *(
        _of_seven(name, _GB_80, 10, 20, 40, 80)
        for name in ("A100", "A100X", "A800", "H100", "H800")
    ),
    *(_of_seven(name, _GB_94, 12, 24, 47, 94) for name in ("H100", "H800")),
    *(_of_seven(name, _GB_96, 12, 24, 48, 96) for name in ("H100", "H20")),
    _of_seven("GH200", range(94_000, 99_000), 12, 24, 48, 96),
    _of_seven("GH200", range(142_000, 150_000), 18, 36, 72, 144),
    _of_seven("H200", range(138_000, 146_000), 18, 35, 71, 141),
    _of_seven("B200", range(176_000, 192_000), 23, 45, 90, 180),
    _of_seven("GB200", range(184_000, 196_000), 23, 47, 93, 186),
    _of_seven("B300", range(268_000, 282_000), 34, 67, 135, 269),
)


def model_of(model: str, memory_mib: MiB) -> Model | None:
    """How a card is cut, or None of a model that is not known to be."""
    return next((each for each in MODELS if each.describes(model, memory_mib)), None)


def profile_of(asked: str, model: str, memory_mib: MiB) -> Profile:
    """The profile that a node setting asks for (R-203, R-309); ConfigError names those that there are.

    `asked` is `MIG1g` … `MIG7g`, or a profile's own name, also with . for + as a label has to have it.
    """
    found = model_of(model, memory_mib)
    if found is None:
        known = ", ".join(sorted({each.name for each in MODELS}))
        raise ConfigError(
            f"MIG profile {asked!r}: the agent's table of MIG profiles has no "
            f"{model} with {memory_mib} MiB; it has {known}. Cut this card with nvidia-smi, without a "
            f"MIG profile of the node: what is there is offered"
        )
    for profile in found.profiles:
        if asked in {profile.name, profile.name.replace("+", "."), profile.alias}:
            return profile
    aliases = sorted({profile.alias for profile in found.profiles})
    names = ", ".join([*aliases, *(profile.name for profile in found.profiles)])
    raise ConfigError(f"MIG profile {asked!r} is none of {model}; it has {names}")


def wrong_profile(cards: Sequence[Card], asked: str) -> str:
    """Why a card that can be in MIG mode has no such profile; "" if each has it, or none is asked for.

    Cards of the last run count as well, of which only model and memory are known.
    """
    try:
        for card in cards:
            if asked and model_of(card.model, card.memory_mib) is not None:
                profile_of(asked, card.model, card.memory_mib)
    except ConfigError as error:
        return str(error)
    return ""


def resource_of(profile: str) -> str:
    """The resource of a profile under strategy mixed (R-706)."""
    return f"{PREFIX}mig-{profile.replace('+', '.')}"


def cut_command(index: int, profile: Profile, *, is_mig: bool) -> str:
    """What cuts one card into as many instances of the profile as it has room for.

    One in MIG mode first loses its instances, so that there is room.

    >>> cut_command(0, Profile("3g.20gb", 3, 4, 2), is_mig=False)
    'nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 3g.20gb,3g.20gb -C'
    """
    mig = f"nvidia-smi mig -i {index}"
    before = f"{mig} -dci; {mig} -dgi;" if is_mig else f"nvidia-smi -i {index} -mig 1 &&"
    return f"{before} {mig} -cgi {','.join([profile.name] * profile.count)} -C"


@dataclass(frozen=True, slots=True)
class Cut:
    """One card to be cut."""

    card: CardReport
    profile: Profile

    @property
    def is_done(self) -> bool:
        return is_cut(self.card.hardware, self.profile)

    def __str__(self) -> str:
        """What is there, what goes, and what comes, in one line."""
        name = f"card {self.card.index} ({self.card.uuid})"
        wanted = f"{self.profile.count} x {self.profile.name}"
        if self.is_done:
            return f"{name}: is cut into {wanted} already"
        steps = [] if self.card.is_mig else ["MIG mode will be turned on"]
        instances = self.card.hardware.instances
        if instances:
            gone = ", ".join(f"{each.profile} {each.uuid}" for each in instances)
            steps.append(f"{count_noun(len(instances), 'instance')} will be destroyed ({gone})")
        return f"{name}: {'; '.join([*steps, f'it will be cut into {wanted}'])}"


def is_cut(hardware: Hardware, profile: Profile) -> bool:
    """Whether a card is in MIG mode and has the profile in full number and nothing else."""
    names = [each.profile for each in hardware.instances if each.is_whole]
    return hardware.is_mig and names == [profile.name] * profile.count


def cut_obstacle(cards: Sequence[Card], asked: str) -> str:
    """Why cards are not what the node's MIG profile asks for, and how to cut them; "" if they are."""
    capable = [card for card in cards if card.hardware.is_mig_capable]
    # Of a card of the last run NVML has not said yet what it can, and how it is cut.
    if not capable and all(card.hardware != UNKNOWN for card in cards):
        return f"MIG profile {asked}: no card of this node can be in MIG mode"
    try:
        wanted = [(card, profile_of(asked, card.model, card.memory_mib)) for card in capable]
    except ConfigError as error:
        return str(error)
    commands = [
        cut_command(card.index, profile, is_mig=card.hardware.is_mig)
        for card, profile in wanted
        if not is_cut(card.hardware, profile)
    ]
    if not commands:
        return ""
    return (
        f"{len(commands)} of {len(capable)} cards are not cut as the MIG profile {asked} says: run "
        f"`gpu-device-plugin mig apply {asked}`, or {'; '.join(commands)}"
    )


def plan(cards: Sequence[CardReport], asked: str) -> tuple[Cut, ...]:
    """How each card that can be in MIG mode is to be cut; ConfigError if none can, or one has no such profile."""
    capable = [card for card in cards if card.hardware.is_mig_capable]
    if not capable:
        models = ", ".join(sorted({card.model for card in cards})) or "no cards at all"
        raise ConfigError(f"no card of this node can be in MIG mode; it has {models}")
    return tuple(Cut(card, profile_of(asked, card.model, card.memory_mib)) for card in capable)
