"""What Prometheus reads: of an agent, and of a controller.

What the figures say is decided where they are made: `agent/publish`, `controller`.
"""
