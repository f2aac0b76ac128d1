"""The agent: one per node, from NVML's cards to what a container receives."""
