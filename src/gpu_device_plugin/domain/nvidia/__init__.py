"""Whole cards, replicas and MIG instances under NVIDIA's names, and its configuration.

No other room decides by these names.
"""
