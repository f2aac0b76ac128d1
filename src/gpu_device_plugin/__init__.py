"""Fractions of GPUs, schedulable and real: a Kubernetes device plugin."""

__version__ = "0.1.0"
