"""The agent, one process per node: `run_agent` is its life, `wiring` makes its parts.

Rules are in `domain`; what speaks to the kubelet, NVML, the API server or the disk is in those rooms.
"""
