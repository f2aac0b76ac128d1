"""The node labels of NVIDIA's GPU feature discovery, from cards and configuration (R-740 to R-745)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gpu_device_plugin.domain.cards.card import Card, Instance
from gpu_device_plugin.domain.node.labels import Machine
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    PREFIX,
    Configuration,
    MigStrategy,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.mig_devices import resource_of

_LONGEST_VALUE = 63
_NOT_AT_ENDS = "-_."
_MODES = {0x0300: "graphics", 0x0302: "compute"}
_FAMILIES: Mapping[int, str] = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
MPS_CAPABLE = f"{PREFIX}mps.capable"
_SPLIT_FAMILIES = {7: (5, "volta", "turing"), 8: (9, "ampere", "ada-lovelace")}


def feature_labels(
    cards: Sequence[Card], configuration: Configuration, machine: Machine
) -> dict[str, str]:
    """Label -> value; `cards` are all that NVML shows, by index, and without one there is only the timestamp."""
    labels = {}
    if machine.timestamp is not None:
        labels["gfd.timestamp"] = str(machine.timestamp)
    if cards:
        classes = {card.hardware.pci_class for card in cards}
        is_mps = configuration.sharing.kind is SharingKind.MPS
        is_mps_capable = is_mps and not any(card.hardware.is_mig for card in cards)
        labels |= {
            **_versions(machine),
            "gpu.machine": _trim_ends(sanitise(machine.type)) or "unknown",
            "gpu.mode": _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown",
            "mig.capable": _text(any(card.hardware.is_mig_capable for card in cards)),
            MPS_CAPABLE.removeprefix(PREFIX): _text(is_mps_capable),
            "vgpu.present": _text(any(card.hardware.is_virtual for card in cards)),
            **_clique(cards),
            **_gpu_labels(cards, configuration),
            **_mig_labels(cards, configuration),
        }
    return {f"{PREFIX}{name}": _trim_ends(value) for name, value in labels.items()}


def sanitise(text: str) -> str:
    """Only what a label's value may have; spaces become single hyphens (R-741).

    >>> sanitise(" NVIDIA  A100-SXM4 (40GB) ")
    'NVIDIA-A100-SXM4-40GB'
    """
    return "-".join(re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split())


def _trim_ends(value: str) -> str:
    """At most 63 characters, with a letter or digit at both ends: the API server wants that."""
    return value.strip(_NOT_AT_ENDS)[:_LONGEST_VALUE].rstrip(_NOT_AT_ENDS)


def family(capability: tuple[int, int]) -> str:
    """The architecture (R-745)."""
    major, minor = capability
    if major in _SPLIT_FAMILIES:
        first, older, newer = _SPLIT_FAMILIES[major]
        return newer if minor >= first else older
    return _FAMILIES.get(major, "undefined")


def _versions(machine: Machine) -> dict[str, str]:
    major, minor, revision = (*machine.driver_version.split("."), "", "")[:3]
    cuda_major, _, cuda_minor = machine.cuda_version.partition(".")
    return {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": machine.driver_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": machine.cuda_version,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }


def _clique(cards: Sequence[Card]) -> dict[str, str]:
    """The NVLink domain that the node's cards are in, where it is one."""
    found = {card.hardware.fabric for card in cards} - {""}
    return {"gpu.clique": found.pop()} if len(found) == 1 else {}


def _gpu_labels(cards: Sequence[Card], configuration: Configuration) -> dict[str, str]:
    """Labels of whole cards, those in MIG mode included; of two models the one with more cards counts."""
    counts = Counter(card.model for card in cards)
    model = max(counts, key=lambda name: counts[name])
    group = [card for card in cards if card.model == model]
    whole = [card for card in group if not card.hardware.is_mig]
    card = (whole or group)[0]
    labels = _base(GPU, [model], len(group), configuration)
    if not whole:
        labels |= {"replicas": "0", "sharing-strategy": "none", "product": sanitise(model)}
    if card.memory_mib:
        labels["memory"] = str(card.memory_mib)
    major, minor = card.hardware.compute_capability
    if major:
        labels |= {
            "family": family((major, minor)),
            "compute.major": str(major),
            "compute.minor": str(minor),
        }
    return _with_prefix(GPU, labels)


def _mig_labels(cards: Sequence[Card], configuration: Configuration) -> dict[str, str]:
    """Labels of instances: in the place of the cards' under single, each profile's own under mixed."""
    strategy = configuration.mig_strategy
    if strategy is MigStrategy.NONE:
        return {}
    labels = {"mig.strategy": str(strategy)}
    cut = [card for card in cards if card.hardware.is_mig]
    found: dict[str, list[tuple[Card, Instance]]] = {}
    for card in cut:
        for instance in card.hardware.instances:
            found.setdefault(instance.profile, []).append((card, instance))
    if strategy is MigStrategy.SINGLE and cut:
        is_uneven = len(found) != 1 or len(cut) < len(cards)
        if is_uneven or not all(card.hardware.instances for card in cut):
            return labels | _with_prefix(GPU, _invalid(cut[0].model))
    for profile, instances in found.items():
        name = GPU if strategy is MigStrategy.SINGLE else resource_of(profile)
        labels |= _with_prefix(name, _instance_labels(name, instances, configuration))
    return labels


def _invalid(model: str) -> dict[str, str]:
    """A layout that strategy single cannot serve (R-743)."""
    return {
        "product": _product(model, "MIG", "INVALID"),
        "count": "0",
        "replicas": "0",
        "sharing-strategy": "",
        "memory": "0",
    }


def _instance_labels(
    name: str, instances: Sequence[tuple[Card, Instance]], configuration: Configuration
) -> dict[str, str]:
    card, instance = instances[0]
    parts = [card.model, "MIG", instance.profile.replace("+", ".")]
    return {
        **_base(name, parts, len(instances), configuration),
        "memory": str(instance.memory_mib),
        "multiprocessors": str(instance.multiprocessors),
        "slices.gi": str(instance.gpu_slices),
        "slices.ci": str(instance.compute_slices),
        **{f"engines.{engine}": str(count) for engine, count in instance.engines.items()},
    }


def _base(
    name: str, parts: Sequence[str], count: int, configuration: Configuration
) -> dict[str, str]:
    """Product, count and sharing of a resource; replicas are those of one device (R-742)."""
    entry = next((each for each in configuration.sharing.resources if each.name == name), None)
    model, *ends = parts
    if entry is not None and configuration.sharing.new_name(entry) == name:
        ends.append("SHARED")
    kind = SharingKind.NONE if entry is None else configuration.sharing.kind
    return {
        "product": _product(model, *ends),
        "count": str(count),
        "replicas": str(1 if entry is None else entry.replicas),
        "sharing-strategy": str(kind),
    }


def _product(model: str, *ends: str) -> str:
    """A long model is cut, and not what tells its parts and replicas from the whole card."""
    end = "".join(f"-{sanitise(each)}" for each in ends)
    return sanitise(model)[: _LONGEST_VALUE - len(end)].rstrip(_NOT_AT_ENDS) + end


def _with_prefix(resource: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {f"{resource.removeprefix(PREFIX)}.{name}": value for name, value in labels.items()}


def _text(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"
