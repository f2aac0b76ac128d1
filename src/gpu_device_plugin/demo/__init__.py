"""The demo: a story on simulated nodes with real agents, and what it promises.

The stand-ins that it plays with are in `simulation`.
"""
