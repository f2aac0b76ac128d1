"""IMEX channels that a configuration asks for, and those that the node has."""

from collections.abc import Collection
from dataclasses import replace

from gpu_device_plugin.domain.schemes.nvidia.configuration import Configuration
from gpu_device_plugin.domain.schemes.nvidia.offers import Offers


def with_channels(configuration: Configuration, there: Collection[int]) -> Configuration:
    """The configuration with the channels that are there, for an answer."""
    found = tuple(each for each in configuration.imex_channels if each in there)
    return replace(configuration, imex_channels=found)


def while_there(found: Offers, configuration: Configuration, there: Collection[int]) -> Offers:
    """The offers; where a missing channel is required, nothing, in the words of NVIDIA's plugin."""
    missing = [f"channel{each}" for each in configuration.imex_channels if each not in there]
    if not missing or not found.resources:
        return found
    text = f"requested IMEX channel {', '.join(missing)} does not exist"
    if configuration.is_imex_required:
        return Offers(problem=text)
    return replace(found, notes=(*found.notes, f"{text}: no container gets it"))
