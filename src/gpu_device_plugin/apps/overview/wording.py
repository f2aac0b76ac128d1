"""Phrases that several answers share."""

from gpu_device_plugin.domain.counted import few as few
from gpu_device_plugin.errors import RequestError


def door_text(by_claims: int, cards: int) -> str:
    """How many of a node's cards are given by claims (docs/dra.md), after other words of the node.

    >>> door_text(0, 4), door_text(1, 4), door_text(4, 4)
    ('', ', 1 of them given by claims', ', given by claims')
    """
    which = "" if by_claims == cards else f"{by_claims} of them "
    return f", {which}given by claims" if by_claims else ""


def rule_text(error: RequestError) -> str:
    """The rule that refuses a request, and the cure; without the pod, the node and what is asked."""
    return str(error).partition("): ")[2] or str(error)
