"""Commands that change cards where nobody uses them: `mig apply` and `mps-daemon`.

The agent never changes a card; it only reads what these made.
"""
