"""Grants and files compared with what the kubelet holds, and corrected.

When a grant is over is a rule of `domain/grants/lifetime`.
"""
