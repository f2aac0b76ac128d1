"""Kubernetes quantities as whole numbers."""

import re
from decimal import Decimal
from functools import lru_cache

from gpu_device_plugin.errors import ClusterError, clip

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1
_LONGEST = 64
# Digits are matched in one way only: anybody may ask the webhook, with text of any length.
_FORM = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE])?)")


def whole_number(text: str) -> int:
    """The quantity as the kubelet counts it: a fraction is rounded away from zero.

    The API server admits only whole amounts of an extended resource, in any notation
    (`2`, `2k`, `2e3`, `2000m`), and keeps the notation.

    ClusterError: `text` is no quantity, or one beyond 64 bits.

    Source:
        k8s.io/apimachinery, `resource.Quantity`: grammar in its comment, `Value()`.
    """
    return _scale(text, 1)


@lru_cache(maxsize=1024)
def milli(text: str) -> int:
    """The quantity in thousandths, rounded up, as the scheduler counts processors.

    ClusterError: `text` is no quantity, or its thousandths are beyond 64 bits.

    >>> [milli(text) for text in ("2", "100m", "1.5", "1u")]
    [2000, 100, 1500, 1]
    """
    return _scale(text, 1000)


def _scale(text: str, by: int) -> int:
    if len(text) > _LONGEST:  # the work to read it would grow with the square of its length
        raise ClusterError(f"{clip(text)} is larger than a Kubernetes quantity can be")
    match = _FORM.fullmatch(text)
    if match is None:
        raise ClusterError(f"{clip(text)!r} is not a Kubernetes quantity")
    number, exponent, suffix = match[1], match[2], match[3] or ""
    if suffix in _BINARY:
        value = Decimal(number) * 1024 ** _BINARY[suffix]
    else:
        value = Decimal(number).scaleb(int(exponent) if exponent else _DECIMAL[suffix])
    value *= by
    if abs(value) > _LARGEST:
        raise ClusterError(f"{clip(text)} is larger than a Kubernetes quantity can be")
    return int(value.to_integral_value("ROUND_UP"))
