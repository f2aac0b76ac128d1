"""What a claim's name in its pod says: `slice-<units>-<percent>[-x<cards>]-<c or i><index>`.

The chart's policies make these names of a container's classic request (docs/dra.md).
"""

import re
from dataclasses import dataclass

TEMPLATE = "gpu-slice"
"""The ResourceClaimTemplate of every such claim."""
_NAME = re.compile(
    r"slice-(?P<units>[1-9][0-9]{0,8})-(?P<percent>0|[1-9][0-9]?|100)"
    r"(?:-x(?P<cards>[1-9][0-9]?))?-(?P<kind>[ci])(?P<index>[0-9]{1,4})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ClaimShape:
    """What a rewritten container asked for: units over all cards, percent of one card's compute (0: none)."""

    units: int
    percent: int
    cards: int
    is_app: bool
    index: int


_REQUEST = re.compile(r"container-([0-9]{1,3})-request-[0-9]{1,3}", re.ASCII)


def requesting_container(request: str) -> int | None:
    """Of a request that kube-scheduler names: the position among init containers and then the others.

    >>> requesting_container("container-1-request-0")
    1
    """
    found = _REQUEST.fullmatch(request)
    return int(found[1]) if found else None


def parse_claim_name(name: str) -> ClaimShape | None:
    """The shape that a name tells; None for any other name.

    >>> parse_claim_name("slice-8-0-x2-i1")
    ClaimShape(units=8, percent=0, cards=2, is_app=False, index=1)
    >>> parse_claim_name("slice-8-7k-c0")
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    cards = int(found["cards"] or 1)
    units, percent, index = int(found["units"]), int(found["percent"]), int(found["index"])
    return ClaimShape(units, percent, cards, found["kind"] == "c", index)
