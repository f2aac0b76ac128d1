"""Cards and their health, the node's mode and unit, NVIDIA's configuration, as they change.

NVML's child process is in `nvml`, the rules of health in `domain/cards`.
"""
