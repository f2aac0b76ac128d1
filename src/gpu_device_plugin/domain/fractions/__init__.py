"""Fractions of cards under aliyun's names: rules, placement, room, unit ids, annotations.

No other room decides by these names.
"""
