"""A card, its health and faults, what NVML reports of it.

Who holds something of a card is in `grants`.
"""
