"""Nodes, pods, claims, leases and messages of the scheduler, as values of the domain.

Connections and watches are in `kubernetes/client`.
"""
