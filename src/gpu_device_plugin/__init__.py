"""Fractions of NVIDIA GPUs, scheduled and enforced: a Kubernetes device plugin."""

__version__ = "0.1.0"
