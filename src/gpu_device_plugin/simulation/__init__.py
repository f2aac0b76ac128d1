"""A node of simulated cards: the verb `simulate`, and what mounts them into containers.

The stand-in driver libraries are C, in src/simulator; stand-ins of kubelet and API server are in tools/harness.
"""
