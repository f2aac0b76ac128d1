"""The resource names that a node may offer under a configuration, whatever its cards are."""

from gpu_device_plugin.domain.held_devices import TOPOLOGY_GPU
from gpu_device_plugin.domain.schemes.nvidia.configuration import (
    GPU,
    SHARED_SUFFIX,
    Configuration,
)
from gpu_device_plugin.domain.schemes.nvidia.mig import MODELS, resource_of


def possible_names(configuration: Configuration) -> frozenset[str]:
    """Every name; a change of the configuration may need others, and so a restart of the agent."""
    plain = {GPU, *(resource_of(p.name) for model in MODELS for p in model.profiles)}
    plain |= {each.name for each in (*configuration.gpu_patterns, *configuration.mig_patterns)}
    plain |= {entry.name for entry in configuration.sharing.resources}
    renamed = {entry.rename for entry in configuration.sharing.resources if entry.rename}
    shared = {name + SHARED_SUFFIX for name in plain}
    return frozenset({TOPOLOGY_GPU} | plain | renamed | shared)
