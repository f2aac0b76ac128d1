"""The demo: a story on simulated nodes with real agents, and what it promises.

The simulated cards are in gpu_device_plugin/simulation, the stand-ins of kubelet and API server in tools/harness.
"""
