"""Stand-ins for demo, tests and evaluation: kubelet, API server, simulated node.

The stand-in driver libraries are C, in src/simulator.
"""
