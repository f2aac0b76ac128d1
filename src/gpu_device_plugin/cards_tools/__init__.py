"""Commands that change cards: `mig apply` and `mps-daemon` where nobody uses them, `limit-keeper` also for running containers.

The agent never changes a card; it only reads what these made.
"""
