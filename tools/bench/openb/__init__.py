"""Placement on a whole cluster, replayed from a published trace."""
