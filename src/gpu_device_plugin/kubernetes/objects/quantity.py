"""Kubernetes quantities as whole numbers: those that every Kubernetes program counts with, written in Go.

Also beyond 64 bits, where Go's arithmetic gives 0 or what is left of the number: the API server takes
such an amount, and kubelet and scheduler count what Go has made of it.
"""

import re
from functools import lru_cache

from gpu_device_plugin.errors import ClusterError, clip

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST = 2**63 - 1
_LONGEST = 1024
_MOST_PLACES = 18
"""Digits of a number that Go keeps in 64 bits, and the powers of ten that these hold."""
# Digits are matched in one way only: anybody may ask the webhook, with text of any length.
_FORM = re.compile(
    r"([+-]?)0*(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+)|([KMGTPE]i|[numkMGTPE])?)", re.ASCII
)


def whole_number(text: str) -> int:
    """The quantity as the kubelet counts it: a fraction is rounded away from zero.

    The API server keeps the notation (`2`, `2k`, `2e3`, `2000m`).

    ClusterError: `text` is no quantity, or so long that reading it would be work.

    Source:
        k8s.io/apimachinery, `resource.Quantity`: `ParseQuantity`, `Value()`.
    """
    return _value(text, 0)


@lru_cache(maxsize=1024)
def milli(text: str) -> int:
    """The quantity in thousandths, rounded up, as the scheduler counts processors.

    ClusterError: as `whole_number`.

    >>> [milli(text) for text in ("2", "100m", "1.5", "1u")]
    [2000, 100, 1500, 1]
    """
    return _value(text, 3)


def _value(text: str, places: int) -> int:
    """The quantity times ten to the `places`."""
    if len(text) > _LONGEST:  # the work to read it would grow with the square of its length
        raise ClusterError(f"{clip(text)} is longer than a quantity that is read")
    match = _FORM.fullmatch(text)
    if not text or match is None or len((match[4] or "").lstrip("+-0")) > 9:
        raise ClusterError(f"{clip(text)!r} is not a Kubernetes quantity")
    whole, part, suffix = match[2] or "0", match[3] or "", match[5] or ""
    digits, behind = int(whole + part), len(part)
    size = len(whole + part)
    if suffix in _BINARY:
        digits <<= 10 * _BINARY[suffix]
        # Go's guess of how many digits the shift adds.
        is_small = not part and 14 - size - 3 * _BINARY[suffix] >= 0
        if digits > _LARGEST * 10**behind:
            digits, behind = _LARGEST, 0
    else:
        behind -= int(match[4]) if match[4] else _DECIMAL[suffix]
        is_small = size <= _MOST_PLACES and behind <= 9
    found = _scaled(digits, behind, places, is_small=is_small)
    return _wrapped(-found) if match[1] == "-" else found


def _scaled(digits: int, behind: int, places: int, *, is_small: bool) -> int:
    """`digits` with so many of them behind the point, as Go scales what it keeps in 64 bits, or does not."""
    if behind > 9:  # the least that there is, which is never rounded to nothing
        digits, behind = _divided(digits, behind - 9), 9
    more = places - behind
    if more <= 0:
        return _wrapped(_divided(digits, -more))
    if is_small:
        exact = digits * 10 ** min(more, _MOST_PLACES + 1)
        return exact if exact <= _LARGEST else 0
    return _wrapped(digits * 10 ** min(more, 64))  # beyond that none of its 64 bits is set


def _divided(digits: int, places: int) -> int:
    """Divided by a power of ten, rounded up."""
    return -(-digits // 10**places) if places <= _LONGEST + _MOST_PLACES else min(digits, 1)


def _wrapped(number: int) -> int:
    """The lower 64 bits."""
    return (number + _LARGEST + 1) % 2**64 - _LARGEST - 1
