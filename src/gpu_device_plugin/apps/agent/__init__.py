"""The agent: one a node, from NVML's cards to what a container receives."""
