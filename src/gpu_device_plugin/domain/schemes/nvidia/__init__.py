"""Whole cards, replicas and MIG instances under NVIDIA's names, as its own device plugin has them."""
