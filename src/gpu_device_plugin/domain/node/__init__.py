"""The node: state, mode, unit, labels, pods, pools of units.

Single cards are in `cards`, grants in `grants`.
"""
